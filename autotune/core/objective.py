"""Objectives: what makes one kernel better than another.

An objective turns the timed calls of a kernel, and what was observed beside them, into a score.
One of another package is given to `Effort` as an object, or found by its name as an entry point of
group ``autotune.objectives``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Literal

from autotune.core.errors import InputError

if TYPE_CHECKING:
    from autotune.core.measurement import Measurement, Series


@dataclass(frozen=True, slots=True)
class Objective:
    """A positive number for every kernel, and which of two is better.

    Attributes:
        name: as it is stored with a measurement.
        unit: of the score; empty for a ratio.
        of: the score of a series of calls and what was observed. Observed are always "flops", the
            textbook operations of a call, and, of verified kernels, "error"; on targets that can
            observe it, "joules" of a call. A function of a module, since it is pickled.
        better: whether lower or higher scores are.
        needs: the observation without which there is no score; empty where there is none.
        follows_time: whether a shorter median of the same problem always is a better score, so
            that slow candidates may be abandoned.
    """

    name: str
    unit: str
    of: Callable[[Series, Mapping[str, float]], float]
    better: Literal["lower", "higher"] = "lower"
    needs: str = ""
    follows_time: bool = False

    def score(self, series: Series, observed: Mapping[str, float]) -> float | None:
        """The score; None where what it needs was not observed."""
        if self.needs and self.needs not in observed:
            return None
        return self.of(series, observed)

    def cost(self, score: float) -> float:
        """The score, or its reciprocal: less is better, and ratios mean the same."""
        if self.better == "lower":
            return score
        return 1 / score if score > 0 else math.inf

    def cost_of(self, measurement: Measurement) -> float | None:
        """Positive cost of a measurement; None where this objective did not score it."""
        score = measurement.score
        if score is None or measurement.objective != self.name:
            return None
        return max(self.cost(score), sys.float_info.min)


def _median(series: Series, observed: Mapping[str, float]) -> float:
    return series.median_s


def _gflops(series: Series, observed: Mapping[str, float]) -> float:
    return observed["flops"] / series.median_s / 1e9


def _joules(series: Series, observed: Mapping[str, float]) -> float:
    return observed["joules"]


def _joule_seconds(series: Series, observed: Mapping[str, float]) -> float:
    return observed["joules"] * series.median_s


def _error(series: Series, observed: Mapping[str, float]) -> float:
    return observed["error"]


TIME = Objective("time", "s", _median, follows_time=True)
ENERGY = Objective("energy", "J", _joules, needs="joules")

OBJECTIVES = {
    objective.name: objective
    for objective in (
        TIME,
        Objective("throughput", "GFLOP/s", _gflops, "higher", follows_time=True),
        ENERGY,
        Objective("energy-delay", "J s", _joule_seconds, needs="joules"),
        Objective("error", "", _error, needs="error"),
    )
}


def objective_named(name: str) -> Objective:
    """The objective of a name.

    Raises:
        InputError: there is none.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    found = metadata.entry_points(group="autotune.objectives")
    if name not in found.names:
        known = ", ".join(sorted({*OBJECTIVES, *found.names}))
        raise InputError(f"objective must be one of {known}, got {name!r}")
    loaded = found[name].load()
    if not isinstance(loaded, Objective) or loaded.name != name:
        raise InputError(f"entry point autotune.objectives {name!r} must be an Objective so named")
    return loaded
