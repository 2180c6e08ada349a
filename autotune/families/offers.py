"""What a set of families offers, and why none of them may serve a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.dtypes import DTYPES
from autotune.core.suggestions import did_you_mean
from autotune.operations.problem import ACCURACIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem

_REASONS = 3
"""How many families a message names one by one."""


def dtypes_of(families: Iterable[KernelFamily]) -> list[str]:
    """The dtypes that at least one family handles, in the order of `DTYPES`."""
    offered = {dtype for family in families for dtype in family.dtypes}
    return [dtype for dtype in DTYPES if dtype in offered]


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
        ("dtype", dtype, dtypes_of(families), [*DTYPES]),
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
    reasons = [family.unsupported(problem) for family in families.values()]
    if None in reasons:
        return None
    if not families:
        return f"no family can serve {problem.label}: none was found"
    if (unknown := unoffered([*families.values()], problem.dtype)) is not None:
        return unknown
    listed = [reason for reason in reasons if reason is not None]
    more = len(listed) - _REASONS
    rest = f"; and {more} more" if more > 0 else ""
    return f"no family can serve {problem.label}: {'; '.join(listed[:_REASONS])}{rest}"
