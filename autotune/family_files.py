"""Reading a kernel family from its TOML file. Data only: nothing in the file is executed."""

from __future__ import annotations

import hashlib
import keyword
import math
from typing import TYPE_CHECKING, Any

from autotune.errors import ExpressionError
from autotune.family import LIMIT_NAMES, SIZE_NAMES, KernelFamily, Launch
from autotune.problem import ACCURACIES, ITEM_SIZES, LAYOUTS
from autotune.rendering import reserved_names
from autotune.space import Expression, Restriction, TunableParameter
from autotune.templating import template_digest, template_exists
from autotune.toml_table import NAME, Table, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from autotune.configuration import Value

_FUNCTIONS = frozenset({"min", "max", "ceildiv", "ispow2"})
_JINJA_NAMES = frozenset({"true", "false", "none", "self", "loop", "caller", "super"})
_DEFAULT_DTYPES = ("float32", "float64")
_DEFAULT_LAYOUTS = ("nn",)


def read_family(path: Path, template_folders: tuple[Path, ...]) -> KernelFamily:
    """Read one family.

    Args:
        path: the TOML file.
        template_folders: where its template and their partials are looked up, first match wins.

    Raises:
        FamilyError: the file cannot be read or does not fit the format; the message names the
            file, the key, and what was expected.
    """
    top = Table.read(path)
    target = top.choice("target", LIMIT_NAMES)
    operation = top.name("operation")
    scope = _Scope(SIZE_NAMES | LIMIT_NAMES[target], reserved_names(operation))
    parameters = tuple(_parameters(top.table("parameters"), scope))
    derived = dict(_derived(top.table("derived", {}), scope))
    restrictions = tuple(_restrictions(top.tables("restrictions"), scope))
    template = top.text("template")
    if not template_exists(template, template_folders):
        top.fail(
            "template",
            f"must be a file in {' or '.join(map(str, template_folders))}, got {template!r}",
        )
    templates = template_digest(template, template_folders)
    family = KernelFamily(
        name=top.name("family"),
        operation=operation,
        target=target,
        template=template,
        accuracy=top.choice("accuracy", ACCURACIES),
        summary=top.text("summary"),
        dtypes=top.choices("dtypes", ITEM_SIZES, _DEFAULT_DTYPES),
        layouts=top.choices("layouts", LAYOUTS, _DEFAULT_LAYOUTS),
        parameters=parameters,
        derived=derived,
        restrictions=restrictions,
        launch=_launch(top.table("launch"), scope) if "launch" in top else None,
        path=path,
        template_folders=template_folders,
        template_digest=templates,
        digest=hashlib.sha256(f"{top.source}\0{templates}".encode()).hexdigest()[:16],
    )
    top.close()
    return family


class _Scope:
    """The names that expressions may use; it grows as the file is read."""

    def __init__(self, names: frozenset[str], reserved: frozenset[str]) -> None:
        self._names = set(names)
        self._reserved = names | reserved | _FUNCTIONS | _JINJA_NAMES

    def define(self, table: Table, name: str) -> None:
        """Add a parameter or a derived name."""
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            table.fail(name, "must be a Python name that starts with a letter, no keyword")
        if name in self._reserved:
            table.fail(
                name, "is the name of a size, a limit, a function or something templates get"
            )
        if name in self._names:
            table.fail(name, "is defined twice: as a parameter and as a derived name")
        self._names.add(name)

    def expression(self, table: Table, key: str, text: Any, *, exact_division: bool) -> Expression:
        """Parse the expression under `key` and check its names."""
        if not isinstance(text, str):
            table.fail(key, f"must be an expression in quotes, got {text!r}")
        try:
            expression = Expression.parse(text, exact_division=exact_division)
        except ExpressionError as error:
            table.fail(key, f"is not an expression: {error}")
        for name in sorted(expression.names - self._names):
            known = listing(sorted(self._names), name)
            table.fail(key, f"= {text!r} uses {name!r}; the names there are: {known}")
        return expression


def _parameters(table: Table, scope: _Scope) -> Iterator[TunableParameter]:
    if not list(table):
        table.fail("*", "is missing: a family has at least one parameter")
    for name in table:
        scope.define(table, name)
        entry = table.table(name)
        values = tuple(entry.items("values"))
        _check_values(entry, values)
        default = entry.value("default")
        if default is not None and (type(default) is not type(values[0]) or default not in values):
            entry.fail("default", f"must be one of its values {_plain(values)}, got {default!r}")
        runtime = entry.flag("runtime")
        if runtime and type(values[0]) is not int:
            entry.fail("runtime", "parameters are passed as integers; its values are not")
        summary = entry.text("summary") if "summary" in entry else ""
        entry.close()
        yield TunableParameter(name, values, default, summary, runtime)


def _check_values(entry: Table, values: tuple[Value, ...]) -> None:
    kind = type(values[0])
    for value in values:
        if type(value) is not kind or kind not in (bool, int, float, str):
            entry.fail(
                "values", f"must be all integers, floats, strings or booleans, got {value!r}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            entry.fail("values", f"must be finite, got {value!r}")
        if isinstance(value, int) and abs(value) >= 2**63:
            entry.fail("values", f"must fit 64 bits, got {value!r}")
        # Strings end up in the emitted source, in a docstring among other places.
        if isinstance(value, str) and (not value.isprintable() or set(value) & set("\"'\\")):
            entry.fail("values", f"must be printable, without quotes and backslashes: {value!r}")
    if len(set(values)) < len(values):
        entry.fail("values", f"must not repeat a value, got {_plain(values)}")


def _derived(table: Table, scope: _Scope) -> Iterator[tuple[str, Expression]]:
    for name in table:
        expression = scope.expression(table, name, table.value(name), exact_division=True)
        scope.define(table, name)
        yield name, expression


def _restrictions(tables: Iterable[Table], scope: _Scope) -> Iterator[Restriction]:
    for table in tables:
        text = table.text("expr")
        reason = table.text("reason")
        yield Restriction(scope.expression(table, "expr", text, exact_division=False), reason)
        table.close()


def _launch(table: Table, scope: _Scope) -> Launch:
    def sizes(key: str) -> tuple[Expression, ...]:
        texts = table.items(key)
        if len(texts) != 3:
            table.fail(key, f"must be three expressions, for x, y and z, got {texts!r}")
        return tuple(scope.expression(table, key, text, exact_division=True) for text in texts)

    launch = Launch(
        grid=sizes("grid"),
        block=sizes("block"),
        shared_bytes=scope.expression(
            table, "shared_bytes", table.text("shared_bytes"), exact_division=True
        ),
    )
    table.close()
    return launch


def _plain(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values))
