"""The names that a family file's expressions may use, and parsing them with errors that say so."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from autotune.core.errors import ExpressionError
from autotune.core.printable import shown
from autotune.core.suggestions import did_you_mean, listed
from autotune.core.toml_table import NAME
from autotune.space import Expression
from autotune.space.nodes import Constant, Name

if TYPE_CHECKING:
    from autotune.core.toml_table import Table

_FUNCTIONS = frozenset({"min", "max", "ceildiv", "ispow2", "abs", "log2"})
_JINJA_NAMES = frozenset({"true", "false", "none", "self", "loop", "caller", "super"})
_PRESET_KEYS = frozenset({"summary"})


class Scope:
    """The names that expressions may use; it grows as the file is read."""

    def __init__(self, names: frozenset[str], reserved: frozenset[str]) -> None:
        self._names = set(names)
        self._texts: set[str] = set()
        self._reserved = names | reserved | _FUNCTIONS | _JINJA_NAMES | _PRESET_KEYS

    def define(self, table: Table, name: str) -> None:
        """Add a parameter or a derived name."""
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            table.fail(name, "must be a Python name of letters a to z, digits and _, no keyword")
        if name in self._reserved:
            table.fail(
                name, "is the name of a size, a limit, a function or something templates get"
            )
        if name in self._names:
            table.fail(name, "is defined twice: as a parameter and as a derived name")
        self._names.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def define_text(self, name: str) -> None:
        """Note that a defined name stands for texts."""
        self._texts.add(name)

    def is_text(self, expression: Expression) -> bool:
        """Return whether an expression is a text: a literal or a name; no operator makes one."""
        match expression.root:
            case Constant(value=str()):
                return True
            case Name(name=name):
                return name in self._texts
        return False

    def expression(self, table: Table, key: str, text: Any, *, exact_division: bool) -> Expression:
        """Parse the expression under `key` and check its names."""
        if not isinstance(text, str):
            table.fail(key, f"must be an expression in quotes, got {shown(text)}")
        try:
            expression = Expression.parse(text, exact_division=exact_division)
        except ExpressionError as error:
            table.fail(key, f"is not an expression: {error}")
        for name in sorted(expression.names - self._names):
            known = listed(sorted(self._names)) + did_you_mean(name, self._names)
            table.fail(key, f"= {shown(text)} uses {shown(name)}; the names there are: {known}")
        return expression
