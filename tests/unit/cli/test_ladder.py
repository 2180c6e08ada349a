"""Which kernels of a ladder take turns with the vendor library, and what the rows say."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from autotune import Gemm
from autotune.cli.bench_command import NEAR, measure, rungs
from autotune.core.configuration import Candidate, Configuration
from autotune.core.interrupt import STOP_S
from autotune.core.measurement import Measurement, Outcome
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.measuring.evaluator import Baseline, Finals
from autotune.targets.families import load_families

PROBLEM = Gemm(64, 64, 64)
VENDOR = Baseline("vendor 1.0", 1e-3, (1e-3, 1e-3), 1, {})


class ScriptedEvaluator:
    """Medians by configuration; those of the finals are half as long."""

    def __init__(self, medians: dict[int, float | None], baseline: Baseline | None) -> None:
        self._medians = medians
        self._baseline = baseline
        self.finalists: list[int] = []

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        pass

    def baseline(self) -> Baseline | None:
        return self._baseline

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        median = self._medians[candidate.configuration["x"]]
        if median is None:
            return Measurement(Outcome.REJECTED, reason="too large")
        return Measurement(Outcome.OK, median, (median, median), 5, 0.1)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        self.finalists = [candidate.configuration["x"] for candidate in candidates]
        medians = [self._medians[x] / 2 for x in self.finalists]
        return Finals(
            tuple(Measurement(Outcome.OK, median, (median, median), 9, 0.1) for median in medians),
            tuple(None if self._baseline is None else 7.0 for _ in medians),
            self._baseline,
        )


def contestants(count: int) -> list[tuple[str, Candidate]]:
    return [(f"k{x}", Candidate("f", Configuration({"x": x}))) for x in range(count)]


def test_near_kernels_take_turns_and_far_ones_are_measured_alone() -> None:
    evaluator = ScriptedEvaluator({0: 0.9e-3, 1: NEAR * 1e-3, 2: NEAR * 2e-3, 3: None}, VENDOR)
    notes: list[str] = []
    rows = measure(evaluator, PROBLEM, contestants(4), notes.append)
    # The yardstick is the fastest of all.
    assert evaluator.finalists == [0]
    assert [row.kernel for row in rows] == ["vendor 1.0", "k0", "k1", "k2", "k3"]
    assert [row.median_s for row in rows] == [1e-3, 0.45e-3, NEAR * 1e-3, NEAR * 2e-3, None]
    assert [row.ratio_to_vendor for row in rows] == [1.0, 7.0, 1 / NEAR, 1 / NEAR / 2, None]
    assert rows[4].reason == "too large"
    assert len(notes) == 4
    assert "too large" in notes[3]


def test_without_a_vendor_library_the_best_is_the_yardstick() -> None:
    evaluator = ScriptedEvaluator({0: 1.0, 1: 2.0, 2: 5.0}, None)
    rows = measure(evaluator, PROBLEM, contestants(3), lambda line: None)
    assert evaluator.finalists == [0, 1]
    assert [row.median_s for row in rows] == [0.5, 1.0, 5.0]
    assert all(row.ratio_to_vendor is None for row in rows)


def test_where_nothing_runs_there_are_no_finals() -> None:
    evaluator = ScriptedEvaluator({0: None}, VENDOR)
    rows = measure(evaluator, PROBLEM, contestants(1), lambda line: None)
    assert evaluator.finalists == []
    assert [row.median_s for row in rows] == [1e-3, None]


def test_rungs_are_all_presets_and_defaults_each_once() -> None:
    families = load_families(target="cuda")
    found = list(rungs(families, Gemm(1024, 1024, 1024), find_gpu("h200").limits))
    names = [name for name, _ in found]
    assert len(names) == len(set(names))
    for family in families.values():
        assert {f"{family.name} ({preset})" for preset in family.presets} <= set(names)
    # Two rungs may be one configuration under two names; a default is no further rung then.
    defaults = [candidate for name, candidate in found if name.endswith("(default)")]
    presets = [candidate for name, candidate in found if not name.endswith("(default)")]
    assert not set(defaults) & set(presets)


def test_a_request_to_stop_leaves_rows_of_what_was_measured() -> None:
    evaluator = ScriptedEvaluator({0: 1e-3, 1: 1e-3, 2: 1e-3}, VENDOR)
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        if len(notes) == 2:
            signal.raise_signal(signal.SIGINT)

    rows = measure(evaluator, PROBLEM, contestants(3), note)
    assert [row.kernel for row in rows] == ["vendor 1.0", "k0", "k1"]
    assert evaluator.finalists == [0, 1]
    assert evaluator.deadline.left_s <= STOP_S
