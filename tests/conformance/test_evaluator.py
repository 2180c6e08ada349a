"""What every evaluator must do, whatever the device: a subclass of `EvaluatorConformance` each."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import pytest
from meddler_family import meddler, write_meddlers
from suspect_family import suspect, write_suspects

from autotune.core.deadline import Deadline
from autotune.core.device import Device
from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Outcome
from autotune.cpu import CpuEvaluator
from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort, Stage, Work, silent
from autotune.measuring.evaluator import Evaluator
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.core.configuration import Candidate
    from autotune.core.measurement import Measurement

FAULTS = {
    "invalid": Outcome.REJECTED,
    "does not compile": Outcome.COMPILE_FAILED,
    "raises": Outcome.LAUNCH_FAILED,
    "crashes": Outcome.LAUNCH_FAILED,
    "hangs": Outcome.TIMEOUT,
    "wrong": Outcome.WRONG_RESULT,
    "wrong at ragged sizes": Outcome.WRONG_RESULT,
    "writes part of C": Outcome.WRONG_RESULT,
    "writes past C": Outcome.WRONG_RESULT,
    "writes before C": Outcome.WRONG_RESULT,
    "reads C when beta is 0": Outcome.WRONG_RESULT,
    "modifies A": Outcome.WRONG_RESULT,
    "stops computing": Outcome.WRONG_RESULT,
}


class EvaluatorConformance:
    """Subclasses give the fixtures `evaluator` and `candidates`."""

    @pytest.fixture
    def evaluator(self) -> Evaluator:
        """One for a small problem, with little effort; shared by the tests of the class."""
        raise NotImplementedError

    @pytest.fixture
    def candidates(self) -> Mapping[str, Candidate]:
        """One for every key of `FAULTS`, and two right ones, "right" and "right too"."""
        raise NotImplementedError

    def check_timed(self, measurement: Measurement) -> None:
        assert measurement.ok, measurement
        assert measurement.reason == ""
        assert measurement.repeats >= 1
        assert measurement.median_s is not None
        assert measurement.interval_s is not None
        low, high = measurement.interval_s
        assert 0 < low <= measurement.median_s <= high < math.inf
        assert measurement.error is not None
        assert 0 <= measurement.error <= 1

    def test_has_a_device(self, evaluator: Evaluator) -> None:
        assert isinstance(evaluator.device, Device)

    def test_a_right_candidate_is_timed(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        self.check_timed(evaluator.evaluate(candidates["right"], None))
        self.check_timed(evaluator.evaluate(candidates["right too"], 1e9))

    def test_raw_samples_are_kept_where_they_are_asked_for(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        assert evaluator.evaluate(candidates["right"], None).samples == ()
        for most in (4, 10_000):
            evaluator.samples = most
            try:
                measurement = evaluator.evaluate(candidates["right"], None)
            finally:
                evaluator.samples = 0
            self.check_timed(measurement)
            assert measurement.median_s is not None
            assert 1 <= len(measurement.samples) <= min(most, measurement.repeats)
        # All of them: the median is theirs.
        assert median(measurement.samples) == pytest.approx(measurement.median_s, rel=1e-6)

    def test_a_slow_candidate_is_abandoned(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        measurement = evaluator.evaluate(candidates["right"], 1e-12)
        assert measurement.outcome is Outcome.ABANDONED
        assert measurement.median_s is not None
        assert measurement.median_s > 1e-12
        assert measurement.error is not None
        assert "times the best" in measurement.reason

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(("fault", "outcome"), FAULTS.items())
    def test_a_fault_is_an_outcome_and_the_study_goes_on(
        self,
        evaluator: Evaluator,
        candidates: Mapping[str, Candidate],
        fault: str,
        outcome: Outcome,
    ) -> None:
        measurement = evaluator.evaluate(candidates[fault], None)
        assert measurement.outcome is outcome, measurement
        assert measurement.median_s is None
        assert measurement.reason
        assert "\n" not in measurement.reason
        assert evaluator.evaluate(candidates["right"], None).ok

    def test_prepare_takes_anything(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        evaluator.prepare([])
        some = ("right", "invalid", "does not compile", "crashes", "right too")
        evaluator.prepare([candidates[name] for name in some])
        evaluator.prepare([candidates["right"], candidates["right"]])

    def test_the_baseline_is_measured_once(self, evaluator: Evaluator) -> None:
        baseline = evaluator.baseline()
        assert baseline is not None
        assert baseline.name
        assert baseline.threads >= 1
        assert 0 < baseline.interval_s[0] <= baseline.median_s <= baseline.interval_s[1]
        assert evaluator.baseline() == baseline

    def test_a_second_look_at_the_baseline_keeps_the_faster_time(
        self, evaluator: Evaluator
    ) -> None:
        baseline = evaluator.baseline()
        assert baseline is not None
        again = evaluator.check_baseline()
        assert again is not None
        assert again.name == baseline.name
        assert again.median_s <= baseline.median_s
        assert evaluator.baseline() == again

    def test_finals_keep_the_order_and_survive_faults(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        names = ["crashes", "right", "wrong", "right too", "invalid"]
        finals = evaluator.finals([candidates[name] for name in names])
        assert len(finals.measurements) == len(finals.ratios) == len(names)
        for name, measurement, ratio in zip(
            names, finals.measurements, finals.ratios, strict=True
        ):
            if name.startswith("right"):
                self.check_timed(measurement)
                assert ratio is not None
                assert 0 < ratio < math.inf
            else:
                assert measurement.outcome is FAULTS[name]
                assert ratio is None
        assert finals.baseline is not None

    def test_the_end_of_a_run_is_said_and_the_next_run_goes_on(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        evaluator.deadline = Deadline(0.0)
        with pytest.raises(OutOfTimeError):
            evaluator.evaluate(candidates["right"], None)
        with pytest.raises(OutOfTimeError):
            evaluator.finals([candidates["right"]])
        evaluator.deadline = Deadline()
        self.check_timed(evaluator.evaluate(candidates["right"], None))

    def test_finals_are_reported_round_by_round(
        self, evaluator: Evaluator, candidates: Mapping[str, Candidate]
    ) -> None:
        heard: list[Stage] = []
        evaluator.report = heard.append
        evaluator.finals([candidates["right"]])
        evaluator.report = silent
        rounds = [stage.step for stage in heard if stage.name == "finals"]
        assert rounds == list(range(1, len(rounds) + 1))
        assert len(rounds) >= 1
        assert evaluator.finals_s > 0

    def test_finals_of_nothing(self, evaluator: Evaluator) -> None:
        finals = evaluator.finals([])
        assert finals.measurements == finals.ratios == ()


@pytest.mark.slow
class TestCpuEvaluator(EvaluatorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
        folder = tmp_path_factory.mktemp("suspects")
        family = write_suspects(folder)
        with CpuEvaluator(
            Work(
                Gemm(40, 30, 50),
                {family.name: family, "meddler": write_meddlers(folder)},
                read_cpu(),
                ProgramCache(folder / "programs"),
                effort=Effort(budget_s=0.02, timeout_s=15.0, finals_s=0.2),
                workers=2,
            )
        ) as evaluator:
            yield evaluator

    @pytest.fixture
    def candidates(self) -> Mapping[str, Candidate]:
        return {
            "right": suspect(),
            "right too": suspect(step=2),
            "invalid": suspect(step=1000),
            "does not compile": suspect("does_not_compile"),
            "raises": suspect("raises"),
            "crashes": suspect("crashes"),
            "hangs": suspect("hangs"),
            "wrong": suspect("wrong"),
            "wrong at ragged sizes": suspect("ragged"),
            "writes part of C": suspect("partial"),
            "writes past C": suspect("overrun"),
            "writes before C": suspect("underrun"),
            "reads C when beta is 0": suspect("reads_c"),
            "modifies A": suspect("modifies_a"),
            "stops computing": meddler("stops"),
        }
