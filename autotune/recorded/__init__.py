"""Recorded spaces: measurements of whole search spaces, replayed to compare samplers."""

from autotune.recorded.formats import read_recorded
from autotune.recorded.replay import Run, replay, run_sampler
from autotune.recorded.score import Summary, expected_random_best, run_score, summarise
from autotune.recorded.space import Entry, RecordedSpace
from autotune.recorded.sweeps import recorded_from_cache

__all__ = [
    "Entry",
    "RecordedSpace",
    "Run",
    "Summary",
    "expected_random_best",
    "read_recorded",
    "recorded_from_cache",
    "replay",
    "run_sampler",
    "run_score",
    "summarise",
]
