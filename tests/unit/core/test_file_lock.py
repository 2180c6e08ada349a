"""Turns at a device: processes of a host measure one at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from autotune import Gemm, tune
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, TuningFailedError
from autotune.core.file_lock import Turns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from autotune.core.deadline import Deadline
from autotune.core.file_lock import Turns
with Turns("a").take(Deadline(), shared=sys.argv[1] == "shared"):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["alone", "shared"])
def held(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the device `a`, alone or beside others."""
    command = [sys.executable, "-c", HOLD, request.param]
    pipes = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipes, stdout=pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"has it\n"
            yield process
        finally:
            process.kill()


def is_free(device: str = "a", *, shared: bool = False) -> bool:
    try:
        with Turns(device).take(Deadline(0.05), shared=shared):
            return True
    except OutOfTimeError:
        return False


def test_a_device_is_had_alone_or_shared_and_others_are_not_kept(
    held: subprocess.Popen[bytes], request: pytest.FixtureRequest
) -> None:
    shared = "shared" in request.node.name.rpartition("[")[2]
    assert not is_free()
    assert is_free(shared=True) is shared
    assert is_free("b")
    with Turns().take(Deadline(0)):
        pass
    waiting = threading.Thread(target=lambda: Turns("a").take(Deadline()).__enter__())
    waiting.start()
    held.kill()  # its lock ends with it
    waiting.join(60)
    assert not waiting.is_alive()


def test_runs_with_caches_of_their_own_take_turns(tmp_path: Path) -> None:
    """A run has measured nothing where another had the processor until its time was over."""
    problem = Gemm(16, 16, 16, threads=1)
    told = {"target": "cpu", "families": ["blocked"], "trials": 1, "workers": 1}
    with Turns("cpu").take(Deadline()), pytest.raises(TuningFailedError):
        tune(problem, timeout=3, cache=tmp_path / "a", **told)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_is_no_place_for_a_lock(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "runtime" / "autotune"
    folder.mkdir(parents=True)
    with Turns("a").take(Deadline()):
        assert not is_free()
        folder.chmod(mode)
        assert is_free()


def test_where_no_file_can_be_made_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "runtime").write_text("")
    with Turns("a").take(Deadline()):
        assert is_free()
    (tmp_path / "runtime").unlink()
    (tmp_path / "elsewhere").write_text("")
    assert is_free()
    (lock,) = (tmp_path / "runtime" / "autotune").iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with Turns("a").take(Deadline()):
        assert is_free()
