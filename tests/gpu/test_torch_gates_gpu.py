"""Gates that are compiled, with kernels of a GPU: in a process of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_kernels_are_launched_by_compiled_gates(tmp_path: Path) -> None:
    pytest.importorskip("torch", minversion="2.9")
    files = [HERE / "check_torch_gates.py", HERE / "test_torch_operator_gpu.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", f"--basetemp={tmp_path}/of", *files]
    environment = {**os.environ, "AUTOTUNE_TEST_CXX": "c++"}
    made = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-1000:]
