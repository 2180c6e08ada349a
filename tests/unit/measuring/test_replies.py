"""What comes back from a worker, and what it must leave of its process."""

from __future__ import annotations

import ctypes
import math
import os
import pickle
import platform
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec import msgpack

from autotune.core.measurement import Measurement, Outcome
from autotune.distributed.mpi.messages import GpuSet, Network, RankSet
from autotune.distributed.mpi.messages import Reply as RanksReply
from autotune.gpu.nvidia.cubin import KernelResources
from autotune.gpu.nvidia.nvrtc import Compiled
from autotune.gpu.nvidia.presence import Presence
from autotune.measuring.channel import LIMIT, Channel, ReplyError, decode, encode
from autotune.measuring.child import changes, read_state, undo_outside
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Redraw,
    Reply,
    Series,
    Vendor,
    Visit,
    answers,
)
from autotune.measuring.processes import WorkerProcess
from autotune.serving.reports import HostCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MEASUREMENT = Measurement(Outcome.OK, 1e-6, (9e-7, 2e-6), 7, 0.25, "", {"a": 1, "b": 0.5, "c": ""})


@dataclass(frozen=True)
class Small:
    number: int
    name: str


@pytest.mark.parametrize(
    ("reply", "form"),
    [
        (Evaluated(MEASUREMENT, lost=True), Reply),
        (Evaluated(Measurement(Outcome.WRONG_RESULT, error=math.inf, reason="é\n\x00")), Reply),
        (Series(1e-6, (1e-7, 1.0), 3), Reply),
        ((Vendor("NumPy", 2, {"blas": "OpenBLAS"}), Vendor("", 1, {})), Reply),
        (None, Reply),
        (Network(1e-6, 2e-9), RanksReply),
        (RankSet(2, 1, 4, "MPICH", "5", "ch4", GpuSet("H200", 2, True, False)), RankSet),
        (HostCall(0.1, 0.2, 0.3), HostCall | None),
        (
            Compiled(
                bytes(range(256)) * 9, "sm_90", {"gemm": KernelResources(9, 0, 0, None)},
                {"gemm": 0}, "log\n", 0.5,
            ),
            Compiled,
        ),
        ({"plain": [1, 2.5, b"\n\x00", [b""], None, True]}, Any),
        ([Small(1, "x")], list[Small]),
    ],
)  # fmt: skip
def test_replies_arrive_as_they_were(reply: object, form: Any) -> None:
    arrived = decode(encode(reply), form)
    assert arrived == reply or encode(arrived) == encode(reply)
    assert type(arrived) is type(reply)


def test_numbers_of_numpy_and_texts_that_nobody_can_store_arrive_as_plain_ones() -> None:
    reply = (np.float32(0.5), np.int64(3), np.bool_(True), np.float64(2.0), b"\x00", "a\udc80")
    arrived = decode(encode(reply), Any)
    assert arrived == [0.5, 3, True, 2.0, b"\x00", "a\\udc80"]
    assert list(map(type, arrived)) == [float, int, bool, float, bytes, str]


@pytest.mark.parametrize("reply", [object(), np.zeros(3), Small, {"a": 1j}])
def test_what_is_no_data_is_not_sent(reply: object) -> None:
    with pytest.raises(TypeError):
        encode(reply)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"nonsense",
        b"\x91" * 100_000,  # a list of a list of a list ...
        msgpack.encode(7),
        msgpack.encode(["Small"]),
        msgpack.encode([7, {"number": 1, "name": "x"}]),
        msgpack.encode(["Other", {"number": 1, "name": "x"}]),
        msgpack.encode(["Small", {}]),
        msgpack.encode(["Small", [1, "x"]]),
        msgpack.encode(["Small", {"number": 1}]),
        msgpack.encode(["Small", {"number": True, "name": "x"}]),
        msgpack.encode(["Small", {"number": 1.5, "name": "x"}]),
        msgpack.encode(["Small", {"number": "1", "name": "x"}]),
        msgpack.encode(["Small", {"number": 1, "name": ["x"]}]),
        msgpack.encode(["Small", {"number": 1, "name": "x"}, "more"]),
        msgpack.encode(["Small", {"number": 1, "name": "xx"}]).replace(b"xx", b"\xff\xff"),
        msgpack.encode(["Small", {"number": 1, "name": "x"}]) + b"\x00",
        pickle.dumps(Small(1, "x")),
    ],
)
@pytest.mark.parametrize("form", [Small, Small | Network, Network | int])
def test_anything_else_is_refused(content: bytes, form: Any) -> None:
    with pytest.raises(ReplyError):
        decode(content, form)


EVALUATE = Evaluate(Vendor("", 1, {}), "ieee", None, 0.1)
VISIT = Visit(Vendor("", 1, {}), "ieee", 0.1)
CONFIRM = Confirm(Vendor("", 1, {}), "ieee", 0.1)
SERIES = Series(1e-6, (1e-6, 1e-6), 1)
OK, BAD = Evaluated(MEASUREMENT), Evaluated(Measurement(Outcome.WRONG_RESULT, reason="no"))


@pytest.mark.parametrize(
    ("reply", "request_", "fits"),
    [
        (OK, EVALUATE, True),
        (OK, VISIT, False),  # who takes a turn is timed, or wrong
        (OK, Redraw(1), False),
        (Evaluated(Measurement(Outcome.OK, error=0.5)), CONFIRM, True),
        (Evaluated(Measurement(Outcome.OK, error=0.5)), EVALUATE, False),
        (Evaluated(Measurement(Outcome.OK, math.nan, (1.0, 1.0), 1)), EVALUATE, False),
        (Evaluated(Measurement(Outcome.OK, 0.0, (0.0, 1.0), 1)), EVALUATE, False),
        (Evaluated(Measurement(Outcome.OK, 1.0, (1.0, math.inf), 1)), EVALUATE, False),
        (Evaluated(Measurement(Outcome.ABANDONED, 1.0)), EVALUATE, True),
        (Evaluated(Measurement(Outcome.ABANDONED, -1.0)), EVALUATE, False),
        *((BAD, each, True) for each in (EVALUATE, VISIT, CONFIRM, Redraw(1), DescribeBaseline())),
        (SERIES, VISIT, True),
        (SERIES, EVALUATE, False),
        (Series(-1e-6, (1e-6, 1e-6), 1), VISIT, False),
        ((), DescribeBaseline(), True),
        ((), VISIT, False),
        (None, Redraw(1), True),
        (None, CONFIRM, False),
    ],
)
def test_a_reply_fits_its_request(reply: object, request_: Any, fits: bool) -> None:
    assert answers(reply, request_) is fits


def test_what_a_driver_says_can_be_sent() -> None:
    assert decode(encode(Presence((), "")), Presence) == Presence((), "")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    channel, theirs = Channel.pair(5.0)
    with theirs:
        yield channel, theirs
        channel.close()


def framed(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("!Q", len(content) if length is None else length) + content


def test_a_reply_is_one_to_the_latest_request(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    child = Channel(theirs)
    for number in range(3):
        channel.ask(number)
        assert channel.replied(0.0) is None
        assert child.requested() == number
        child.answer(encode(number))
        reply = channel.replied(1.0)
        assert reply is not None
        assert decode(reply, int) == number
    child.answer(encode(7))  # once more, to a request that has its reply
    with pytest.raises(ReplyError, match="another request"):
        channel.replied(1.0)


@pytest.mark.parametrize("length", [None, 0, 7, LIMIT + 1, 1 << 63])
def test_a_forged_message_is_none(ends: tuple[Channel, socket.socket], length: int | None) -> None:
    channel, theirs = ends
    channel.ask("anything")
    theirs.sendall(framed(os.urandom(16) + encode(OK), length))
    with pytest.raises(ReplyError):
        channel.replied(1.0)


def test_half_a_message_holds_nobody_up(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    channel.ask("anything")
    theirs.sendall(framed(b"x" * 16, LIMIT))
    assert channel.replied(0.01) is None
    assert channel.replied(0.01) is None


class CountedEnd:
    """A socket that counts how often it is closed."""

    closed = 0

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def test_a_channel_is_closed_once() -> None:
    end: Any = CountedEnd()
    channel = Channel(end)
    channel.close()
    channel.close()
    assert end.closed == 1


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


@pytest.mark.sampled(8)
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
