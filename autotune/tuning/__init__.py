"""From a problem to a stored winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.tuning.progress import Progress as Progress
    from autotune.tuning.trials import TrialResult as TrialResult
    from autotune.tuning.trials import Workplace as Workplace
    from autotune.tuning.tuner import TuneResult as TuneResult
    from autotune.tuning.tuner import tune as tune

_HOMES = {
    "Progress": "progress",
    "TrialResult": "trials",
    "TuneResult": "tuner",
    "Workplace": "trials",
    "tune": "tuner",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
