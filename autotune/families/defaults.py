"""Which family serves where nothing was tuned: the one that says so of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.paths import data_dir
from autotune.families.languages import language_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem


def default_family(
    families: Mapping[str, KernelFamily], problem: Problem, limits: DeviceLimits
) -> str | None:
    """The family whose default configuration serves a problem that nothing was tuned for.

    That is one whose `default_for` holds: of the user's own the first, if any of those does, else
    of those that came with the target the most special one, of the class that is asked for and for
    the fewest types of operands.

    Args:
        families: by name; those that cannot serve do not count.
        problem: what is to be computed.
        limits: of the device.

    Returns:
        Its name; None where none says so.
    """
    known = {**problem.sizes, **limits.names()}
    claiming = [
        (name, family)
        for name, family in families.items()
        if family.default_for is not None
        and family.default_for.holds(known)
        and family.unsupported(problem) is None
    ]
    own = [name for name, family in claiming if not _came_with_target(family)]
    claiming.sort(key=lambda each: _generality(each[1], problem))
    return next(iter([*own, *(name for name, _ in claiming)]), None)


def _generality(family: KernelFamily, problem: Problem) -> tuple[bool, int]:
    return family.accuracy != problem.accuracy, len(family.dtypes)


def _came_with_target(family: KernelFamily) -> bool:
    folders = (data_dir("search_spaces"), *language_of(family.target).folders)
    return any(family.path.is_relative_to(folder) for folder in folders)
