"""The expression language of restrictions, derived sizes and launches.

Names, numbers, strings, ``+ - * / // % **``, comparisons and their chains, ``and``/``or``/``not``,
``in`` a literal list, ``a if c else b``, ``min``, ``max``, ``ceildiv`` and ``ispow2``. Values are
Python's, exactly: integers never wrap around, ``//`` and ``%`` round down, booleans count as
integers. Two things differ: ``and``, ``or`` and ``not`` always give a truth value, and
`exact_division` makes ``/`` a division that must be whole. Where Python would raise
ZeroDivisionError or OverflowError, and where a result is not real or an integer is beyond 10,000
bits, the expression is undefined, unless that part is not reached: ``and``, ``or`` and conditions
decide as Python's do.

Text is parsed and interpreted, never handed to `eval`; functions are made of the parsed tree alone
(`autotune.space.compiled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import ExpressionError
from autotune.core.printable import shown
from autotune.space import nodes, operators, parsing
from autotune.space.column import Column, MisuseError, UndefinedError
from autotune.space.nodes import Apply, Constant, Name, Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from autotune.core.configuration import Value

__all__ = ["Expression", "UndefinedError"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; make one with `parse`.

    Attributes:
        text: what it was parsed from; for an inlined or split one, what that one came from.
        root: its tree.
        ordered_names: the names it uses, in order of appearance.
    """

    text: str
    root: Node
    ordered_names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, *, exact_division: bool = False) -> Expression:
        """Parse `text`; with `exact_division`, ``/`` is undefined where it is not whole.

        Raises:
            ExpressionError: the text is too long, too deep, or outside the language.
        """
        if not isinstance(text, str):
            raise ExpressionError(f"an expression is text, got {shown(text)}")
        return cls(text, *parsing.parse(text, exact_division=exact_division))

    @classmethod
    def _of(cls, text: str, root: Node) -> Expression:
        parsing.check_size(text, root)
        names = dict.fromkeys(node.name for node in nodes.walk(root) if isinstance(node, Name))
        return cls(text, root, tuple(names))

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> frozenset[str]:
        """The names it uses."""
        return frozenset(self.ordered_names)

    def substitute(self, definitions: Mapping[str, Expression]) -> Expression:
        """Inline the defined names; each definition keeps its own kind of division.

        Raises:
            ExpressionError: the result is too large.
        """
        if not any(name in definitions for name in self.ordered_names):
            return self
        roots = {name: expression.root for name, expression in definitions.items()}
        return Expression._of(self.text, nodes.substitute(self.root, roots))

    def fold(self, known: Mapping[str, Value]) -> Expression:
        """The expression that is left where some names are known: constants, if all of it is."""
        return self._part(nodes.fold(self.root, known))

    def simplify(self) -> Expression:
        """The expression for people to read; it may have a value where this one has none."""
        return self._part(nodes.simplify(self.root))

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The value at one point.

        Raises:
            UndefinedError: a division by zero, one that should be whole and is not, or a number
                that is too large.
            ExpressionError: a name is missing, or an operator is given text in a number's place.
        """
        values = {name: plain_value(self._look_up(names, name)) for name in self.ordered_names}
        try:
            return self.root.evaluate(values)
        except MisuseError as error:
            raise ExpressionError(f"expression {self.text!r}: {error}") from None
        except UndefinedError as error:
            raise UndefinedError(f"expression {self.text!r}: {error}") from None

    def evaluate_columns(
        self, names: Mapping[str, NDArray[Any] | Value]
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """The values over many rows, and the mask of rows in which there is one (None: all).

        Arrays broadcast against each other; both results broadcast to the same shape. Rows that
        have no value hold anything.

        Raises:
            ExpressionError: as `evaluate`, in any row.
        """
        column = self._columns(names)
        return np.asarray(column.values), column.defined

    def holds(self, names: Mapping[str, Value]) -> bool:
        """Return whether the expression is defined and true at a point; raises ExpressionError."""
        try:
            return bool(self.evaluate(names))
        except UndefinedError:
            return False

    def divisions(self) -> tuple[tuple[Expression, Expression], ...]:
        """Numerator and denominator of every exact division that is evaluated at every point."""
        return tuple(
            (self._part(division.operands[0]), self._part(division.operands[1]))
            for division in nodes.always_evaluated(self.root)
            if division.operator is operators.DIVIDE_EXACTLY
        )

    def is_multiple_of(self, divisor: Expression) -> Expression:
        """The expression ``self % divisor == 0``, written out."""
        remainder = Apply(operators.REMAINDER, (self.root, divisor.root))
        return self._part(Apply(operators.EQUAL, (remainder, Constant(0))))

    def over(self, divisor: Expression) -> Expression:
        """The expression ``self / divisor`` of an exact division."""
        return self._part(Apply(operators.DIVIDE_EXACTLY, (self.root, divisor.root)))

    def _part(self, node: Node) -> Expression:
        return Expression._of(nodes.to_text(node), node)

    def _columns(self, names: Mapping[str, NDArray[Any] | Value]) -> Column:
        columns = {name: Column.of(self._look_up(names, name)) for name in self.ordered_names}
        with np.errstate(all="ignore"):
            try:
                return nodes.columns(self.root, columns, None)
            except MisuseError as error:
                raise ExpressionError(f"expression {self.text!r}: {error}") from None

    def _look_up(self, names: Mapping[str, Any], name: str) -> Any:
        try:
            return names[name]
        except KeyError:
            known = ", ".join(sorted(names)) or "none"
            raise ExpressionError(
                f"expression {self.text!r}: unknown name {name!r}; known names: {known}"
            ) from None


def plain_value(value: Any) -> Value:
    """A scalar as Python's own bool, int, float or str; NumPy's are converted.

    Raises:
        TypeError: it is not a scalar.
    """
    if type(value) in (bool, int, float, str):
        plain: Value = value
        return plain
    if isinstance(value, np.generic):
        value = value.item()
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"expected a bool, int, float or str, got {shown(value)}")
