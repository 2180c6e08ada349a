"""The offer of a set of families: dtypes, accuracies, the default, reasons for a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.dtypes import ELEMENTS
from autotune.core.paths import data_dir
from autotune.core.suggestions import did_you_mean
from autotune.operations.problem import ACCURACIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem

_REASONS = 3
"""The number of families that a message names one by one."""


def dtypes_of(families: Iterable[KernelFamily]) -> list[str]:
    """The dtypes that at least one family handles, in the order of `ELEMENTS`."""
    offered = {dtype for family in families for dtype in family.dtypes}
    return [dtype for dtype in ELEMENTS if dtype in offered]


def accuracies_of(families: Iterable[KernelFamily]) -> list[str]:
    """The accuracy classes that the families have, in the order of `ACCURACIES`."""
    offered = {family.accuracy for family in families}
    return [accuracy for accuracy in ACCURACIES if accuracy in offered]


def unoffered(
    families: Sequence[KernelFamily], dtype: str, accuracy: str | None = None
) -> str | None:
    """One line for a dtype or an accuracy class that none of the families has; None if one has.

    Args:
        families: those there are, at least one.
        dtype: the dtype that is wanted.
        accuracy: the class that is wanted; None where any will do.
    """
    targets = sorted({family.target for family in families})
    where = f"{families[0].operation} on {' and '.join(targets)}"
    for name, wanted, offered, known in (
        ("dtype", dtype, dtypes_of(families), [*ELEMENTS]),
        ("accuracy", accuracy, accuracies_of(families), [*ACCURACIES]),
    ):
        if wanted is not None and wanted not in offered:
            hint = "" if wanted in known else did_you_mean(wanted, offered)
            return (
                f"{name} must be one of {', '.join(offered)}, which the families for {where} "
                f"have, got {wanted!r}{hint}"
            )
    return None


def unwritten(families: Iterable[KernelFamily], dtype: str, out_dtype: str) -> str | None:
    """One line for a type of results that no family has for operands of `dtype`, else None."""
    able = [family.results(dtype) for family in families if dtype in family.dtypes]
    offered = {result: None for results in able for result in results}
    if out_dtype in offered:
        return None
    return (
        f"out_dtype must be one of {', '.join(offered)}, which the families for {dtype} write, "
        f"got {out_dtype!r}{did_you_mean(out_dtype, offered)}"
    )


def refusal(families: Mapping[str, KernelFamily], problem: Problem) -> str | None:
    """Why none of the families can serve a problem, in one line; None where one can."""
    listed: list[str] = []
    for family in families.values():  # each is read when it is asked for
        if (reason := family.unsupported(problem)) is None:
            return None
        listed.append(reason)
    if not families:
        return f"no family can serve {problem.label}: none was found"
    if (unknown := unoffered([*families.values()], problem.dtype)) is not None:
        return unknown
    more = len(listed) - _REASONS
    rest = f"; and {more} more" if more > 0 else ""
    return f"no family can serve {problem.label}: {'; '.join(listed[:_REASONS])}{rest}"


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
    claiming.sort(key=lambda one: (one[1].accuracy != problem.accuracy, len(one[1].dtypes)))
    return next(iter([*own, *(name for name, _ in claiming)]), None)


def _came_with_target(family: KernelFamily) -> bool:
    folders = (data_dir("search_spaces"), *family.language.folders)
    return any(family.path.is_relative_to(folder) for folder in folders)
