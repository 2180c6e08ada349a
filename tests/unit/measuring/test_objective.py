"""Objectives: scores, costs, observations, and one that is added from outside."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from suspect_family import suspect, write_suspects

from autotune.core.errors import InputError
from autotune.core.measurement import Measurement, Outcome, Series
from autotune.core.objective import ENERGY, OBJECTIVES, TIME, Objective, objective_named
from autotune.cpu.energy import PackageEnergy, energy_observer
from autotune.cpu.identity import read_cpu
from autotune.measuring.effort import Effort
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Vendor,
    Visit,
)
from autotune.measuring.rig import EnergyObserver
from autotune.measuring.rounds import conclude
from autotune.operations.problem import Gemm


def _calls_per_joule(series: Series, observed: Mapping[str, float]) -> float:
    return 1 / observed["joules"]


THRIFT = Objective("thrift", "1/J", _calls_per_joule, "higher", needs="joules")


class Meter:
    """A backend whose fast kernel takes the most energy."""

    batch = 1
    compiles_ahead = False
    start_s = 0.0
    observes = frozenset({"joules"})
    times = ((1e-3, 8.0), (2e-3, 2.0))

    def __init__(self) -> None:
        self.baselines: dict[Any, Any] = {}
        self.raced: list[float | None] = []

    def prepare(self, *given: Any) -> None: ...

    def begin_finals(self, run: Any) -> None: ...

    def close(self) -> None: ...

    def prepared(self, candidate: Any, *given: Any) -> Any:
        from autotune.measuring.backend import Prepared

        return Prepared(Vendor(str(candidate.configuration["step"]), 1, {}))

    def ask(self, request: Any, *given: Any) -> Any:
        match request:
            case DescribeBaseline():
                return (Vendor("library", 1, {}),)
            case Confirm():
                return Evaluated(Measurement(Outcome.OK, error=0.2))
            case Evaluate() | Visit():
                where = {"1": 0, "2": 1}.get(request.program.digest, 1)
                median_s, joules = self.times[where]
                if isinstance(request, Visit):
                    return Series(median_s, (median_s, median_s), 3, {"joules": joules})
                self.raced.append(request.best_s)
                return Evaluated(
                    Measurement(
                        Outcome.OK,
                        median_s,
                        (median_s, median_s),
                        3,
                        0.1,
                        details={"joules": joules},
                    )
                )
        return None


def evaluator(folder: Path, objective: Objective, backend: Meter) -> Evaluator:
    family = write_suspects(folder)
    effort = Effort(budget_s=0.01, finals_s=0.01, objective=objective)
    return Evaluator(
        Gemm(8, 8, 8), {family.name: family}, read_cpu(), cast("Any", backend), effort, 0
    )


def test_an_objective_from_outside_scores_trials_and_finals(tmp_path: Path) -> None:
    backend = Meter()
    found = evaluator(tmp_path, THRIFT, backend)
    measurement = found.evaluate(suspect(), best_s=1e-6)
    assert (measurement.objective, measurement.score) == ("thrift", 1 / 8)
    assert backend.raced == [None]  # a slower one may score better
    finals = found.finals([suspect(), suspect(step=2)])
    assert [each.score for each in finals.measurements] == [1 / 8, 1 / 2]
    assert [each.median_s for each in finals.measurements] == [1e-3, 2e-3]
    assert finals.ratios == (0.25, 1.0)
    assert [turn[0] for turn in finals.rounds] == [8.0, 2.0]


def test_time_is_the_objective_unless_another_is_chosen(tmp_path: Path) -> None:
    backend = Meter()
    found = evaluator(tmp_path, TIME, backend)
    measurement = found.evaluate(suspect(), best_s=1e-6)
    assert (measurement.objective, measurement.score) == ("time", 1e-3)
    assert "score" not in measurement.details
    assert backend.raced == [1e-6]
    assert found.finals([suspect(), suspect(step=2)]).ratios == (2.0, 1.0)


def test_the_verified_error_and_throughput_are_scores(tmp_path: Path) -> None:
    by_error = evaluator(tmp_path, OBJECTIVES["error"], Meter()).finals([suspect()])
    assert by_error.measurements[0].score == 0.2
    assert by_error.ratios == (None,)  # nobody verifies the library
    by_speed = evaluator(tmp_path, OBJECTIVES["throughput"], Meter()).evaluate(suspect(), None)
    assert by_speed.score == pytest.approx(2 * 8**3 / 1e-3 / 1e9)


def test_what_a_target_does_not_observe_is_refused(tmp_path: Path) -> None:
    backend = Meter()
    backend.observes = frozenset()  # type: ignore[assignment]
    with pytest.raises(InputError, match="objective 'energy' needs 'joules' observed"):
        evaluator(tmp_path, ENERGY, backend)


def test_costs_are_less_where_scores_are_better() -> None:
    assert TIME.cost(0.5) == 0.5
    assert THRIFT.cost(4.0) == 0.25
    assert THRIFT.cost(0.0) == float("inf")


def test_objectives_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert objective_named("energy") is ENERGY
    with pytest.raises(InputError, match="energy, error, throughput, time"):
        objective_named("beauty")
    point = SimpleNamespace(load=lambda: THRIFT)

    class Points(dict[str, Any]):
        names = frozenset({"thrift"})

    monkeypatch.setattr(
        "autotune.core.objective.metadata.entry_points", lambda group: Points(thrift=point)
    )
    assert objective_named("thrift") is THRIFT


def test_an_effort_with_an_objective_is_pickled() -> None:
    effort = Effort(objective=OBJECTIVES["throughput"])
    assert pickle.loads(pickle.dumps(effort)) == effort


def test_a_finalist_without_a_score_costs_infinitely_much() -> None:
    right = Measurement(Outcome.OK, error=0.1)
    turns = [Series(1e-3, (1e-3, 1e-3), 1)] * 3
    finals = conclude(
        [right], [turns], None, None, score=lambda series, error: None, objective=ENERGY
    )
    assert finals.rounds == ((float("inf"),) * 3,)
    assert finals.measurements[0].score == 1e-3


def test_energy_is_power_over_the_median_call() -> None:
    counters = iter([10.0, 25.0])
    clock = iter([0.0, 5.0])
    observer = EnergyObserver(lambda: next(counters), lambda: next(clock))
    observer.start()
    observer.stop()
    assert observer.read(Series(0.1, (0.1, 0.1), 40)) == {
        "watts": 3.0,
        "joules": pytest.approx(0.3),
    }


def test_counters_of_packages_are_added_and_wrap_around(tmp_path: Path) -> None:
    for name, microjoules in (("intel-rapl:0", 900), ("intel-rapl:1", 5), ("intel-rapl:0:0", 7)):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "energy_uj").write_text(str(microjoules))
        (zone / "max_energy_range_uj").write_text("1000")
    assert energy_observer(tmp_path) is not None
    energy = PackageEnergy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("6")
    assert energy() == pytest.approx(201e-6)
    assert energy_observer(tmp_path / "nowhere") is None
