"""Who is charged with what befalls the process that measures, and kernels that meddle."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from meddler_family import meddler, write_meddlers
from suspect_family import suspect, write_suspects

from autotune.core.file_lock import Turns
from autotune.core.measurement import Measurement, Outcome
from autotune.cpu import CpuEvaluator
from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.measuring import backend
from autotune.measuring.backend import Backend, Prepared
from autotune.measuring.effort import Effort, Finals, Work
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.failure import Failure, FailureKind
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
from autotune.measuring.processes import MARK
from autotune.operations.cases import Case
from autotune.operations.problem import Gemm
from autotune.operations.verification import ProductCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.measuring.evaluator import Evaluator


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
    holds = False
    turns = Turns()

    def __init__(self, said: dict[type, Sequence[Any]]) -> None:
        self.baselines: dict[Any, Any] = {}
        self.asked: list[str] = []
        self.renewed = 0
        self._said = {kind: list(replies) for kind, replies in said.items()}

    def is_ready(self, candidate: Any) -> bool:
        return False

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


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    folder = tmp_path_factory.mktemp("meddlers")
    family = write_meddlers(folder)
    with CpuEvaluator(
        Work(
            Gemm(40, 30, 50, threads=1),
            {family.name: family},
            read_cpu(),
            ProgramCache(folder / "programs"),
            effort=Effort(budget_s=0.02, finals_s=0.4),
            workers=1,
        )
    ) as meddled:
        yield meddled


def started_here() -> int:
    """Processes that workers of this process are, or have started."""
    mark = f"{MARK}={os.getpid()}-".encode()
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            alive = (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            found += alive and mark in (path / "environ").read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("deed", "outcome", "told"),
    [
        # Before, while or after it is timed: how often it is called is the clock's to say.
        ("remembers", Outcome.WRONG_RESULT, r"once ([AB]\[.*\] has|operands had) changed"),
        ("stops", Outcome.WRONG_RESULT, r"once ([AB]\[.*\] has|operands had) changed|unwritten"),
        ("puts_back", Outcome.LAUNCH_FAILED, r"killed by SIGSEGV"),
        ("forges", Outcome.LAUNCH_FAILED, r"sent what is no reply \(a reply to another request"),
        ("rounds_up", Outcome.LAUNCH_FAILED, r"changed the process: rounding mode changed"),
        ("leaves_child", Outcome.LAUNCH_FAILED, r"changed the process: child processes left"),
        pytest.param(
            *("leaves_daemon", Outcome.LAUNCH_FAILED, r"changed the process: child proc"),
            marks=pytest.mark.thorough,
        ),
        ("computes_on", Outcome.LAUNCH_FAILED, r"changed the process: threads left computing"),
        ("at_import", Outcome.COMPILE_FAILED, r"compiler: changed the process: working folder"),
    ],
)
def test_a_deed_costs_its_trial_and_no_other(
    meddled: Evaluator, deed: str, outcome: Outcome, told: str
) -> None:
    measurement = meddled.evaluate(meddler(deed), None)
    assert measurement.outcome is outcome, measurement
    assert re.search(told, measurement.reason), measurement
    assert meddled.evaluate(meddler(), None).ok
    assert started_here() <= 2  # one that measures, one that compiles


def test_who_dies_of_another_is_measured_again(meddled: CpuEvaluator) -> None:
    meddled.backend.renew()  # nothing else has run there
    assert meddled.evaluate(meddler("dies_later"), None).ok
    assert meddled.evaluate(meddler(), None).ok


def test_a_process_that_has_measured_a_lot_is_replaced(
    meddled: CpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddled.backend.renew()
    pids = []
    for _ in range(5):
        assert meddled.evaluate(meddler(), None).ok
        pids.append(meddled.backend.processes.worker.pid)
        monkeypatch.setattr(backend, "RENEW_ANSWERS", 2)
    assert len(set(pids)) == 3


def test_one_finalist_takes_no_other_along(tmp_path: Path) -> None:
    family = write_meddlers(tmp_path)
    with CpuEvaluator(
        Work(
            Gemm(40, 30, 50, threads=1),
            {family.name: family},
            read_cpu(),
            ProgramCache(tmp_path / "programs"),
            effort=Effort(budget_s=0.02, finals_s=0.2),
            workers=1,
        )
    ) as meddled:
        finals = meddled.finals([meddler("dies_later"), meddler()])
    assert list(tmp_path.rglob("*.died"))
    assert all(each.ok for each in finals.measurements), finals


def test_finalists_are_verified_after_their_last_timed_call(meddled: Evaluator) -> None:
    late = meddler("errs_when_fresh")
    assert meddled.evaluate(late, None).ok  # it has not met other operands so far
    finals = meddled.finals([late, meddler()])
    wrong, right = finals.measurements
    assert wrong.outcome is Outcome.WRONG_RESULT
    # In them, where the clock leaves time to change an element between two batches of calls.
    assert re.search(r"error is .*, (in|after) the finals", wrong.reason), wrong
    assert wrong.median_s is None
    assert finals.ratios[0] is None
    assert right.ok
    assert right.details["checked_calls"] >= 2


def test_one_call_of_seven_is_found_where_calls_are_checked(meddled: Evaluator) -> None:
    (measurement,) = meddled.finals([meddler("errs", period=7)]).measurements
    assert measurement.outcome is Outcome.WRONG_RESULT, measurement


@pytest.mark.parametrize(("wrong", "checked"), [(1 / 4, 3), (1 / 20, 10), (1 / 100, 30)])
def test_the_chance_of_finding_a_rare_error_is_as_documented(wrong: float, checked: int) -> None:
    """An element that is wrong in a fraction of the calls is found with 1 - (1 - p)**q."""
    rng = np.random.default_rng(7)
    check = ProductCheck(Case(3, 4, 5), Gemm(1, 1, 1), rng, others=("normal",))

    def found() -> bool:
        for _ in range(checked):
            check.prepare()
            np.matmul(check.a, check.b, out=check.c)
            if rng.random() < wrong:
                check.c[rng.integers(3), rng.integers(5)] += 0.5
            if not check.judge_again("ieee").right:
                return True
        return False

    runs = 400
    expected = 1 - (1 - wrong) ** checked
    spread = (expected * (1 - expected) / runs) ** 0.5
    assert abs(sum(found() for _ in range(runs)) / runs - expected) < 5 * spread
