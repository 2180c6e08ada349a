"""What a search tries first: the default family's points; the others in later batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pytest

from autotune.evaluators.cpu.identity import read_cpu
from autotune.measurement import Measurement, Outcome
from autotune.problem import Gemm
from autotune.tuner import tune

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.configuration import Candidate
    from autotune.device import Device
    from autotune.evaluators.base import Finals

BATCH = 4


class Stopwatch:
    """An evaluator that finds everything right and equally fast, four at a time."""

    batch = BATCH
    compiles_ahead = False
    finals_s = 0.0

    def __init__(self, device: Device) -> None:
        self.device = device
        self.batches: list[list[Candidate]] = []

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        self.batches.append(list(candidates))

    def is_ready(self, candidate: Candidate) -> bool:
        return True

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        return Measurement(Outcome.OK, 1.0, (1.0, 1.0), 5, 0.1)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        from autotune.evaluators.base import Finals

        measurements = tuple(self.evaluate(each, None) for each in candidates)
        return Finals(measurements, (None,) * len(measurements), None)

    def baseline(self) -> None:
        return None

    def binary(self, candidate: Candidate) -> None:
        return None

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


def batches(cache: Path, monkeypatch: pytest.MonkeyPatch, trials: int) -> list[list[Candidate]]:
    """What a search of a large product has compiled together, in order."""
    from autotune.targets import CpuTarget

    stopwatch = Stopwatch(read_cpu())
    monkeypatch.setattr(CpuTarget, "evaluator", lambda *arguments, **options: stopwatch)
    tune(Gemm(1024, 1024, 1024, threads=1), target="cpu", trials=trials, cache=cache)
    return [batch for batch in stopwatch.batches if batch]


def test_known_points_of_the_default_family_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = batches(tmp_path, monkeypatch, BATCH)
    assert [candidate.family for candidate in first] == ["goto"] * BATCH
    assert len(set(first)) == BATCH


def test_every_other_family_follows_as_half_of_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = batches(tmp_path, monkeypatch, 12 * BATCH)
    families = [{candidate.family for candidate in batch} for batch in found]
    # Points of the sampler's may be of any family, but of these it knows nothing yet.
    seen: set[str] = set()
    for batch in families[:4]:
        assert len(batch - seen - {"goto"}) <= BATCH // 2
        seen |= batch
    assert set.union(*families) == {
        "goto", "blocked", "divide", "loops", "packed", "simd", "unrolled",
    }  # fmt: skip


def test_what_was_tuned_before_is_tried_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = batches(tmp_path, monkeypatch, 1)
    assert first[0].configuration["ty"] == 12
    record = tune(Gemm(1000, 1000, 1000, threads=1), target="cpu", trials=3, cache=tmp_path).best
    again, *_ = batches(tmp_path, monkeypatch, BATCH)
    assert record.candidate in again[:2]
