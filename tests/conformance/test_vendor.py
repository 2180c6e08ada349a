"""A vendor of GPUs from outside: a folder, an entry point, and nothing else is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "host_execution"))

from host_execution import ON_HOST  # noqa: E402

STAND_IN = TESTS / "stand_in_vendor"

pytestmark = ON_HOST

SCRIPTS = ("check_vendor.py", "check_layers.py", "check_devices.py")


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", SCRIPTS)
def test_gpus_of_another_vendor_are_tuned_loaded_and_called(script: str, tmp_path: Path) -> None:
    metadata = tmp_path / "autotune_stand_in-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: autotune-stand-in\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[autotune.targets]\nstand-in = stand_in:StandInTarget\n"
    )
    path = [str(tmp_path), str(STAND_IN), *sys.path]
    done = subprocess.run(
        [sys.executable, str(STAND_IN / script), str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
