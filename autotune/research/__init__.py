"""Recorded spaces: measurements of whole search spaces, replayed to compare samplers."""

from autotune.research.converting import convert
from autotune.research.formats import open_recording, read_recorded, read_space
from autotune.research.replay import (
    Run,
    Summary,
    replay,
    run_sampler,
    summarise,
)
from autotune.research.scoring import (
    PaperScore,
    expected_random_best,
    isolated,
    paired,
    run_score,
)
from autotune.research.space import Entry, RecordedSpace, Recording
from autotune.research.sweeps import recorded_from_cache

__all__ = [
    "Entry",
    "PaperScore",
    "RecordedSpace",
    "Recording",
    "Run",
    "Summary",
    "convert",
    "expected_random_best",
    "isolated",
    "open_recording",
    "paired",
    "read_recorded",
    "read_space",
    "recorded_from_cache",
    "replay",
    "run_sampler",
    "run_score",
    "summarise",
]
