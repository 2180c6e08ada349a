"""How the threads of kernels wait: briefly, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autotune.cpu.threads import SPIN

PROGRAM = """
import os
from unittest import mock
import numba
seen = []
with mock.patch.object(numba, "get_num_threads", lambda: seen.append(dict(os.environ))):
    from autotune.cpu.threads import start_threads
    start_threads()
    start_threads()
(environment,) = seen
print(environment.get("GOMP_SPINCOUNT"), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"{SPIN} None"),
        ({"GOMP_SPINCOUNT": "7"}, "7 7"),
        ({"OMP_WAIT_POLICY": "active"}, "None None"),
    ],
)
def test_threads_are_told_while_they_start(given: dict[str, str], told: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | given, capture_output=True, text=True
    )
    assert done.stdout.strip() == told, done.stderr
