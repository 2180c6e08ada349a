"""A program's own list of shapes, tuned as a preset is.

Time goes by the square root of what a shape costs the program: its weight times an estimate of
one product's time. Twice the time for a search brings less than the first half did, and a shape
that takes nine tenths of a program must not leave nothing to the others. Where there are many,
half of it goes to a portfolio for them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import InputError
from autotune.operations.problem import Gemm
from autotune.runtime.shape_list import read_shapes
from autotune.surveying.portfolios import OwnPlan
from autotune.surveying.presets import PresetProblem, TuningPreset
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from autotune.operations.problem import Problem
    from autotune.runtime.shape_list import UsedShape

DEFAULT_SECONDS = 480.0
"""For a whole list, as for a preset."""

TRIALS = 600
"""The most configurations tried for one shape."""

FEW = 12
"""Shapes of a list that is tuned one by one alone, without a portfolio."""

SURVEYED = 64
"""Shapes of a longer one that its portfolio is made with."""

SURVEY_SHARE = 0.5
"""Of the time, what goes to that."""

_BALANCE = 16
"""Operations that processors do, more or less, while a byte comes from memory."""


def preset_of_shapes(
    path: Path,
    *,
    target: str | None = None,
    operation: str = "gemm",
    extra_families: Sequence[Path] = (),
    seconds: float = DEFAULT_SECONDS,
) -> TuningPreset:
    """What `run_preset` tunes for a list of shapes, the costliest first.

    Runs with the same limits go on where the last one ended, though weights have changed since or
    shapes have been added.

    Args:
        path: of the list (`autotune.runtime.shape_list`).
        target: whose shapes are tuned, with those of no target; None takes the only one that the
            list names, or else the best this machine has.
        operation: whose shapes are tuned.
        extra_families: folders of families of the user's own.
        seconds: for all of them, all in.

    Raises:
        InputError: the list cannot be read, has no such shapes, or names several targets.
    """
    shapes = read_shapes(path, operation, extra_families)
    chosen = target or _only_target(path, shapes)
    costs: dict[Problem, float] = {}
    for each in shapes:
        if each.target in ("", chosen):
            cost = each.weight * _work(each.problem)
            costs[each.problem] = costs.get(each.problem, 0.0) + cost
    if not costs:
        listed = sorted({each.target for each in shapes})
        raise InputError(
            f"{path} has shapes of target {' and '.join(listed)} only, got --target {chosen}"
        )
    shares = {problem: math.sqrt(cost) for problem, cost in costs.items()}
    whole = sum(shares.values())
    return TuningPreset(
        name="shapes",
        summary=f"the shapes of {path}",
        target=chosen,
        trials=TRIALS,
        problems=tuple(
            PresetProblem(problem, seconds * share / whole)
            for problem, share in sorted(shares.items(), key=lambda pair: -pair[1])
        ),
        survey=_survey(costs),
        operation=operation,
        grows=True,
    )


def _survey(costs: Mapping[Problem, float]) -> OwnPlan | None:
    """A portfolio for the costliest of many products; a few are better tuned one by one."""
    products = {each: math.sqrt(cost) for each, cost in costs.items() if isinstance(each, Gemm)}
    if len(products) <= FEW:
        return None
    most = sorted(products, key=lambda each: -products[each])[:SURVEYED]
    return OwnPlan({each: products[each] for each in most}, SURVEY_SHARE)


def _only_target(path: Path, shapes: Sequence[UsedShape]) -> str:
    named = sorted({each.target for each in shapes if each.target})
    if len(named) > 1:
        raise InputError(
            f"{path} has shapes of targets {' and '.join(named)}: choose one with --target"
        )
    return named[0] if named else make_target(None).name


def _work(problem: Problem) -> float:
    """What one product costs, in operations: those it does, and those that its bytes hold up."""
    return problem.flops + _BALANCE * problem.traffic
