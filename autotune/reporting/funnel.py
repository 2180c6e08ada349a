"""The pruning funnel: from all combinations of values to those that were timed."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.core.device import DeviceLimits
from autotune.core.errors import AutotuneError
from autotune.core.measurement import Outcome
from autotune.reporting.study import FAILED, UNFINISHED, Study
from autotune.space import SearchSpace, SpaceUnion
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

_STAGES = (
    ("ended", (UNFINISHED,)),
    ("compiled", (Outcome.COMPILE_FAILED,)),
    ("within limits as compiled", (Outcome.REJECTED,)),
    ("ran", (Outcome.LAUNCH_FAILED, Outcome.TIMEOUT, FAILED)),
    ("right", (Outcome.WRONG_RESULT, Outcome.IMPLAUSIBLE)),
    ("timed to the end", (Outcome.ABANDONED,)),
)
"""Stages after a trial began, and the outcomes that did not come so far."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits as a study noted them."""

    noted: Mapping[str, int]

    def names(self) -> dict[str, int]:
        return dict(self.noted)


@dataclass(frozen=True, slots=True)
class Funnel:
    """Configurations left at each stage.

    Attributes:
        stages: what it is, and how many configurations.
        spaces: by family; none where they are not known.
        note: why not, or what is to be known of the numbers.
    """

    stages: tuple[tuple[str, int], ...]
    spaces: Mapping[str, SearchSpace]
    note: str


def funnel_of(study: Study, extra_families: tuple[Path, ...] = ()) -> Funnel:
    """The funnel of a study; its first stages only where its space can be built again."""
    spaces, note = _spaces(study, extra_families)
    stages = []
    if spaces:
        stages = [
            ("all combinations of values", sum(space.cartesian for space in spaces.values())),
            ("valid on the device", sum(space.size for space in spaces.values())),
        ]
    counts, left = study.counts, len(study.trials)
    stages.append(("tried", left))
    for words, outcomes in _STAGES:
        left -= sum(counts.get(outcome, 0) for outcome in outcomes)
        stages.append((words, left))
    return Funnel(tuple(stages), spaces, note)


def _spaces(study: Study, extra: tuple[Path, ...]) -> tuple[dict[str, SearchSpace], str]:
    """The spaces of a study's families, and what is to be known of them."""
    problem = study.problem
    if problem is None or not study.target or not study.families:
        return {}, "How the space was pruned is not recorded with these measurements."
    try:
        found = load_families(target=study.target, operation=problem.operation, extra=extra)
        families = [found[name] for name in study.families]
        if (limits := _limits(study)) is None:
            return {}, "The limits of the device are not recorded: its space cannot be counted."
        spaces = {family.name: family.space(problem, limits) for family in families}
    except (AutotuneError, KeyError):
        return {}, (
            "The families of this study are not here as they were: its space is not counted."
        )
    if study.space and SpaceUnion(spaces).digest != study.space:
        return spaces, (
            "The families or the limits have changed since this study: the first two stages, and "
            "the restrictions, are those of today."
        )
    return spaces, ""


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
