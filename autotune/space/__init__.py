"""Search spaces: parameters, restrictions, and the configurations that meet them."""

from __future__ import annotations

from autotune.space.columns import UndefinedError
from autotune.space.expression import Expression
from autotune.space.parameter import FunnelStep, Rejection, Restriction, TunableParameter
from autotune.space.search_space import SearchSpace
from autotune.space.union import SpaceUnion

__all__ = [
    "Expression",
    "FunnelStep",
    "Rejection",
    "Restriction",
    "SearchSpace",
    "SpaceUnion",
    "TunableParameter",
    "UndefinedError",
]
