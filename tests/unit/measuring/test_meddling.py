"""Kernels that are right when they are first verified and not later, or that leave traces."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from meddler_family import meddler, write_meddlers

from autotune.core.measurement import Outcome
from autotune.cpu import CpuEvaluator
from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.measuring import backend
from autotune.measuring.effort import Work
from autotune.measuring.evaluator import Effort
from autotune.measuring.processes import MARK
from autotune.operations.cases import Case
from autotune.operations.problem import Gemm
from autotune.operations.verification import ProductCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.measuring.evaluator import Evaluator


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
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
    ) as evaluator:
        yield evaluator


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
        ("leaves_daemon", Outcome.LAUNCH_FAILED, r"changed the process: child processes left"),
        ("computes_on", Outcome.LAUNCH_FAILED, r"changed the process: threads left computing"),
        ("at_import", Outcome.COMPILE_FAILED, r"compiler: changed the process: working folder"),
    ],
)
def test_a_deed_costs_its_trial_and_no_other(
    evaluator: Evaluator, deed: str, outcome: Outcome, told: str
) -> None:
    measurement = evaluator.evaluate(meddler(deed), None)
    assert measurement.outcome is outcome, measurement
    assert re.search(told, measurement.reason), measurement
    assert evaluator.evaluate(meddler(), None).ok
    assert started_here() <= 2  # one that measures, one that compiles


def test_who_dies_of_another_is_measured_again(evaluator: CpuEvaluator) -> None:
    evaluator.backend.renew()  # nothing else has run there
    assert evaluator.evaluate(meddler("dies_later"), None).ok
    assert evaluator.evaluate(meddler(), None).ok


def test_a_process_that_has_measured_a_lot_is_replaced(
    evaluator: CpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator.backend.renew()
    pids = []
    for _ in range(5):
        assert evaluator.evaluate(meddler(), None).ok
        pids.append(evaluator.backend.processes.worker.pid)
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
    ) as evaluator:
        finals = evaluator.finals([meddler("dies_later"), meddler()])
    assert list(tmp_path.rglob("*.died"))
    assert all(each.ok for each in finals.measurements), finals


def test_finalists_are_verified_after_their_last_timed_call(evaluator: Evaluator) -> None:
    late = meddler("errs_when_fresh")
    assert evaluator.evaluate(late, None).ok  # it has not met other operands so far
    finals = evaluator.finals([late, meddler()])
    wrong, right = finals.measurements
    assert wrong.outcome is Outcome.WRONG_RESULT
    # In them, where the clock leaves time to change an element between two batches of calls.
    assert re.search(r"error is .*, (in|after) the finals", wrong.reason), wrong
    assert wrong.median_s is None
    assert finals.ratios[0] is None
    assert right.ok
    assert right.details["checked_calls"] >= 2


def test_one_call_of_seven_is_found_where_calls_are_checked(evaluator: Evaluator) -> None:
    (measurement,) = evaluator.finals([meddler("errs", period=7)]).measurements
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
