"""The live line, and requests to stop."""

from __future__ import annotations

import io
import math
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.configuration import Candidate, Configuration
from autotune.core.deadline import Deadline
from autotune.core.interrupt import SIGNALS, STOP_S, CommandSignals, Interrupt, Signalled
from autotune.core.measurement import Outcome
from autotune.measuring.effort import Baseline
from autotune.search.internals import deferred_interrupt
from autotune.tuning.progress import LOG_INTERVAL_S, Progress, ProgressLine, status

BEGIN = Progress(
    trial=0,
    trials=200,
    elapsed_s=0.1,
    timeout_s=60.0,
    best_s=None,
    baseline=None,
    flops=2 * 1024**3,
    counts={},
    phase="starting",
    left_s=59.9,
)
SEARCH = replace(
    BEGIN,
    trial=31,
    elapsed_s=30.0,
    best_s=2e-2,
    baseline=Baseline("NumPy 2.4.6 (OpenBLAS 0.3.31)", 2.5e-2, (2e-2, 3e-2), 2, {}),
    counts={Outcome.OK: 16, Outcome.ABANDONED: 15},
    phase="trials",
    left_s=30.0,
    best=Candidate("goto", Configuration({"sm": 1})),
)
FINALS = replace(SEARCH, phase="finals", step=3, steps=15, elapsed_s=56.0, left_s=2.5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_phase_is_named() -> None:
    assert "starting | 0 s, 60 s left" in status(BEGIN)
    compiling = replace(BEGIN, phase="compiling", step=2, steps=4)
    assert "compiling 2/4 |" in status(compiling)
    assert "trial 31/200, compiling 2/4" in status(replace(compiling, trial=31))
    assert status(SEARCH).endswith(
        "trial 31/200 | best 107.4 GFLOP/s (1.25x NumPy) goto | abandoned 15 ok 16 | "
        "30 s, 30 s left"
    )
    assert "finals: round 3/15 |" in status(FINALS)
    assert "finals: verifying" in status(replace(FINALS, step=0, steps=0))


def test_the_bar_fills() -> None:
    assert status(BEGIN).startswith("[............]")
    assert status(SEARCH).startswith("[######......]")
    assert status(FINALS, since_s=2.4).startswith("[############]")
    sweep = replace(SEARCH, timeout_s=math.inf, left_s=math.inf, trial=50)
    assert status(sweep).startswith("[###.........]")


@given(
    width=st.integers(1, 200),
    since_s=st.floats(0, 1e4),
    left_s=st.floats(0, math.inf),
    progress=st.sampled_from([BEGIN, SEARCH, FINALS]),
)
def test_a_line_fits_and_what_is_left_is_never_nothing(
    width: int, since_s: float, left_s: float, progress: Progress
) -> None:
    progress = replace(progress, left_s=left_s)
    assert len(status(progress, since_s, width)) <= width
    text = status(progress, since_s)
    assert "-" not in text.replace("goto", "")
    for seconds in re.findall(r"(\S+) s left", text):
        assert int(seconds) >= 1


def test_a_narrow_terminal_loses_the_least() -> None:
    text = status(SEARCH, width=59)
    assert text.startswith("trial 31/200 | 30 s, 30 s left | best 107.4 GFLOP/s")


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_the_line_is_rewritten_in_place(columns: int) -> None:
    terminal, clock = Terminal(), Clock()
    line = ProgressLine("title", terminal, clock, lambda: columns)
    for progress in (BEGIN, SEARCH, FINALS):
        line(progress)
    clock.now += 3
    line.tick()
    line.end()
    text = terminal.getvalue()
    assert text.startswith("title\n")
    assert text.endswith("\n")
    assert text.count("\n") == 2
    shown = text.removeprefix("title\n").removesuffix("\n").split("\r\x1b[K")[1:]
    assert max(map(len, shown)) < columns
    if columns == 200:
        assert "59 s" in shown[-1]  # the clock went on, though the run said nothing
        assert "left" not in shown[-1]


def test_a_log_has_a_line_now_and_then() -> None:
    log, clock = io.StringIO(), Clock()
    line = ProgressLine("title", log, clock)
    line(BEGIN)
    clock.now += 0.9 * LOG_INTERVAL_S
    line(SEARCH)
    clock.now += 0.2 * LOG_INTERVAL_S
    line(FINALS)
    line.end()
    assert log.getvalue().splitlines() == ["title", status(FINALS)]


def test_a_run_that_never_began_leaves_nothing() -> None:
    terminal = Terminal()
    ProgressLine("title", terminal).end()
    assert terminal.getvalue() == ""


ASKED = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


@pytest.fixture(autouse=True)
def unchanged():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def command():
    said: list[str] = []
    with CommandSignals(said.append) as signals:
        signals.said = said  # type: ignore[attr-defined]
        yield signals


@ASKED
def test_the_first_request_is_noted_and_hastens_the_run(command, number) -> None:
    deadline = Deadline(1000.0)
    with Interrupt(deadline, "putting things away") as interrupt:
        assert not interrupt.requested
        signal.raise_signal(number)
        assert interrupt.requested
        assert deadline.left_s <= STOP_S
        assert command.said == ["stopping: putting things away; Ctrl-C again to stop now"]
        assert command.number is None  # until the work is done
    assert command.number == number


@ASKED
def test_the_second_request_is_obeyed_at_once(command, number) -> None:
    def asked_twice() -> None:
        with Interrupt():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(number)

    with pytest.raises(Signalled) as caught:
        asked_twice()
    assert caught.value.number == number
    assert command.number == signal.SIGTERM


@ASKED
def test_a_command_without_anything_to_keep_obeys_at_once(command, number) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert command.number == number


def test_a_program_of_ones_own_is_not_ended_by_ctrl_c() -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
    assert interrupt.requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_to_terminate_does_so_afterwards(number) -> None:
    received = []
    previous = signal.signal(number, lambda *args: received.append(args[0]))
    try:
        with Interrupt():
            signal.raise_signal(number)
            assert received == []
        assert received == [number]
    finally:
        signal.signal(number, previous)


def test_it_terminates_by_the_signal_where_nobody_listens() -> None:
    code = (
        "import signal\n"
        "from autotune.core.interrupt import Interrupt\n"
        "with Interrupt():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    print('kept', flush=True)\n"
        "print('went on')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "kept\n")


@ASKED
def test_what_is_ignored_stays_ignored(number) -> None:
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt, deferred_interrupt():
            signal.raise_signal(number)
        assert not interrupt.requested
    finally:
        signal.signal(number, previous)


@ASKED
def test_storing_is_not_broken_off(command, number) -> None:
    with Interrupt() as interrupt:
        with deferred_interrupt():
            os.kill(os.getpid(), number)
            assert not interrupt.requested
        assert interrupt.requested


def test_in_other_threads_nothing_is_changed() -> None:
    found = []

    def work() -> None:
        with Interrupt() as interrupt:
            found.append([signal.getsignal(number) for number in SIGNALS])
            found.append(interrupt.outer)

    before = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, None]
