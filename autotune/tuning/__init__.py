"""From a problem to a stored winner: one problem, a preset of many, or a sweep of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.tuning.preset_run import run_preset as run_preset
    from autotune.tuning.progress import Progress as Progress
    from autotune.tuning.shape_preset import preset_of_shapes as preset_of_shapes
    from autotune.tuning.sweeper import SweepResult as SweepResult
    from autotune.tuning.sweeper import sweep as sweep
    from autotune.tuning.trials import TrialResult as TrialResult
    from autotune.tuning.trials import Workplace as Workplace
    from autotune.tuning.tuner import TuneResult as TuneResult
    from autotune.tuning.tuner import tune as tune

_HOMES = {
    "Progress": "progress",
    "SweepResult": "sweeper",
    "TrialResult": "trials",
    "TuneResult": "tuner",
    "Workplace": "trials",
    "preset_of_shapes": "shape_preset",
    "run_preset": "preset_run",
    "sweep": "sweeper",
    "tune": "tuner",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
