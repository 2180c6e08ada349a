"""Expressions as functions of integers: what is known is worked out once, the rest by Python.

Functions are made of syntax trees, which follow the tree of the checked expression; no text is
compiled. What `Expression.evaluate` is particular about, and Python is not (text in a number's
place, divisions that must be whole, numbers beyond all bounds), ends a function with
`UndecidedError`: whoever called it asks `Expression.evaluate`, which knows what is wrong.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.space import operators
from autotune.space.columns import MisuseError, UndefinedError
from autotune.space.nodes import Apply, Constant, Junction, Name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.nodes import Node
    from autotune.space.operators import Operator
    from autotune.space.parameter import TunableParameter

ARGUMENT_BITS = 63
"""Bits of the largest argument."""

_ERRORS = (ZeroDivisionError, OverflowError, TypeError, MisuseError, UndefinedError)


class UndecidedError(Exception):
    """The values are not what the function was made for: evaluate the expressions themselves."""


@dataclass(frozen=True, slots=True)
class Group:
    """Values that are wanted together.

    Attributes:
        values: whose.
        when: where this is false there are none; None is always true.
    """

    values: tuple[Expression, ...]
    when: Expression | None = None


def compiled(
    arguments: Sequence[str],
    constants: Mapping[str, Value],
    definitions: Mapping[str, Expression],
    required: Sequence[Expression],
    groups: Sequence[Group],
    chosen: Sequence[TunableParameter] = (),
) -> Callable[..., tuple[tuple[Value, ...] | None, ...] | None]:
    """A function of integers that gives the values of expressions.

    It raises UndecidedError where one of the definitions, or anything else that is needed, has no
    value, or an argument has more than `ARGUMENT_BITS`.

    Args:
        arguments: names of its arguments.
        constants: further names, and what they stand for.
        definitions: named expressions over all those and earlier definitions; all of them must
            have a value.
        required: what must hold.
        groups: what is wanted.
        chosen: parameters whose values, among those that each has, are further arguments.

    Returns:
        The function. It gives None where something that is required does not hold; else the values
        of every group, None for one that there is not.
    """
    writer = _Writer(constants, arguments, chosen)
    body = writer.checks()
    for name, definition in definitions.items():
        body += writer.define(name, definition)
    for each in required:
        holds = writer.term(each)
        if not holds.value:
            body.append(_if_not(holds.tree, ast.Return(ast.Constant(None))))
    made = [writer.group(each) for each in groups]
    body.append(ast.Return(_tuple(made)))
    return writer.function(body)


@dataclass(frozen=True, slots=True)
class _Term:
    """The value of an expression in a function.

    Attributes:
        tree: computes it.
        bits: of the largest magnitude that it can have; None where it may be no integer.
        value: what is known of it when the function is made; None where that is nothing.
    """

    tree: ast.expr
    bits: int | None
    value: Value | None = None


_TREE, _BITS, _VALUE = map(attrgetter, ("tree", "bits", "value"))


class _Writer:
    """Writes expressions as syntax trees.

    Args:
        constants: names whose values are known.
        arguments: names of the function's first arguments.
        chosen: parameters that are the others.
    """

    def __init__(
        self,
        constants: Mapping[str, Value],
        arguments: Sequence[str],
        chosen: Sequence[TunableParameter],
    ) -> None:
        self._arguments = [f"argument_{position}" for position in range(len(arguments))]
        self._chosen = [f"chosen_{position}" for position in range(len(chosen))]
        self._known: dict[str, _Term] = {name: _constant(each) for name, each in constants.items()}
        for name, variable in zip(arguments, self._arguments, strict=True):
            self._known[name] = _Term(_name(variable), ARGUMENT_BITS)
        for each, variable in zip(chosen, self._chosen, strict=True):
            self._known[each.name] = _Term(_name(variable), each.bits)
        self._scope: dict[str, Any] = {"undecided": _undecided, "exact": operators.exact_quotient}
        self._scope |= {"minimum": min, "maximum": max, "errors": _ERRORS}

    def checks(self) -> list[ast.stmt]:
        """Statements that give up where an argument is too large."""
        limit = ast.Constant(2**ARGUMENT_BITS)
        least, below = ast.UnaryOp(ast.USub(), limit), [ast.Lt(), ast.Lt()]
        return [
            _if_not(ast.Compare(least, [*below], [_name(each), limit]), _GIVE_UP)
            for each in self._arguments
        ]

    def define(self, name: str, definition: Expression) -> list[ast.stmt]:
        """Statements after which a name is known."""
        term = self.term(definition)
        if term.value is not None:
            self._known[name] = term
            return []
        variable = f"defined_{len(self._known)}"
        self._known[name] = _Term(_name(variable), term.bits)
        return [ast.Assign([ast.Name(variable, ast.Store())], term.tree)]

    def group(self, group: Group) -> ast.expr:
        """The values of a group."""
        values = _tuple([self.term(each).tree for each in group.values])
        if group.when is None:
            return values
        return ast.IfExp(self.term(group.when).tree, values, ast.Constant(None))

    def term(self, expression: Expression) -> _Term:
        """The term of an expression."""
        known = self._known.keys() >= {*expression.ordered_names}
        return self._term(expression.root) if known else _NEVER

    def function(self, body: list[ast.stmt]) -> Callable[..., Any]:
        """The function with this body."""
        module = ast.parse("def function(): pass")
        definition = module.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.args.args = [ast.arg(each) for each in (*self._arguments, *self._chosen)]
        ends = ast.ExceptHandler(_name("errors"), None, [_GIVE_UP])
        definition.body = [ast.Try(body, [ends], [], [])]
        exec(compile(ast.fix_missing_locations(module), "<expressions>", "exec"), self._scope)
        function: Callable[..., Any] = self._scope["function"]
        return function

    def _term(self, node: Node) -> _Term:
        """The term of a tree; what follows from known values is worked out."""
        if isinstance(node, Constant):
            return _constant(node.value)
        if isinstance(node, Name):
            return self._known[node.name]
        if isinstance(node, Junction):
            return self._junction(node)
        if isinstance(node, Apply):
            return self._apply(node.operator, [*map(self._term, node.operands)])
        condition = self._term(node.operands[0])
        if condition.value is not None:
            return self._term(node.operands[1 if condition.value else 2])
        then, otherwise = map(self._term, node.operands[1:])
        bits = None
        if then.bits is not None and otherwise.bits is not None:
            bits = max(then.bits, otherwise.bits)
        return _Term(ast.IfExp(condition.tree, then.tree, otherwise.tree), bits)

    def _junction(self, node: Junction) -> _Term:
        """The term of a junction, of which operands that decide nothing are left out."""
        trees: list[ast.expr] = []
        for operand in node.operands:
            term = self._term(operand)
            if term.value is None:
                trees.append(term.tree)
            elif bool(term.value) != node.conjunction:  # it decides, where it is reached
                trees.append(term.tree)
                break
        if not trees or isinstance(trees[0], ast.Constant):
            return _constant(node.conjunction != bool(trees))
        joint = ast.And() if node.conjunction else ast.Or()
        tree = trees[0] if len(trees) == 1 else ast.BoolOp(joint, trees)
        return _Term(ast.IfExp(tree, ast.Constant(True), ast.Constant(False)), 1)

    def _apply(self, operator: Operator, operands: Sequence[_Term]) -> _Term:
        values, sizes = [*map(_VALUE, operands)], [*map(_BITS, operands)]
        if None not in values:
            try:
                return _constant(operator.scalar(*values))
            except (UndefinedError, MisuseError):
                return _NEVER
        trees, whole = [*map(_TREE, operands)], None not in sizes
        if operator is operators.NOT:
            return _Term(ast.UnaryOp(ast.Not(), trees[0]), 1)
        python: Any = operator.python
        compares = python is not None and issubclass(python, ast.cmpop)
        if compares and (whole or operator in (operators.EQUAL, operators.NOT_EQUAL)):
            return _Term(ast.Compare(trees[0], [python()], trees[1:]), 1)
        if whole and operator.bits is not None:
            bits = operator.bits(*sizes)
            if bits <= operators.LARGEST_BITS:
                return _Term(_arithmetic(operator, trees), bits)
        name = f"operator_{len(self._scope)}"
        self._scope[name] = operator.scalar
        return _Term(_call(name, *trees), 1 if operator.decides else None)


_CALLED: Mapping[Operator, str] = {
    operators.DIVIDE_EXACTLY: "exact",
    operators.MINIMUM: "minimum",
    operators.MAXIMUM: "maximum",
}


def _arithmetic(operator: Operator, trees: Sequence[ast.expr]) -> ast.expr:
    if operator is operators.CEILING_DIVIDE:
        left, right = trees
        quotient = ast.BinOp(ast.UnaryOp(ast.USub(), left), ast.FloorDiv(), right)
        return ast.UnaryOp(ast.USub(), quotient)
    if operator in _CALLED:
        return _call(_CALLED[operator], *trees)
    made: Any = operator.python and operator.python()
    return ast.UnaryOp(made, trees[0]) if len(trees) == 1 else ast.BinOp(trees[0], made, trees[1])


def _constant(value: Value) -> _Term:
    return _Term(
        ast.Constant(value), value.bit_length() if isinstance(value, int) else None, value
    )


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _tuple(trees: list[ast.expr]) -> ast.expr:
    return ast.Tuple(trees, ast.Load())


def _call(name: str, *operands: ast.expr) -> ast.expr:
    return ast.Call(_name(name), [*operands], [])


def _if_not(condition: ast.expr, then: ast.stmt) -> ast.stmt:
    return ast.If(ast.UnaryOp(ast.Not(), condition), [then], [])


_GIVE_UP = ast.Expr(_call("undecided"))
"""The statement that gives up."""

_NEVER = _Term(_call("undecided"), None)
"""The term of an expression that has no value."""


def _undecided() -> NoReturn:
    raise UndecidedError
