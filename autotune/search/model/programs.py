"""Which configurations are the same program, whose parameters differ at the call alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.search.model.features import Points

_COMPILING = 8.0
"""What a trial costs whose program has to be compiled, where one costs 1 that has been."""


def log_costs(points: Points, begun: Points, compiled: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Logarithm of what a trial of each point costs, given which trials have begun.

    Improvement is to be had per second, not per trial (Snoek, Larochelle and Adams, "Practical
    Bayesian optimization of machine learning algorithms", 2012).

    Args:
        points: the candidates.
        begun: what was run or is running; its programs are compiled.
        compiled: see `FeatureMap.compiled`.

    Returns:
        Shape (points,).
    """
    known = np.isin(_programs(points, compiled), _programs(begun, compiled))
    return np.where(known, np.float32(0), np.float32(math.log(_COMPILING)))


def _programs(points: Points, compiled: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """A number for each point, equal for those that are the same program."""
    levels = points.levels[compiled].astype(np.uint64)
    # Sums of random multiples, modulo 2^64: two programs share one by an accident of 1 in 10^19.
    weights = np.random.default_rng(0).integers(2**64, size=len(levels), dtype=np.uint64)
    return np.asarray((levels * weights[:, None]).sum(axis=0, dtype=np.uint64))
