"""Turns at a device: processes that share a cache measure one at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.file_lock import Turns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from autotune.core.deadline import Deadline
from autotune.core.file_lock import Turns
with Turns(Path(sys.argv[1]), "a").take(Deadline(), shared=sys.argv[2] == "shared"):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["alone", "shared"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the device `a`, alone or beside others."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "programs"), request.param]
    pipes = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipes, stdout=pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"has it\n"
            yield process
        finally:
            process.kill()


def is_free(folder: Path, device: str = "a", *, shared: bool = False) -> bool:
    try:
        with Turns(folder, device).take(Deadline(0.05), shared=shared):
            return True
    except OutOfTimeError:
        return False


def test_a_device_is_had_alone_or_shared_and_others_are_not_kept(
    held: subprocess.Popen[bytes], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    shared = "shared" in request.node.name.rpartition("[")[2]
    folder = tmp_path / "programs"
    assert not is_free(folder)
    assert is_free(folder, shared=True) is shared
    assert is_free(folder, "b")
    assert is_free(tmp_path / "another cache")
    with Turns().take(Deadline(0)):
        pass
    waiting = threading.Thread(target=lambda: Turns(folder, "a").take(Deadline()).__enter__())
    waiting.start()
    held.kill()  # its lock ends with it
    waiting.join(60)
    assert not waiting.is_alive()


def test_where_no_file_can_be_made_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "programs").write_text("")
    assert is_free(tmp_path / "programs")
    (tmp_path / "elsewhere").write_text("")
    lock = next(iter(_lock_of(tmp_path / "cache")))
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    assert is_free(tmp_path / "cache")


def _lock_of(folder: Path) -> list[Path]:
    assert is_free(folder)
    return list(folder.iterdir())
