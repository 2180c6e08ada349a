"""What a request must leave of its worker's process as it found it."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.measuring.child import changes, read_state, undo_outside
from autotune.measuring.processes import Failure, FailureKind, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_S = 60.0


def meddling_entry() -> Callable[[tuple[str, Any]], Any]:
    """Runs in the child."""
    return lambda request: DEEDS[request[0]](request[1])


def flush_to_zero(_: object) -> None:
    environment = (ctypes.c_uint32 * 64)()
    ctypes.CDLL("libm.so.6").fegetenv(environment)
    environment[7] |= 0x8040  # MXCSR: flush to zero, denormals are zero
    ctypes.CDLL("libm.so.6").fesetenv(environment)


def lower_limit(_: object) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def behind_pythons_back(_: object) -> None:
    ctypes.CDLL(None).signal(signal.SIGTERM, ctypes.c_void_p(1))


def remove_temporary_folder(_: object) -> None:
    Path(tempfile.gettempdir()).rmdir()  # an empty one


DEEDS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda value: value,
    "pid": lambda _: os.getpid(),
    "flush to zero": flush_to_zero,
    "ignore a signal": lambda _: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    "ignore a signal in C": behind_pythons_back,
    "block a signal": lambda _: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
    "pin": lambda _: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "be nice": lambda _: os.nice(1),
    "lower a limit": lower_limit,
    "change folder": lambda _: os.chdir("/"),
    "change the mask": lambda _: os.umask(0o123),
    "set a variable": lambda _: os.environ.update(OMP_NUM_THREADS="3"),
    "unset a variable": lambda _: os.environ.pop("PATH"),
    "remove the temporary folder": remove_temporary_folder,
    "leave a child": lambda _: subprocess.Popen(["sleep", "1000"]).pid,
    "leave an idle thread": lambda _: threading.Thread(
        target=threading.Event().wait, daemon=True
    ).start(),
}

TOLD = {
    "flush to zero": "flush-to-zero switched on",
    "ignore a signal": "signal handling",
    "ignore a signal in C": "signal handling",
    "block a signal": "blocked signals",
    "pin": "processor affinity",
    "be nice": "niceness",
    "lower a limit": "resource limits",
    "change folder": "working folder",
    "change the mask": "file mode mask",
    "set a variable": "environment (OMP_NUM_THREADS)",
    "unset a variable": "environment (PATH)",
    "remove the temporary folder": "temporary folder",
    "leave a child": "child processes left behind",
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("temporary")
    environment = {"TMPDIR": str(folder)}
    with WorkerProcess(meddling_entry, environment=environment, watched=True) as process:
        yield process
    assert folder.is_dir()


@pytest.mark.parametrize(("deed", "told"), TOLD.items())
def test_what_a_request_changes_is_told_and_its_process_replaced(
    worker: WorkerProcess, deed: str, told: str
) -> None:
    if deed == "flush to zero" and platform.machine() != "x86_64":
        pytest.skip("written for x86-64")
    if deed == "pin" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one processor only")
    pid = worker.call(("pid", None), LONG_S)
    assert worker.call((deed, None), LONG_S) == Failure(
        FailureKind.CHANGED, f"changed the process: {told}"
    )
    assert worker.call(("pid", None), LONG_S) != pid


def test_what_changes_nothing_is_answered(worker: WorkerProcess) -> None:
    pid = worker.call(("pid", None), LONG_S)
    for deed in ("nothing", "leave an idle thread", "nothing"):
        assert not isinstance(worker.call((deed, None), LONG_S), Failure)
    assert worker.call(("pid", None), LONG_S) == pid


@pytest.mark.parametrize("variable", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_that_may_spin_for_ever_are_nobodys_deed(variable: str) -> None:
    with WorkerProcess(meddling_entry, environment={variable: "1"}, watched=True) as process:
        assert process.call(("nothing", 7), LONG_S) == 7


def test_a_state_is_equal_to_itself() -> None:
    state = read_state()
    assert read_state() == state
    assert changes(state, read_state()) == []


def test_a_child_left_behind_is_ended_and_no_zombie_stays() -> None:
    before = read_state()
    child = subprocess.Popen(["sleep", "1000"])
    try:
        undo_outside(before, read_state())
        with pytest.raises(ProcessLookupError):  # a zombie would still have its number
            os.kill(child.pid, 0)
    finally:
        child.kill()
        child.wait()
