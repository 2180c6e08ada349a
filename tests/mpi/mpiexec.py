"""Starting ranks from tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autotune.evaluators.mpi.world import find_mpiexec, launch_command

ROOT = Path(__file__).parents[2]


def run_ranks(
    ranks: int, *arguments: str, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments on that many ranks, and wait for them."""
    command = [*launch_command(find_mpiexec(), ranks), sys.executable, *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return subprocess.run(
        command,
        env={**os.environ, **one_thread, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
