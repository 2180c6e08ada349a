"""Who is charged with what befalls the process that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from suspect_family import suspect, write_suspects

from autotune.core.measurement import Measurement, Outcome
from autotune.cpu.identity import read_cpu
from autotune.measuring.backend import Backend, Prepared
from autotune.measuring.evaluator import Effort, Evaluator, Finals
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Redraw,
    Series,
    Vendor,
    Visit,
)
from autotune.measuring.processes import Failure, FailureKind
from autotune.operations.problem import Gemm

DIED = Failure(FailureKind.DIED, "killed by SIGSEGV", innocent=True)
GUILTY = Failure(FailureKind.DIED, "killed by SIGSEGV")
DAMAGED = Evaluated(
    Measurement(Outcome.WRONG_RESULT, reason="memory was damaged"), lost=True, blameless=True
)
RIGHT: dict[type, Any] = {
    Evaluate: Evaluated(Measurement(Outcome.OK, 1e-3, (1e-3, 1e-3), 5, 0.1)),
    Visit: Series(1e-3, (1e-3, 1e-3), 5),
    Redraw: None,
    Confirm: Evaluated(Measurement(Outcome.OK, error=0.2, details={"checked_calls": 2})),
    DescribeBaseline: (),
}


class Scripted:
    """Answers as it is told to, then rightly.

    Args:
        said: what is said first to requests of a kind.
    """

    batch = 1
    compiles_ahead = False
    start_s = 0.0
    observes: frozenset[str] = frozenset()

    def __init__(self, said: dict[type, Sequence[Any]]) -> None:
        self.baselines: dict[Any, Any] = {}
        self.asked: list[str] = []
        self.renewed = 0
        self._said = {kind: list(replies) for kind, replies in said.items()}

    def prepare(self, *given: Any) -> None:
        pass

    def prepared(self, candidate: Any, *given: Any) -> Prepared:
        return Prepared(Vendor(str(candidate), 1, {}))

    def ask(self, request: Any, *given: Any) -> Any:
        self.asked.append(type(request).__name__)
        waiting = self._said.get(type(request))
        return waiting.pop(0) if waiting else RIGHT[type(request)]

    def renew(self) -> None:
        self.renewed += 1

    def begin_finals(self, run: Any) -> None:
        pass

    def close(self) -> None:
        pass


def evaluator(folder: Path, backend: Scripted) -> Evaluator:
    family = write_suspects(folder)
    effort = Effort(budget_s=0.01, finals_s=0.01)
    return Evaluator(
        Gemm(8, 8, 8), {family.name: family}, read_cpu(), cast("Backend", backend), effort, 0
    )


def finals(folder: Path, **said: Sequence[Any]) -> tuple[Finals, Scripted]:
    kinds = {each.__name__: each for each in RIGHT}
    backend = Scripted({kinds[name]: replies for name, replies in said.items()})
    return evaluator(folder, backend).finals([suspect(), suspect(step=2)]), backend


@pytest.mark.parametrize("first", [DIED, DAMAGED])
@pytest.mark.parametrize("kind", [Evaluate, Visit, Redraw, Confirm, DescribeBaseline])
def test_what_another_may_have_done_is_asked_again(
    kind: type, first: object, tmp_path: Path
) -> None:
    held, _ = finals(tmp_path, **{kind.__name__: [first]})
    assert all(each.ok for each in held.measurements), held


@pytest.mark.parametrize("kind", [Evaluate, Visit, Confirm])
def test_who_does_it_again_in_a_fresh_process_is_charged_alone(kind: type, tmp_path: Path) -> None:
    held, _ = finals(tmp_path, **{kind.__name__: [DIED, GUILTY]})
    outcomes = [each.outcome for each in held.measurements]
    assert outcomes == [Outcome.LAUNCH_FAILED, Outcome.OK]


def test_a_fresh_process_has_other_operands_drawn_before_it_confirms(tmp_path: Path) -> None:
    _, backend = finals(tmp_path, Confirm=[DIED])
    assert backend.asked[-6:] == ["Redraw", "Confirm"] * 3


@pytest.mark.parametrize("said", [None, (), 7, "ok", RIGHT[Evaluate], Series(-1.0, (0.0, 0.0), 0)])
def test_an_answer_to_something_else_is_a_lost_process(said: Any, tmp_path: Path) -> None:
    held, backend = finals(tmp_path, Visit=[said, said])
    first, second = held.measurements
    assert first.outcome is Outcome.LAUNCH_FAILED
    assert "answered Visit with" in first.reason
    assert second.ok
    assert backend.renewed == 2


def test_a_binary_is_measured_once_for_all_candidates_and_again_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = (
        Evaluated(Measurement(Outcome.OK, seconds, (seconds, seconds), 5, 0.1))
        for seconds in (2e-3, 1e-3)
    )
    backend = Scripted({Evaluate: [slow, fast]})
    digests = {1: "one", 2: "one", 3: "another"}
    monkeypatch.setattr(
        backend,
        "prepared",
        lambda candidate, *given: Prepared(
            cast("Any", SimpleNamespace(digest=digests[candidate.configuration["step"]])),
            {"step": candidate.configuration["step"]},
        ),
    )
    measuring = evaluator(tmp_path, backend)
    first, twin, again, other = (
        measuring.evaluate(suspect(step=step), None) for step in (1, 2, 1, 3)
    )
    assert twin == replace(first, details={"step": 2, "same_binary_as": str(suspect(step=1))})
    assert (first.median_s, again.median_s) == (2e-3, 1e-3)
    assert (again.details, other.details) == ({"step": 1}, {"step": 3})
    assert backend.asked == ["Evaluate"] * 3
