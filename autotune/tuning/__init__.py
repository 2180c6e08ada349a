"""From a problem to a stored winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.tuning.context import TuningContext as TuningContext
    from autotune.tuning.progress import Progress as Progress
    from autotune.tuning.results import TrialResult as TrialResult
    from autotune.tuning.results import TuneResult as TuneResult
    from autotune.tuning.settings import Run as Run
    from autotune.tuning.tuner import tune as tune

_HOMES = {
    "Progress": "progress",
    "Run": "settings",
    "TrialResult": "results",
    "TuneResult": "results",
    "TuningContext": "context",
    "tune": "tuner",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
