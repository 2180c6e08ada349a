"""The expression language of restrictions, derived sizes and launches.

Names, numbers, strings, ``+ - * / // % **``, ``& | ^ << >> ~`` of integers, comparisons and their
chains, ``and``/``or``/``not``, ``in`` a literal list, ``a if c else b``, ``min``, ``max``,
``abs``, ``log2``, ``ceildiv`` and ``ispow2``. Values are Python's, exactly: integers never wrap
around, ``//`` and ``%`` round down, booleans count as integers. Two things differ: ``and``, ``or``
and ``not`` always give a truth value, and `exact_division` makes ``/`` a division that must be
whole. Where Python would raise ZeroDivisionError, ValueError or OverflowError, and where a result
is not real or an integer is beyond 10,000 bits, the expression is undefined, unless that part is
not reached: ``and``, ``or`` and conditions decide as Python's do.

Text is parsed by Python's own parser and a whitelist, and interpreted, never handed to `eval`;
functions are made of the parsed tree alone (`autotune.space.compiled`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from autotune.core.errors import ExpressionError
from autotune.core.printable import shown
from autotune.space import nodes, operators
from autotune.space.columns import Column, MisuseError, UndefinedError
from autotune.space.nodes import Apply, Conditional, Constant, Junction, Name, Node, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.space.operators import Operator

MAX_TEXT = 2000
"""Characters an expression may have."""
MAX_NODES = 10_000
"""Nodes its tree may have, with all definitions inlined."""
MAX_DEPTH = 100
"""The most levels of its tree."""

ALLOWED = (
    "names, numbers, strings, + - * / // % **, & | ^ << >> ~, comparisons, and/or/not, "
    "in [literals], a if c else b, min, max, abs, log2, ceildiv, ispow2"
)


def parse(text: str, *, exact_division: bool) -> tuple[Node, tuple[str, ...]]:
    """Parse `text` to its tree and the names in it, in order of appearance.

    Raises:
        ExpressionError: the text is too long, too deep, or outside the language.
    """
    if len(text) > MAX_TEXT:
        _refuse(text[:40] + "...", f"{len(text)} characters are too many, at most {MAX_TEXT}")
    if "\\" in text:
        _refuse(text, "a backslash is not allowed")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (MemoryError, RecursionError):
        _refuse(text, f"nested too deeply, at most {MAX_DEPTH} levels")
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        _refuse(text, f"not an expression ({reason})")
    parser = _Parser(text, exact_division)
    root = parser.node(body, MAX_DEPTH)
    if parser.grows:
        check_size(text, root)
    return root, tuple(parser.names)


def check_size(text: str, root: Node) -> None:
    """Refuse a tree that is larger than its text could be.

    Raises:
        ExpressionError: it has too many nodes, or is too deep.
    """
    size, depth = measure(root, MAX_NODES)
    if size > MAX_NODES or depth > MAX_DEPTH:
        bounds = f"at most {MAX_NODES} operations and {MAX_DEPTH} levels"
        _refuse(text, f"too large with its definitions inlined, {bounds}")


def _refuse(text: str, why: str) -> NoReturn:
    raise ExpressionError(f"expression {text!r}: {why}")


def _signed(operator: Operator, operand: Node) -> Node:
    """A negated number is a literal; anything else an application."""
    if operator is operators.NEGATE and isinstance(operand, Constant):
        value = operand.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Constant(-value)
    return Apply(operator, (operand,))


class _Parser:
    """Converts the tree of one text.

    Attributes:
        names: the names it met, in order.
        grows: whether the result may be larger or deeper than what was written.
    """

    def __init__(self, text: str, exact_division: bool) -> None:
        self.text = text
        self.division = operators.DIVIDE_EXACTLY if exact_division else operators.DIVIDE
        self.names: dict[str, None] = {}
        self.grows = False

    def node(self, tree: ast.expr, levels: int) -> Node:
        """Convert one node; `levels` is how much deeper the tree may still go."""
        if levels == 0:
            _refuse(self.text, f"nested too deeply, at most {MAX_DEPTH} levels")
        convert = _CONVERSIONS.get(type(tree))
        if convert is None:
            raise self._error(tree)
        return convert(self, tree, levels - 1)

    def _constant(self, tree: ast.Constant, levels: int) -> Node:
        if not isinstance(tree.value, (bool, int, float, str)):
            raise self._error(tree)
        return Constant(tree.value)

    def _name(self, tree: ast.Name, levels: int) -> Node:
        name = tree.id
        if not self.text.isascii():  # as it was written: Python's parser has put it into NFKC
            name = ast.get_source_segment(self.text.strip(), tree) or name
        self.names[name] = None
        return Name(name)

    def _unary(self, tree: ast.UnaryOp, levels: int) -> Node:
        operator = operators.BY_PYTHON.get(type(tree.op))
        if operator is None:
            raise self._error(tree)
        return _signed(operator, self.node(tree.operand, levels))

    def _binary(self, tree: ast.BinOp, levels: int) -> Node:
        operator = operators.BY_PYTHON.get(type(tree.op))
        if operator is None:
            raise self._error(tree)
        if operator is operators.DIVIDE:
            operator = self.division
        return Apply(operator, (self.node(tree.left, levels), self.node(tree.right, levels)))

    def _junction(self, tree: ast.BoolOp, levels: int) -> Node:
        operands = tuple([self.node(value, levels) for value in tree.values])
        return Junction(isinstance(tree.op, ast.And), operands)

    def _conditional(self, tree: ast.IfExp, levels: int) -> Node:
        then, condition, otherwise = (
            self.node(part, levels) for part in (tree.body, tree.test, tree.orelse)
        )
        return Conditional((condition, then, otherwise))

    def _comparison(self, tree: ast.Compare, levels: int) -> Node:
        """A chain is the conjunction of its links: evaluating an operand twice changes nothing."""
        links: list[Node] = []
        left = self.node(tree.left, levels)
        self.grows |= len(tree.ops) > 1
        for op, comparator in zip(tree.ops, tree.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if comparator is not tree.comparators[-1]:
                    _refuse(self.text, "a comparison cannot go on after a list")
                among = Junction(
                    False,
                    tuple(
                        Apply(operators.EQUAL, (left, each))
                        for each in self._literals(comparator, levels)
                    ),
                )
                links.append(among if isinstance(op, ast.In) else Apply(operators.NOT, (among,)))
                continue
            operator = operators.BY_PYTHON.get(type(op))
            if operator is None:
                raise self._error(tree)
            right = self.node(comparator, levels)
            links.append(Apply(operator, (left, right)))
            left = right
        return links[0] if len(links) == 1 else Junction(True, tuple(links))

    def _literals(self, tree: ast.expr, levels: int) -> list[Constant]:
        elements = tree.elts if isinstance(tree, ast.List | ast.Tuple) else []
        literals = [self.node(element, levels) for element in elements]
        self.grows = True
        constants = [literal for literal in literals if isinstance(literal, Constant)]
        if not constants or len(constants) != len(literals):
            _refuse(self.text, "`in` takes a list of one or more numbers or strings")
        return constants

    def _call(self, tree: ast.Call, levels: int) -> Node:
        if not isinstance(tree.func, ast.Name) or tree.keywords:
            raise self._error(tree)
        name = tree.func.id
        arguments = [self.node(each, levels) for each in tree.args]
        match name, arguments:
            case "min" | "max", [first, _, *_]:
                operator = operators.MINIMUM if name == "min" else operators.MAXIMUM
                self.grows |= len(arguments) > 2
                for argument in arguments[1:]:
                    first = Apply(operator, (first, argument))
                return first
            case "ceildiv", [numerator, denominator]:
                return Apply(operators.CEILING_DIVIDE, (numerator, denominator))
            case (("ispow2" | "abs" | "log2"), [value]):
                return Apply(_OF_ONE[name], (value,))
            case (("min" | "max" | "ceildiv" | "ispow2" | "abs" | "log2"), _):
                takes = {"min": "two or more", "max": "two or more", "ceildiv": "two"}
                wanted = f"{takes.get(name, 'one')} argument{'s' * (name in takes)}"
                _refuse(self.text, f"{name} takes {wanted}, got {len(arguments)}")
        _refuse(self.text, f"{name}(...) is not allowed; there is {ALLOWED}")

    def _error(self, tree: ast.expr) -> ExpressionError:
        part = ast.get_source_segment(self.text.strip(), tree) or type(tree).__name__
        why = f"{part!r} is not allowed; there is {ALLOWED}"
        return ExpressionError(f"expression {self.text!r}: {why}")


_OF_ONE = {"ispow2": operators.IS_POWER_OF_TWO, "abs": operators.ABSOLUTE, "log2": operators.LOG2}

_CONVERSIONS: Mapping[type[ast.expr], Callable[[_Parser, Any, int], Node]] = {
    ast.Constant: _Parser._constant,
    ast.Name: _Parser._name,
    ast.UnaryOp: _Parser._unary,
    ast.BinOp: _Parser._binary,
    ast.BoolOp: _Parser._junction,
    ast.IfExp: _Parser._conditional,
    ast.Compare: _Parser._comparison,
    ast.Call: _Parser._call,
}


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
        return cls(text, *parse(text, exact_division=exact_division))

    @classmethod
    def _of(cls, text: str, root: Node) -> Expression:
        check_size(text, root)
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
