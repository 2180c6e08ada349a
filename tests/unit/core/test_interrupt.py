"""Requests to stop: what the first and the second of them do, and who learns of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from autotune.core.deadline import Deadline
from autotune.core.interrupt import SIGNALS, STOP_S, CommandSignals, Interrupt, Signalled
from autotune.search.internals import deferred_interrupt

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
