"""The pruning funnel: from all combinations of values to those that were timed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError
from autotune.core.measurement import Outcome
from autotune.reporting.study import FAILED, UNFINISHED
from autotune.space import SpaceUnion
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.device import DeviceLimits
    from autotune.reporting.study import Study
    from autotune.space import FunnelStep


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits as a study noted them."""

    noted: Mapping[str, int]

    def names(self) -> dict[str, int]:
        return dict(self.noted)


@dataclass(frozen=True, slots=True)
class FamilySpace:
    """How one family's space was pruned.

    Attributes:
        family: its name.
        cartesian: configurations before any restriction.
        steps: the restrictions, in order, and what each leaves.
        valid: configurations that meet them all.
    """

    family: str
    cartesian: int
    steps: tuple[FunnelStep, ...]
    valid: int


@dataclass(frozen=True, slots=True)
class Funnel:
    """What was left at each stage.

    Attributes:
        stages: what it is, and how many configurations.
        spaces: how restrictions pruned each family's space; none where that is not known.
        note: why not, or what is to be known of the numbers.
    """

    stages: tuple[tuple[str, int], ...]
    spaces: tuple[FamilySpace, ...]
    note: str


def funnel_of(study: Study, extra_families: tuple[Path, ...] = ()) -> Funnel:
    """The funnel of a study; its first stages only where its space can be built again."""
    spaces, note = _spaces(study, extra_families)
    stages = []
    if spaces:
        stages = [
            ("all combinations of values", sum(each.cartesian for each in spaces)),
            ("valid on the device", sum(each.valid for each in spaces)),
        ]
    counts = study.counts
    left = len(study.trials)
    stages.append(("tried", left))
    for words, outcomes in _STAGES:
        left -= sum(counts.get(outcome, 0) for outcome in outcomes)
        stages.append((words, left))
    return Funnel(tuple(stages), spaces, note)


_STAGES = (
    ("ended", (UNFINISHED,)),
    ("compiled", (Outcome.COMPILE_FAILED,)),
    ("within limits as compiled", (Outcome.REJECTED,)),
    ("ran", (Outcome.LAUNCH_FAILED, Outcome.TIMEOUT, FAILED)),
    ("right", (Outcome.WRONG_RESULT, Outcome.IMPLAUSIBLE)),
    ("timed to the end", (Outcome.ABANDONED,)),
)


def _spaces(study: Study, extra: tuple[Path, ...]) -> tuple[tuple[FamilySpace, ...], str]:
    """How the spaces of its families are pruned, and what is to be known of that."""
    problem = study.problem
    if problem is None or not study.target or not study.families:
        return (), "How the space was pruned is not recorded with these measurements."
    try:
        found = load_families(target=study.target, operation=problem.operation, extra=extra)
        families = [found[name] for name in study.families]
        if (limits := _limits(study)) is None:
            return (), "The limits of the device are not recorded: its space cannot be counted."
        spaces = {family.name: family.space(problem, limits) for family in families}
    except (AutotuneError, KeyError):
        return (
            (),
            "The families of this study are not here as they were: its space is not counted.",
        )
    note = ""
    if study.space and SpaceUnion(spaces).digest != study.space:
        note = (
            "The families or the limits have changed since this study: the first two stages, and "
            "the restrictions, are those of today."
        )
    rows = tuple(
        FamilySpace(name, space.cartesian, tuple(space.funnel()), space.size)
        for name, space in spaces.items()
    )
    return rows, note


def _limits(study: Study) -> DeviceLimits | None:
    """The device's limits as noted, or as they are where the device is the same one."""
    noted = study.noted("limits")
    if noted and all(type(value) is int for value in noted.values()):
        return _Limits(noted)
    with suppress(AutotuneError):
        device = make_target(study.target, {}).device(study.problem, None)
        if device.fingerprint.name == study.device:
            return device.limits
    return None
