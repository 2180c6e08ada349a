"""The launch of a kernel of one's own on a GPU, checked and made a table of a family file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.core.arguments import is_whole, mapping, must
from autotune.core.errors import ExpressionError, InputError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.own.definition import Entry, Grid
from autotune.space import Expression

_LAUNCH_KEYS = (
    *("workspace_bytes", "zeroed_bytes", "before", "after"),
    *("cluster", "cooperative", "resident_blocks", "spill_limit"),
)


def parts(name: str, given: Any, example: str) -> tuple[str, ...]:
    """Texts and whole numbers as texts; one alone is taken as a list of one."""
    listed = (given,) if isinstance(given, str) or is_whole(given) else given
    several = isinstance(listed, Iterable) and not isinstance(listed, (bytes, Mapping))
    must(name, f"like {example}", given, several)
    found = tuple(listed)
    for each in found:
        known = isinstance(each, str) or is_whole(each)
        must(name, f"like {example}", given, known)
    return tuple(map(str, found))


def grid_of(
    grid: Sequence[str] | None,
    block: Sequence[str] | None,
    shared_bytes: str,
    launch: Mapping[str, Any],
) -> Grid:
    """The launch of a kernel.

    Args:
        grid: thread blocks, one to three expressions.
        block: threads of a block, likewise.
        shared_bytes: dynamic shared memory of a block.
        launch: further entries.

    Raises:
        InputError: something is missing, or is of another form.
    """
    if grid is None or block is None:
        raise InputError(
            'grid and block must say how it is launched, like grid=["ceildiv(M, ROWS)"], '
            'block=["THREADS"]'
        )
    shared = parts("shared_bytes", shared_bytes, '"4 * THREADS"')
    if len(shared) != 1:
        raise InputError(f"shared_bytes must be one expression, got {shown(shared_bytes)}")
    more = {key: _more(key, value) for key, value in launch.items()}
    return Grid(_extents("grid", grid), _extents("block", block), shared[0], more)


def _more(key: str, value: Any) -> Entry:
    """An entry of the launch: extents are three, and a kernel always runs unless `when` says."""
    if key not in _LAUNCH_KEYS:
        raise InputError(must_be("a key of launch", key, _LAUNCH_KEYS))
    if key == "cluster":
        return _extents(key, value)
    if key not in ("before", "after"):
        if key == "cooperative":
            must(f"launch.{key}", "True or False", value, isinstance(value, bool))
        return value if key in ("spill_limit", "cooperative") else str(value)
    must(f"launch.{key}", "a list of tables", value, isinstance(value, (list, tuple)))
    return [
        {
            "when": "True",
            **mapping(f"launch.{key}", each, '{"kernel": "second", "grid": ["1"]}'),
            "grid": _extents("grid", each.get("grid")),
            "block": _extents("block", each.get("block")),
        }
        for each in value
    ]


def _extents(key: str, given: Sequence[str]) -> tuple[str, str, str]:
    """Three expressions, of which the last may be left out."""
    example = '["ceildiv(M, ROWS)"]'
    found = parts(key, given, example)
    if not 1 <= len(found) <= 3:
        raise InputError(
            f"{key} must be one to three expressions, like {example}, got {shown(given)}"
        )
    for each in found:
        try:
            Expression.parse(each, exact_division=True)
        except ExpressionError as error:
            raise InputError(f"{key}: {error}") from error
    x, y, z = (*found, "1", "1")[:3]
    return x, y, z


def needs(
    grid: Grid, parameters: Mapping[str, object], derived: Mapping[str, str]
) -> dict[str, str]:
    """The needs of a block, which the device's limits are checked for.

    Registers are known once a kernel is compiled, and are checked then: a warp has 8 of each
    thread at least.
    """
    sides = [text for text in grid.block if text != "1"] or ["1"]
    needed = {
        "threads": sides[0] if len(sides) == 1 else " * ".join(f"({each})" for each in sides),
        "registers": "8",
        "shared_bytes": grid.shared_bytes,
    }
    for name, text in needed.items():
        if name in parameters and text != name:
            raise InputError(
                f"parameters must not be called {name}, which is what a block needs ({text}): "
                f"call it {name.upper()}"
            )
    known = {*parameters, *derived}
    return {name: text for name, text in needed.items() if name not in known}
