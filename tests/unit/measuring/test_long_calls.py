"""Calls that are long, of libraries and of kernels: what they take of a run is bounded."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_kernels import kernel, module
from hypothesis import given
from hypothesis import strategies as st
from suspect_family import suspect, write_suspects

from autotune import Gemm
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.file_lock import Turns
from autotune.core.measurement import Measurement, Outcome, Series
from autotune.cpu.harness import CpuHarness
from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.measuring.backend import Prepared
from autotune.measuring.effort import Effort
from autotune.measuring.evaluator import LIBRARY_S, LIBRARY_SHARE, Evaluator
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.harness import FirstRuns
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Redraw,
    Vendor,
    Visit,
)
from autotune.measuring.timing import UNKNOWN, Stop, time_calls
from autotune.measuring.trial import Trials
from autotune.operations.verification import Verdict

TIMEOUT_S = 20.0
KERNEL_S = 1e-3
PROGRAM = Vendor("kernel", 1, {})
REPLIES: dict[type, Any] = {
    Evaluate: Evaluated(Measurement(Outcome.OK, KERNEL_S, (KERNEL_S, KERNEL_S), 3, 0.1)),
    Confirm: Evaluated(Measurement(Outcome.OK, error=0.2)),
}


class SlowLibraries:
    """A backend in a time of its own, in which libraries take some seconds for a call."""

    batch = 1
    compiles_ahead = False
    start_s = 0.0
    observes: frozenset[str] = frozenset()
    holds = True
    turns = Turns()

    def __init__(
        self,
        vendors: Sequence[Vendor],
        seconds: Mapping[str, float],
        verify_s: float = 0.0,
        turn_s: float = 0.0,
    ) -> None:
        self.baselines: dict[Any, Any] = {}
        self.now_s = 0.0
        self.library_s = 0.0
        self.lost = 0
        self._vendors = tuple(vendors)
        self._seconds = seconds
        self._verify_s = verify_s
        self._drawn: Redraw | None = None
        self._turn_s = turn_s

    def is_ready(self, candidate: Any) -> bool:
        return True

    def prepare(self, *given: Any) -> None: ...

    def begin_finals(self, run: Any) -> None: ...

    def close(self) -> None: ...

    def prepared(self, candidate: Any, *given: Any) -> Any:
        return Prepared(PROGRAM)

    def ask(self, request: Any, timeout_s: float, run: Deadline) -> Any:
        match request:
            case DescribeBaseline():
                return self._vendors
            case Visit():
                call_s = self._seconds.get(request.program.digest, KERNEL_S)
                turn_s = max(call_s, request.budget_s, self._turn_s)
                took_s = min(turn_s, timeout_s, run.remaining_s)
                self.now_s += took_s
                self.library_s += took_s * (request.program.digest in self._seconds)
                if took_s == turn_s:
                    return Series(call_s, (call_s, call_s), 1)
                self.lost += 1
                if run.over:
                    raise OutOfTimeError("over")
                return Failure(FailureKind.TIMED_OUT, "took too long")
        if request != self._drawn:  # of one seed operands are drawn once
            self.now_s += min(self._verify_s, run.remaining_s)
        self._drawn = request if isinstance(request, Redraw) else self._drawn
        if run.over:
            raise OutOfTimeError("over")
        return REPLIES.get(type(request))

    def evaluator(self, folder: Path, limit_s: float) -> Evaluator:
        family = write_suspects(folder)
        effort = Effort(budget_s=0.1, finals_s=0.3, timeout_s=TIMEOUT_S)
        backend = cast("Any", self)
        families = {family.name: family}
        found = Evaluator(Gemm(8, 8, 8), families, read_cpu(), backend, effort, 0)
        found.deadline = Deadline(limit_s, lambda: self.now_s)
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suspects")


@given(
    seconds=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=3),
    limit_s=st.floats(10.0, 1000.0),
    grace_s=st.floats(0.0, 100.0),
    told=st.booleans(),
)
def test_libraries_have_their_share(
    folder: Path, seconds: list[float], limit_s: float, grace_s: float, told: bool
) -> None:
    names = [f"library {number}" for number in range(len(seconds))]
    vendors = [
        Vendor(name, 1, {}, about_s=told * each) for name, each in zip(names, seconds, strict=True)
    ]
    backend = SlowLibraries(vendors, dict(zip(names, seconds, strict=True)))
    evaluator = backend.evaluator(folder, limit_s)
    evaluator.deadline = Deadline(limit_s + grace_s, lambda: backend.now_s, goal_s=limit_s)
    baseline = evaluator.baseline()
    share_s = max(LIBRARY_S, LIBRARY_SHARE * limit_s)
    assert backend.now_s <= share_s + 1e-9
    # Who is known to be slow costs nothing, and of the others one call at most is cut off.
    assert backend.lost <= (not told)
    if seconds[0] <= 0.9 * min(share_s, TIMEOUT_S):
        assert baseline is not None
    known_s = backend.now_s
    assert evaluator.baseline() == baseline
    assert backend.now_s == known_s


@given(library_s=st.floats(0.01, 15.0), left_s=st.floats(2.0, 100.0))
def test_a_slow_library_takes_no_turns_of_finals(
    folder: Path, library_s: float, left_s: float
) -> None:
    backend = SlowLibraries([Vendor("library", 1, {})], {"library": library_s})
    evaluator = backend.evaluator(folder, 100.0)
    assert evaluator.baseline() is not None
    evaluator.deadline = Deadline(left_s, lambda: backend.now_s)
    before_s = backend.library_s
    finals = evaluator.finals([suspect(), suspect(step=2)])
    assert finals.measurements[0].ok
    assert finals.ratios[0] == pytest.approx(library_s / KERNEL_S)
    assert finals.baseline is not None
    assert (backend.library_s > before_s) is (library_s <= LIBRARY_SHARE * left_s)
    assert backend.lost == 0


class LongCalls:
    """A harness, a program and its operands in one, in a time of its own, whose calls are long."""

    problem, contents, first_runs, ceiling = Gemm(8, 8, 8), 2, FirstRuns(), UNKNOWN

    def __init__(self, call_s: float) -> None:
        self.now_s = 0.0
        self._call_s = call_s
        self.judged = 0

    def now(self) -> float:
        return self.now_s

    @contextlib.contextmanager
    def load(self, program: Any, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(
            cases=(), probe=lambda best_s: None, problem=lambda: contextlib.nullcontext(self)
        )

    def turn(self) -> None: ...

    def once(self) -> float:
        self.now_s += self._call_s
        return self._call_s

    settle = again = once

    def series(self, expected_s: float, stop: Stop) -> Series:
        return time_calls(self.once, expected_s, stop, clock=lambda: round(1e9 * self.now_s))

    def judge(self, accuracy: str) -> Verdict:
        self.judged += 1
        return Verdict(0.0)

    judge_last = judge

    def observe(self, series: Series, stop: Stop) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("call_s", [1e-3, 0.2, 2.0, 4.0, 5.0, 6.5])
def test_a_trial_of_long_calls_ends_before_it_is_killed(call_s: float) -> None:
    harness = LongCalls(call_s)
    reply = Trials(cast("Any", harness), Effort())(Evaluate(PROGRAM, "ieee", None, 0.3, 0))
    assert isinstance(reply, Evaluated)
    assert reply.measurement.ok
    assert reply.measurement.median_s == pytest.approx(call_s)
    assert harness.now_s < TIMEOUT_S == Effort().timeout_s
    assert harness.judged == 4  # before it is timed, after, and twice once operands have changed


@pytest.mark.parametrize("left_s", [17.0, 30.0, 100.0])
def test_turns_of_finals_leave_time_to_verify_again(folder: Path, left_s: float) -> None:
    """However long they take beside timed calls."""
    backend = SlowLibraries([], {}, verify_s=2.0, turn_s=1.5)
    finals = backend.evaluator(folder, left_s).finals([suspect(), suspect(step=2)])
    assert [each.outcome for each in finals.measurements] == [Outcome.OK, Outcome.OK]
    assert 1 <= len(finals.rounds[0]) == len(finals.rounds[1])


def test_an_unlimited_run_has_no_share(folder: Path) -> None:
    backend = SlowLibraries([Vendor("library", 1, {})], {"library": 15.0})
    assert backend.evaluator(folder, float("inf")).baseline() is not None


def test_numpy_tells_about_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every content had the reference computed twice, of a function in Python."""
    own = kernel(module("softmax"), "cpu")
    problem = own.problem(**dict.fromkeys(own.operation.sizes, 64))
    seconds = itertools.count(0.0, 8.0)
    monkeypatch.setattr(CpuHarness, "now", lambda harness: next(seconds))
    programs = ProgramCache(tmp_path)
    (vendor,) = CpuHarness(problem, programs, 1, 0).vendors()
    assert vendor.about_s == 2.0
    (vendor,) = CpuHarness(Gemm(8, 8, 8), programs, 1, 0).vendors()
    assert vendor.about_s == 0.0
