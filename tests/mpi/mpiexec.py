"""Starting ranks from tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from autotune.distributed.mpi.processes import find_mpiexec, launch_command

ROOT = Path(__file__).parents[2]


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait until something is true; False if it is not for long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return False


def run_ranks(
    ranks: int, *arguments: str, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments on that many ranks, and wait for them."""
    command = [*launch_command(find_mpiexec(), ranks), sys.executable, *arguments]
    folders = ROOT, ROOT / "benchmarks", os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(map(str, folders))
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return subprocess.run(
        command,
        env={**os.environ, **one_thread, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
