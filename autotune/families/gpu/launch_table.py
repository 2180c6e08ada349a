"""Reading how kernels are launched, and the restrictions that follow from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.dtypes import ELEMENTS
from autotune.core.printable import shown
from autotune.families.parts import (
    ONE,
    SWIZZLES,
    ZERO,
    AuxiliaryKernel,
    Keeps,
    Launch,
    Region,
    TensorMap,
)
from autotune.space import Expression, Restriction
from autotune.space.parameter import whole_divisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.core.toml_table import Table
    from autotune.families.family import Language
    from autotune.families.scope import Scope
    from autotune.operations.operation import Operation

CLUSTER_LIMIT = 8
"""Thread blocks of a cluster that every device with clusters can run ("portable")."""

ROUNDINGS = ("tf32",)
"""The types that elements can be rounded to on their way."""

MAPPED = tuple(row.name for row in ELEMENTS.values() if row.tensor_map >= 0)
"""Element types that regions of a workspace may have."""

_BLOCK_NEEDS = ("threads", "registers", "shared_bytes")
_MAPPED_KEYS = ("cluster", "cooperative", "tensor_maps", "architecture_features", "dependent")


def read_launch(
    table: Table,
    scope: Scope,
    fixed: Scope,
    defined: Operation,
    language: Language,
    included: Sequence[Table] = (),
) -> Launch:
    """The table [launch].

    Args:
        table: the table.
        scope: names that its expressions may use.
        fixed: those of them that follow from what is compiled in.
        defined: the operation, whose operands tensor maps describe.
        language: of the family's target.
        included: the same table of included files, which may have `keeps`.

    Raises:
        FamilyError: it does not fit the format.
    """
    for key in _MAPPED_KEYS:
        if key in table and not language.mapped:
            table.fail(key, "must be left out: kernels of this target have none")
    workspace = _optional(table, "workspace_bytes", scope)
    if workspace is None and "zeroed_bytes" in table:
        table.fail("workspace_bytes", "is missing: zeroed_bytes is how much of it is zero")
    grid, cooperative = extents(table, "grid", scope), table.flag("cooperative")
    launch = Launch(
        grid=grid,
        block=extents(table, "block", scope),
        shared_bytes=size(table, "shared_bytes", scope),
        resident_blocks=_resident(_optional(table, "resident_blocks", scope), grid, cooperative),
        workspace_bytes=workspace,
        before=tuple(_auxiliary(entry, scope) for entry in table.tables("before")),
        after=tuple(_auxiliary(entry, scope) for entry in table.tables("after")),
        zeroed_bytes=_optional(table, "zeroed_bytes", scope) or ZERO,
        cluster=extents(table, "cluster", scope) if "cluster" in table else (ONE, ONE, ONE),
        cooperative=cooperative,
        tensor_maps=_tensor_maps(table, scope, fixed, defined),
        architecture_features=table.flag("architecture_features"),
        dependent=_optional(table, "dependent", scope) or ZERO,
        spill_limit=table.whole("spill_limit", 0) if "spill_limit" in table else None,
    )
    for each in (table, *included):
        if "keeps" in each:
            if launch.keeps is not None:
                each.fail("keeps", "must not be there twice")
            launch = replace(launch, keeps=_keeps(each, scope, launch, defined))
        each.close()
    return launch


def launch_restrictions(
    launch: Launch,
    derived: Mapping[str, Expression],
    top: Table,
    scope: Scope,
    language: Language,
) -> Iterator[Restriction]:
    """Limits on one block and on clusters, and whole divisions in the launch.

    Raises:
        FamilyError: the family does not say what a block needs.
    """
    for name in _BLOCK_NEEDS:
        if name not in scope:
            top.fail(f"derived.{name}", "is missing: device limits are checked against it")
    assert language.block_restrictions is not None
    yield from language.block_restrictions(launch.resident_blocks.text)
    for kernel in (*launch.before, *launch.after):
        if kernel.shared_bytes is not ZERO:
            never, needed = f"not {_enclosed(kernel.when.text)}", kernel.shared_bytes.text
            yield Restriction(
                Expression.parse(f"{never} or {_enclosed(needed)} <= shared_bytes_per_block"),
                f"hardware limit on the shared memory of one block of {kernel.kernel}",
            )
    sizes = {f"launch.grid[{i}]": size for i, size in enumerate(launch.grid)}
    sizes |= {f"launch.block[{i}]": size for i, size in enumerate(launch.block)}
    sizes["launch.shared_bytes"] = launch.shared_bytes
    implied = {restriction.text for restriction in whole_divisions(derived)}
    for restriction in whole_divisions(sizes):
        if restriction.text not in implied:
            yield restriction
    yield from _cluster_restrictions(launch.grid, launch.cluster)


def size(table: Table, key: str, scope: Scope) -> Expression:
    """The expression under a key."""
    return scope.expression(table, key, table.text(key), exact_division=True)


def extents(
    table: Table, key: str, scope: Scope, meaning: str = "x, y and z", count: int = 3
) -> tuple[Expression, ...]:
    """So many expressions under a key."""
    texts = table.items(key)
    if len(texts) != count:
        number = {2: "two", 3: "three"}[count]
        table.fail(key, f"must be {number} expressions, for {meaning}, got {shown(texts)}")
    return tuple(scope.expression(table, key, text, exact_division=True) for text in texts)


def _optional(table: Table, key: str, scope: Scope) -> Expression | None:
    return size(table, key, scope) if key in table else None


def _resident(
    given: Expression | None, grid: tuple[Expression, ...], cooperative: bool
) -> Expression:
    """The blocks that must fit a multiprocessor at once: a share of all where they cooperate."""
    if not cooperative:
        return given or ONE
    blocks = " * ".join(_enclosed(each.text) for each in grid if each.text != "1") or "1"
    least = "1" if given is None else given.text
    return Expression.parse(f"max({least}, ceildiv({blocks}, multiprocessor_count))")


def _auxiliary(table: Table, scope: Scope) -> AuxiliaryKernel:
    kernel = AuxiliaryKernel(
        kernel=table.name("kernel"),
        when=scope.expression(table, "when", table.text("when"), exact_division=False),
        grid=extents(table, "grid", scope),
        block=extents(table, "block", scope),
        shared_bytes=_optional(table, "shared_bytes", scope) or ZERO,
    )
    table.close()
    return kernel


def _keeps(table: Table, scope: Scope, launch: Launch, defined: Operation) -> Keeps:
    if launch.workspace_bytes is None or launch.zeroed_bytes is not ZERO:
        table.fail("keeps", "must have the start of a workspace, of which no bytes are zeroed")
    entry = table.table("keeps")
    keeps = Keeps(
        operand=entry.choice("operand", [o.name for o in defined.operands if not o.written]),
        kernel=entry.choice("kernel", [kernel.kernel for kernel in launch.before]),
        grid=extents(entry, "grid", scope),
        rest=extents(entry, "rest", scope),
        bytes=size(entry, "bytes", scope),
    )
    entry.close()
    return keeps


def _tensor_maps(
    table: Table, scope: Scope, fixed: Scope, defined: Operation
) -> tuple[TensorMap, ...]:
    matrices = {each.name: each for each in defined.operands if len(each.shape) >= 2}
    maps: dict[str, TensorMap] = {}
    for entry in table.tables("tensor_maps"):
        region = None
        if "region" in entry:
            key, name = "region", entry.name("region")
            if "workspace_bytes" not in table:
                entry.fail(key, "must lie in a workspace, and workspace_bytes is missing")
            if f"{name.lower()}_map" in scope:
                entry.fail(key, f"must have another name: {name.lower()}_map is defined")
            region = _region(entry, scope)
        else:
            key, name = "operand", entry.choice("operand", matrices)
            if matrices[name].written:
                for other in ("transposed_box", "rounded"):
                    if other in entry:
                        entry.fail(other, f"must be left out: {name} is written, as it is stored")
        made = TensorMap(
            operand=name,
            box=_box(entry, "box", scope),
            transposed_box=(
                _box(entry, "transposed_box", scope)
                if region is None and "transposed_box" in entry
                else None
            ),
            swizzle=_swizzle(entry, fixed),
            rounded=entry.choice("rounded", ROUNDINGS) if "rounded" in entry else "",
            when=(
                fixed.expression(entry, "when", entry.text("when"), exact_division=False)
                if "when" in entry
                else ONE
            ),
            region=region,
        )
        if made.argument in maps:
            entry.fail(key, f"must not be {name} twice")
        entry.close()
        maps[made.argument] = made
    return tuple(maps.values())


def _region(entry: Table, scope: Scope) -> Region:
    columns = size(entry, "columns", scope)
    return Region(
        dtype=entry.choice("dtype", MAPPED),
        offset=_optional(entry, "offset", scope) or ZERO,
        rows=size(entry, "rows", scope),
        columns=columns,
        leading=_optional(entry, "leading", scope) or columns,
    )


def _swizzle(entry: Table, fixed: Scope) -> Expression:
    """A number, or an expression in quotes over what is compiled in."""
    key = "swizzle"
    if key not in entry:
        return ZERO
    if isinstance(entry.value(key), str):
        return size(entry, key, fixed)
    number = entry.whole(key, 0)
    if number not in SWIZZLES:
        entry.fail(key, f"must be one of {', '.join(map(str, SWIZZLES))}, got {number}")
    return Expression.parse(str(number))


def _box(entry: Table, key: str, scope: Scope) -> tuple[Expression, ...]:
    return extents(entry, key, scope, "rows and columns", count=2)


def _cluster_restrictions(
    grid: tuple[Expression, ...], cluster: tuple[Expression, ...]
) -> Iterator[Restriction]:
    factors = [each.text for each in cluster if each.text != "1"]
    if factors:
        yield Restriction(
            Expression.parse(f"{' * '.join(map(_enclosed, factors))} <= {CLUSTER_LIMIT}"),
            "hardware limit on the thread blocks of a cluster",
        )
    for blocks, along in zip(grid, cluster, strict=True):
        if along.text != "1":
            yield Restriction(
                Expression.parse(f"{_enclosed(blocks.text)} % {_enclosed(along.text)} == 0"),
                "whole clusters of thread blocks",
            )


def _enclosed(text: str) -> str:
    return text if text.isidentifier() or text.isdecimal() else f"({text})"
