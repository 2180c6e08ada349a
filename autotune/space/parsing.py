"""Text of the expression language to its tree, through Python's own parser and a whitelist."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NoReturn

from autotune.errors import ExpressionError
from autotune.space import operators
from autotune.space.nodes import Apply, Constant, Junction, Name, Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.space.operators import Operator

MAX_TEXT = 2000
"""Characters an expression may have."""
MAX_NODES = 10_000
"""Nodes its tree may have, with all definitions inlined."""
MAX_DEPTH = 100
"""How deep its tree may be nested."""

ALLOWED = (
    "names, numbers, strings, + - * / // % **, comparisons, and/or/not, in [literals], "
    "min, max, ceildiv, ispow2"
)

_BINARY: Mapping[type[ast.operator], Operator] = {
    ast.Add: operators.ADD,
    ast.Sub: operators.SUBTRACT,
    ast.Mult: operators.MULTIPLY,
    ast.Div: operators.DIVIDE,
    ast.FloorDiv: operators.FLOOR_DIVIDE,
    ast.Mod: operators.REMAINDER,
    ast.Pow: operators.POWER,
}
_UNARY: Mapping[type[ast.unaryop], Operator] = {
    ast.UAdd: operators.PLUS,
    ast.USub: operators.NEGATE,
    ast.Not: operators.NOT,
}
_COMPARISONS: Mapping[type[ast.cmpop], Operator] = {
    ast.Eq: operators.EQUAL,
    ast.NotEq: operators.NOT_EQUAL,
    ast.Lt: operators.LESS,
    ast.LtE: operators.LESS_EQUAL,
    ast.Gt: operators.GREATER,
    ast.GtE: operators.GREATER_EQUAL,
}


def parse(text: str, *, exact_division: bool) -> Node:
    """Parse `text`.

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
    return _Parser(text, exact_division).node(body, MAX_DEPTH)


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
    def __init__(self, text: str, exact_division: bool) -> None:
        self.text = text
        self.division = operators.DIVIDE_EXACTLY if exact_division else operators.DIVIDE

    def node(self, tree: ast.expr, levels: int) -> Node:
        """Convert one node; `levels` is how much deeper the tree may still go."""
        if levels == 0:
            _refuse(self.text, f"nested too deeply, at most {MAX_DEPTH} levels")
        match tree:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return Constant(value)
            case ast.Name(id=name):
                return Name(name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _signed(_UNARY[type(op)], self.node(operand, levels - 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                operator = self.division if isinstance(op, ast.Div) else _BINARY[type(op)]
                return Apply(operator, (self.node(left, levels - 1), self.node(right, levels - 1)))
            case ast.BoolOp(op=op, values=values):
                operands = tuple(self.node(value, levels - 1) for value in values)
                return Junction(isinstance(op, ast.And), operands)
            case ast.Compare():
                return self._comparison(tree, levels)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, [self.node(each, levels - 1) for each in arguments])
            case _:
                raise self._error(tree)

    def _comparison(self, tree: ast.Compare, levels: int) -> Node:
        """A chain is the conjunction of its links: evaluating an operand twice changes nothing."""
        links: list[Node] = []
        left = self.node(tree.left, levels - 1)
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
            if type(op) not in _COMPARISONS:
                raise self._error(tree)
            right = self.node(comparator, levels - 1)
            links.append(Apply(_COMPARISONS[type(op)], (left, right)))
            left = right
        return links[0] if len(links) == 1 else Junction(True, tuple(links))

    def _literals(self, tree: ast.expr, levels: int) -> list[Constant]:
        elements = tree.elts if isinstance(tree, ast.List | ast.Tuple) else []
        literals = [self.node(element, levels - 1) for element in elements]
        constants = [literal for literal in literals if isinstance(literal, Constant)]
        if not constants or len(constants) != len(literals):
            _refuse(self.text, "`in` takes a list of one or more numbers or strings")
        return constants

    def _call(self, name: str, arguments: list[Node]) -> Node:
        match name, arguments:
            case "min" | "max", [first, _, *_]:
                operator = operators.MINIMUM if name == "min" else operators.MAXIMUM
                for argument in arguments[1:]:
                    first = Apply(operator, (first, argument))
                return first
            case "ceildiv", [numerator, denominator]:
                return Apply(operators.CEILING_DIVIDE, (numerator, denominator))
            case "ispow2", [value]:
                return Apply(operators.IS_POWER_OF_TWO, (value,))
            case "min" | "max" | "ceildiv" | "ispow2", _:
                takes = {"ispow2": "one argument", "ceildiv": "two arguments"}
                wanted = takes.get(name, "two or more arguments")
                _refuse(self.text, f"{name} takes {wanted}, got {len(arguments)}")
        _refuse(self.text, f"{name}(...) is not allowed; there is {ALLOWED}")

    def _error(self, tree: ast.expr) -> ExpressionError:
        part = ast.get_source_segment(self.text.strip(), tree) or type(tree).__name__
        why = f"{part!r} is not allowed; there is {ALLOWED}"
        return ExpressionError(f"expression {self.text!r}: {why}")
