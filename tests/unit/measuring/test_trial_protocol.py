"""The trial protocol before programs whose every call takes what the test says."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.core.measurement import Outcome
from autotune.measuring.evaluator import Effort
from autotune.measuring.messages import Evaluate, Evaluated, Program, Series
from autotune.measuring.plausibility import UNKNOWN
from autotune.measuring.rig import Pace, Rig
from autotune.measuring.trial import BRIEF_S, Trials
from autotune.operations.problem import Gemm
from autotune.operations.verification import Verdict

PROGRAM = cast(Program, None)  # the rig below looks at none


class Steady:
    """A rig, a loaded program and its operands in one: the first call takes longer than the rest.

    Args:
        first_s: seconds of the first call.
        usual_s: of every other.
    """

    pace = Pace(runs=3, long_runs=2, hopeless=8.0)
    problem, ceiling = Gemm(1, 1, 1), UNKNOWN
    contents = 1

    def __init__(self, first_s: float, usual_s: float) -> None:
        self._first_s, self._usual_s = first_s, usual_s
        self.calls = 0

    def now(self) -> float:
        return 0.0

    @contextlib.contextmanager
    def load(self, program: Any, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(cases=(), probe=self.probe, problem=self.placed)

    @contextlib.contextmanager
    def placed(self) -> Iterator[Steady]:
        yield self

    def probe(self, best_s: float | None) -> None:
        return None

    def turn(self) -> None:
        pass

    def once(self) -> float:
        self.calls += 1
        return self._first_s if self.calls == 1 else self._usual_s

    def again(self) -> float:
        return self.once()

    settle = again

    def series(
        self,
        expected_s: float,
        budget_s: float,
        *,
        deadline_s: float,
        enough: Callable[[float], bool],
    ) -> Series:
        return Series(self._usual_s, (self._usual_s, self._usual_s), 100)

    def judge(self, accuracy: str) -> Verdict:
        return Verdict(error=0.0)

    judge_last = judge

    def observe(self, series: Series, budget_s: float) -> dict[str, float | int | str]:
        return {}


def evaluated(rig: Steady, best_s: float | None) -> Evaluated:
    reply = Trials(cast(Rig, rig), Effort())(Evaluate(PROGRAM, "ieee", best_s, 0.3))
    assert isinstance(reply, Evaluated)
    return reply


@pytest.mark.parametrize("first_s", [6e-6, 3e-4, 0.9 * BRIEF_S])
def test_a_brief_first_call_alone_abandons_nobody(first_s: float) -> None:
    """Memory is allocated and code is loaded in it, which says nothing of the kernel."""
    told = evaluated(Steady(first_s, 6e-6), best_s=6e-6).measurement
    assert told.outcome is Outcome.OK
    assert told.median_s == 6e-6


def test_a_slow_program_is_abandoned_by_what_follows_its_first_call() -> None:
    told = evaluated(Steady(3e-4, 2e-5), best_s=6e-6).measurement
    assert told.outcome is Outcome.ABANDONED
    assert (told.median_s, told.repeats) == (2e-5, Steady.pace.runs)


def test_a_long_first_call_settles_a_hopeless_program() -> None:
    rig = Steady(2 * BRIEF_S, 2 * BRIEF_S)
    told = evaluated(rig, best_s=BRIEF_S / 100).measurement
    assert (told.outcome, told.repeats, rig.calls) == (Outcome.ABANDONED, 1, 1)


def test_without_a_best_nobody_is_abandoned() -> None:
    assert evaluated(Steady(1.0, 1.0), best_s=None).measurement.outcome is Outcome.OK
    assert evaluated(Steady(1.0, 1.0), best_s=math.inf).measurement.outcome is Outcome.OK
