"""The README's two commands, as a stranger would type them, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\s*(python3 -m venv \.venv && .*)$", README, re.MULTILINE)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both commands are typed, as whoever reads on does: the second adds to the first."""
    folder = tmp_path_factory.mktemp("readme")
    probe = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", folder / "probe"]
    if subprocess.run([*probe, "iniconfig"], capture_output=True).returncode:
        pytest.skip("no package index can be reached from here")
    copy = folder / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    kept.pop("PYTHONPATH", None)
    # Most of an install is compiling modules that nobody imports here.
    kept |= {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=800,
    )


def test_there_are_two_commands() -> None:
    assert len(COMMANDS) == 2
    assert COMMANDS[0].endswith(".venv/bin/autotune tune")
    assert COMMANDS[1].endswith(".venv/bin/pytest")


@pytest.mark.thorough
def test_the_first_command_tunes(checkout: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    # In less than its minute, which on a machine that is busy with other tests is enough.
    done = shell(f"{COMMANDS[0]} --timeout 40", checkout, AUTOTUNE_CACHE=cache)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "C[1024x1024]" in done.stdout
    # On a machine whose other work disturbed NumPy no ratio is told.
    compared = r"^baseline +(\d+\.\d+x the speed of NumPy|not known \(NumPy)"
    assert re.search(compared, done.stdout, re.MULTILINE), done.stdout
    listed = shell(".venv/bin/autotune cache list --json", checkout, AUTOTUNE_CACHE=cache)
    assert '"m": 1024' in listed.stdout
    program = (
        "import numpy as np; from autotune import Gemm, load;"
        "a = np.ones((1024, 1024), np.float32);"
        "c = load(Gemm(m=1024, n=1024, k=1024, dtype='float32'))(a, a);"
        "assert (c == 1024).all()"
    )
    loaded = shell(f'.venv/bin/python -c "{program}"', checkout, AUTOTUNE_CACHE=cache)
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.thorough
def test_the_second_command_finds_every_test(checkout: Path) -> None:
    # Running the tests from inside the tests would never end: it is enough that the environment
    # installs and that everything is collected without an error.
    done = shell(COMMANDS[1], checkout, PYTEST_ADDOPTS="--collect-only -q")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "test_readme.py::test_there_are_two_commands" in done.stdout
