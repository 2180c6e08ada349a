"""What a search tries first: the default family's points; the others in later batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stopwatch import Stopwatch

from autotune.cpu.identity import read_cpu
from autotune.operations.problem import Gemm
from autotune.tuning.tuner import tune

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.configuration import Candidate

BATCH = 4


def batches(cache: Path, monkeypatch: pytest.MonkeyPatch, trials: int) -> list[list[Candidate]]:
    """What a search of a large product has compiled together, in order."""
    from autotune.cpu.target import CpuTarget

    stopwatch = Stopwatch(read_cpu(), batch=BATCH)
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
        "goto", "blocked", "divide", "loops", "packed", "simd", "skinny", "unpacked", "unrolled",
    }  # fmt: skip


def test_what_was_tuned_before_is_tried_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = batches(tmp_path, monkeypatch, 1)
    assert first[0].configuration["ty"] == 12
    record = tune(Gemm(1000, 1000, 1000, threads=1), target="cpu", trials=3, cache=tmp_path).best
    again, *_ = batches(tmp_path, monkeypatch, BATCH)
    assert record.candidate in again[:2]
