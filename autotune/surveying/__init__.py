"""A preset of many problems: the device surveyed first, then tuned problem by problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.surveying.preset_run import run_preset as run_preset
    from autotune.surveying.presets import preset_of_shapes as preset_of_shapes

_HOMES = {
    "preset_of_shapes": "presets",
    "run_preset": "preset_run",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
