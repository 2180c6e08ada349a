"""The product that a program of many ranks or GPUs leaves to the tuned kernel of one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.errors import SpaceError
from autotune.families.parts import Local
from autotune.space import Expression, Restriction
from autotune.space.parameter import whole_divisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.core.toml_table import Table
    from autotune.families.family import KernelFamily, Language
    from autotune.families.scope import Scope
    from autotune.operations.problem import Gemm


def read_local(top: Table, language: Language, scope: Scope) -> Local:
    """The table [local] of a family whose language has one.

    Raises:
        FamilyError: it is missing or does not fit the format.
    """
    if "local" not in top:
        top.fail("local", "is missing: a table with m, n, k and on, what is multiplied at a time")
    table = top.table("local")
    on = table.choice("on", language.local)
    sizes = {name: table.text(name) for name in "mnk"}
    if language.local[on].threaded:
        default = "threads" if "threads" in scope else "1"
        sizes["threads"] = table.text("threads") if "threads" in table else default
    table.close()
    read = {
        name: scope.expression(table, name, text, exact_division=True)
        for name, text in sizes.items()
    }
    return Local(read["m"], read["n"], read["k"], on, read.get("threads"))


def local_restrictions(
    local: Local, derived: Mapping[str, Expression], language: Language
) -> Iterator[Restriction]:
    """The device has what the kernel runs on, and divisions in [local] are whole."""
    for text, reason in language.local[local.on].demands:
        yield Restriction(Expression.parse(text), reason)
    sizes = {f"local.{name}": getattr(local, name) for name in (*"mnk", "threads")}
    implied = {restriction.text for restriction in whole_divisions(derived)}
    for restriction in whole_divisions({k: v for k, v in sizes.items() if v is not None}):
        if restriction.text not in implied:
            yield restriction


def local_problem(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Gemm,
    limits: DeviceLimits,
) -> Gemm:
    """The problem whose kernel a program multiplies with.

    The sizes are rounded up to powers of two: the kernel serves every size, and which record is
    nearest depends on ratios.

    Raises:
        SpaceError: the configuration is not one of the family's, or its [local] is not whole or
            not positive for these sizes.
    """
    local = family.local
    if local is None:
        raise SpaceError(f"family {family.name!r} has no [local]: it is not for this target")
    known = family.values(configuration, problem, limits)
    where = f"family {family.name!r} has no local product for {problem.label}"

    def whole(expression: Expression) -> int:
        return family.whole(expression, known, 1, where)

    m, n, k = (1 << (whole(size) - 1).bit_length() for size in (local.m, local.n, local.k))
    threads = None if local.threads is None else whole(local.threads)
    return replace(problem, m=m, n=n, k=k, threads=threads)
