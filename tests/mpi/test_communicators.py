"""Communicators that kernels keep until they are freed, of which MPI has some thousands."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from mpi4py import MPI
from autotune import Gemm, load
from autotune.core.errors import InputError

held = []
try:
    while True:
        held.append(MPI.COMM_SELF.Dup())
except MPI.Exception:
    pass
try:
    load(Gemm(8, 8, 8), "mpi", comm=MPI.COMM_SELF, match="nearest")
except InputError as error:
    print(error)
for each in held:
    each.Free()
load(Gemm(8, 8, 8), "mpi", comm=MPI.COMM_SELF, match="nearest").free()
print("loaded")
"""


def test_what_is_never_freed_is_told_of() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    told, loaded = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert told.startswith("MPI gives no communicator (")
    assert told.endswith("until its free() is called: free those that are done with")
    assert loaded == "loaded"
