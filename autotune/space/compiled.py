"""Expressions as functions of integers: what is known is worked out once, the rest by Python.

Functions are made of syntax trees, which follow the tree of the checked expression; no text is
compiled. What `Expression.evaluate` is particular about, and Python is not (text in a number's
place, divisions that must be whole, numbers beyond all bounds), ends a function with
`UndecidedError`: whoever called it asks `Expression.evaluate`, which knows what is wrong.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.space import operators
from autotune.space.nodes import Apply, Conditional, Constant, Junction, Name, fold
from autotune.space.operators import MisuseError, UndefinedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.nodes import Node
    from autotune.space.operators import Operator

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

    Returns:
        The function. It gives None where something that is required does not hold; else the values
        of every group, None for one that there is not.
    """
    writer = _Writer(constants, arguments)
    body = writer.checks()
    for name, definition in definitions.items():
        body += writer.define(name, definition)
    for each in required:
        holds = writer.term(each)
        if not isinstance(holds, Constant) or not holds.value:
            body.append(_if_not(_tree(holds), ast.Return(ast.Constant(None))))
    made = [writer.group(each) for each in groups]
    body.append(ast.Return(_tuple(made)))
    return writer.function(body)


@dataclass(frozen=True, slots=True)
class _Computed:
    """A value that is known when the function is called.

    Attributes:
        tree: computes it.
        bits: of the largest magnitude that it can have; None where it may be no integer.
    """

    tree: ast.expr
    bits: int | None


_Term = Constant | _Computed


class _Writer:
    """Writes expressions as syntax trees.

    Args:
        constants: names whose values are known.
        arguments: names of the function's arguments.
    """

    def __init__(self, constants: Mapping[str, Value], arguments: Sequence[str]) -> None:
        self._arguments = [f"argument_{position}" for position in range(len(arguments))]
        self._known: dict[str, _Term] = {name: Constant(each) for name, each in constants.items()}
        for name, variable in zip(arguments, self._arguments, strict=True):
            self._known[name] = _Computed(_name(variable), ARGUMENT_BITS)
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
        if isinstance(term, Constant):
            self._known[name] = term
            return []
        variable = f"defined_{len(self._known)}"
        self._known[name] = _Computed(_name(variable), term.bits)
        return [ast.Assign([ast.Name(variable, ast.Store())], term.tree)]

    def group(self, group: Group) -> ast.expr:
        """The values of a group."""
        values = _tuple([_tree(self.term(each)) for each in group.values])
        when = Constant(True) if group.when is None else self.term(group.when)
        if isinstance(when, Constant):
            return values if when.value else ast.Constant(None)
        return ast.IfExp(when.tree, values, ast.Constant(None))

    def term(self, expression: Expression) -> _Term:
        """The term of an expression."""
        if not expression.names <= self._known.keys():
            return self._never()
        values = {n: each.value for n, each in self._known.items() if isinstance(each, Constant)}
        return self._term(fold(expression.root, values))

    def function(self, body: list[ast.stmt]) -> Callable[..., Any]:
        """The function with this body."""
        module = ast.parse("def function(): pass")
        definition = module.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.args.args = [ast.arg(each) for each in self._arguments]
        ends = ast.ExceptHandler(_name("errors"), None, [_GIVE_UP])
        definition.body = [ast.Try(body, [ends], [], [])]
        exec(compile(ast.fix_missing_locations(module), "<expressions>", "exec"), self._scope)
        function: Callable[..., Any] = self._scope["function"]
        return function

    def _term(self, node: Node) -> _Term:
        """The term of a tree that is folded."""
        match node:
            case Constant():
                return node
            case Name(name=name):
                return self._known[name]
            case Junction():
                trees = [_tree(self._term(each)) for each in node.operands]
                joint = ast.And() if node.conjunction else ast.Or()
                tree = trees[0] if len(trees) == 1 else ast.BoolOp(joint, trees)
                return _Computed(ast.IfExp(tree, ast.Constant(True), ast.Constant(False)), 1)
            case Conditional():
                condition, then, otherwise = [self._term(each) for each in node.operands]
                sizes = [_bits(then), _bits(otherwise)]
                known = [each for each in sizes if each is not None]
                tree = ast.IfExp(_tree(condition), _tree(then), _tree(otherwise))
                return _Computed(tree, max(known) if len(known) == len(sizes) else None)
        if all(isinstance(each, Constant) for each in node.operands):
            return self._never()  # it would have been folded
        return self._apply(node, [self._term(each) for each in node.operands])

    def _apply(self, node: Apply, operands: Sequence[_Term]) -> _Term:
        trees, sizes = [_tree(each) for each in operands], [_bits(each) for each in operands]
        operator, known = node.operator, [each for each in sizes if each is not None]
        whole = len(known) == len(sizes)
        if operator is operators.NOT:
            return _Computed(ast.UnaryOp(ast.Not(), trees[0]), 1)
        python: Any = operator.python
        compares = python is not None and issubclass(python, ast.cmpop)
        if compares and (whole or operator in (operators.EQUAL, operators.NOT_EQUAL)):
            return _Computed(ast.Compare(trees[0], [python()], trees[1:]), 1)
        if whole and operator.bits is not None:
            bits = operator.bits(*known)
            if bits <= operators.LARGEST_BITS:
                return _Computed(_arithmetic(operator, trees), bits)
        name = f"operator_{len(self._scope)}"
        self._scope[name] = operator.scalar
        return _Computed(_call(name, *trees), 1 if operator.decides else None)

    def _never(self) -> _Computed:
        return _Computed(_call("undecided"), None)


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


def _bits(term: _Term) -> int | None:
    if isinstance(term, _Computed):
        return term.bits
    return term.value.bit_length() if isinstance(term.value, int) else None


def _tree(term: _Term) -> ast.expr:
    return ast.Constant(term.value) if isinstance(term, Constant) else term.tree


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


def _undecided() -> NoReturn:
    raise UndecidedError
