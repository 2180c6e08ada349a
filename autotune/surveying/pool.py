"""Programs worth knowing on a device: what a survey measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import SpaceError
from autotune.families.gpu.planning import planner_of
from autotune.model import program_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.serving.target import Target

DRAWN = 300
"""Configurations of a family that a model of the target is asked about, for each problem."""

TAKEN = 3
"""Of those, the programs that are taken."""

ASKED = 16
"""Problems that the model is asked about: they are drawn at random, and others are like them."""


def worth_knowing(
    problems: Sequence[Problem],
    target: Target,
    device: Device,
    families: Mapping[str, KernelFamily],
    seed: int,
) -> list[Candidate]:
    """Every family's own points, then what the target's model favours for the problems.

    Programs come once each, whatever their free parameters are. Without a model there are the
    families' own points alone: what is drawn at random is not worth its compiler. Families without
    [work] are passed over.
    """
    rng = np.random.default_rng(seed)
    found: dict[Candidate, None] = {}
    for family in families.values():
        if family.work is None:
            continue
        for configuration in _own(family, problems, device):
            found[Candidate(family.name, program_of(family, configuration))] = None
    for problem in problems[:ASKED]:
        for family in families.values():
            if family.work is not None and family.unsupported(problem) is None:
                for configuration in _favoured(family, problem, target, device, rng):
                    found[Candidate(family.name, program_of(family, configuration))] = None
    return list(found)


def _own(
    family: KernelFamily, problems: Sequence[Problem], device: Device
) -> Iterator[Configuration]:
    """Presets; the defaults for the problems where there are none, or none that is valid."""
    able = [problem for problem in problems if family.unsupported(problem) is None]
    presets = list(_placed_presets(family, able, device))
    yield from presets
    if not presets:
        for problem in able:
            if family.space(problem, device.limits).size:
                yield family.default(problem, device.limits)


def _placed_presets(
    family: KernelFamily, problems: Sequence[Problem], device: Device
) -> Iterator[Configuration]:
    """The presets that are valid for a problem, as declared or moved.

    What a preset leaves open may be valid on no such device: threads it has not, say. Then it is
    moved to what each problem allows.
    """
    moved = []
    for preset in family.presets.values():
        if any(_valid(family, preset.configuration, problem, device) for problem in problems):
            yield preset.configuration
        else:
            moved.append(preset)
    if not moved:
        return
    for problem in problems:
        space = family.space(problem, device.limits)
        for preset in moved if space.size else ():
            placed = preset.placed(space)
            if space.rejection(placed) is None:
                yield placed


def _valid(
    family: KernelFamily, configuration: Configuration, problem: Problem, device: Device
) -> bool:
    try:
        return planner_of(family, configuration, problem.dtype, device.limits).valid(problem)
    except SpaceError:
        return False


def _favoured(
    family: KernelFamily,
    problem: Problem,
    target: Target,
    device: Device,
    rng: np.random.Generator,
) -> list[Configuration]:
    """The programs that the target's model expects to be fastest; none without a model."""
    model = target.estimates.model(family, problem, device)
    if model is None or not (space := family.space(problem, device.limits)).size:
        return []
    drawn = [space[int(row)] for row in space.sample(min(DRAWN, space.size), rng)]
    columns = {
        name: np.array([configuration[name] for configuration in drawn]) for name in drawn[0]
    }
    expected = model(columns)
    order = np.argsort(np.where(np.isnan(expected), np.inf, expected), kind="stable")
    programs = dict.fromkeys(program_of(family, drawn[row]) for row in order.tolist())
    return list(programs)[:TAKEN]
