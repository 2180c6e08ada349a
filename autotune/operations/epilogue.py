"""Epilogues: what an operation does to every element of a matrix product, in its formula.

``relu(alpha * A @ B + beta * C + bias)`` is gemm's own ``alpha * A @ B + beta * C``, here called
``value``, and then ``relu(value + bias)``, which kernels apply to an element before they store it.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.operations.formula import Formula
from autotune.operations.problem import FACTORS, GEMM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.operations.operation import Operation
    from autotune.operations.parts import Operand

VALUE = "value"
"""The name in an epilogue of the element that gemm would store."""

GATES = ("sigmoid", "silu", "gelu", "gelu_tanh")
"""Functions that sources write out, in terms of exp and of the error function."""

FUNCTIONS = ("maximum", "minimum", "relu", "exp", "tanh", *GATES)
"""Functions that are applied to one element at a time."""

_ALONG = {("K",): "column", ("M", "1"): "row", ("M", "K"): "matrix"}
_ABSENT = {"alpha": 1, "beta": 0}
_PLACES = ("row", "column")


@dataclass(frozen=True, slots=True)
class Along:
    """An operand of an epilogue, and which of its elements belongs to an element of C.

    Attributes:
        operand: the operand.
        place: "column" where every column of C has one, "row" where every row has, "matrix" where
            every element has.
    """

    operand: Operand
    place: str


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The epilogue of a matrix product.

    Attributes:
        formula: over `VALUE`, scalars and operands; `VALUE` alone where nothing follows.
        operands: those beside A, B and C, in the operation's order.
        scalars: names of those beside alpha and beta, in the operation's order.
        absent: which of alpha and beta the operation has not, each with its value.
    """

    formula: Formula
    operands: tuple[Along, ...]
    scalars: tuple[str, ...]
    absent: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=256)
def epilogue_of(operation: Operation) -> Epilogue | None:
    """The epilogue of an operation; None in those that are not computed by gemm's.

    Raises:
        InputError: the operation is no product with an epilogue; the message begins with the key
            that is at fault.
    """
    if not operation.product:
        return None
    if operation.product != GEMM.name:
        raise InputError(must_be("product", operation.product, [GEMM.name]))
    if operation.sizes != GEMM.sizes:
        raise InputError(
            f"sizes must be {', '.join(GEMM.sizes)}, gemm's, with product = 'gemm', "
            f"got {', '.join(operation.sizes)}"
        )
    if operation.takes:
        raise InputError("arguments must be left out with product = 'gemm': kernels are gemm's")
    _check_factors(operation)
    if operation.baselines:
        raise InputError("baseline must be left out with product = 'gemm': libraries compute none")
    operands = tuple(_along(each) for each in operation.operands if each not in FACTORS)
    scalars = [name for name, _ in operation.scalars]
    formula = Formula(ast.unparse(_Splitter(operation).split()))
    for kind, names in (
        ("operands", [each.operand.name for each in operands]),
        ("scalars", scalars),
    ):
        for name in names:
            if name in (VALUE, *_PLACES, *FUNCTIONS):
                raise InputError(f"{kind} must not be called {name!r}, as epilogues use that name")
            if name not in operation.result.names:
                raise InputError(f"{kind} must be part of result, and {name} is not")
    return Epilogue(
        formula=formula,
        operands=operands,
        scalars=tuple(name for name in scalars if name not in _ABSENT),
        absent=tuple((name, value) for name, value in _ABSENT.items() if name not in scalars),
    )


def _check_factors(operation: Operation) -> None:
    """A, B and C are gemm's."""
    found = {each.name: each for each in operation.operands}
    for factor in FACTORS:
        if found.get(factor.name) != factor:
            role = ', role = "out"' if factor.written else ""
            rows, columns = factor.shape
            raise InputError(
                f'operands must have {factor.name} = {{ shape = ["{rows}", "{columns}"]{role} }}'
                ", as gemm has, with product = 'gemm'"
            )


def _along(operand: Operand) -> Along:
    if operand.shape not in _ALONG:
        raise InputError(
            f'operands.{operand.name}.shape must be ["K"], ["M", "1"] or ["M", "K"] to be part '
            f"of an epilogue, got [{', '.join(operand.shape)}]"
        )
    return Along(operand, _ALONG[operand.shape])


class _Splitter:
    """Finds ``[alpha *] A @ B [+ beta * C]`` in an operation's formula."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._scalars = {name for name, _ in operation.scalars}

    def split(self) -> ast.expr:
        """The formula with `VALUE` in place of the product.

        Raises:
            InputError: there is not one such product, or what is around it is not elementwise.
        """
        result = self._operation.result
        if not isinstance(result, Formula):
            raise InputError(
                "reference must be left out with product: the formula, result, says it"
            )
        tree = result.tree
        products = sum(map(_is_product, ast.walk(tree)))
        if products != 1:
            self._fail(f"must have one product A @ B, and has {products}")
        rest = self._without_product(tree)
        self._check(rest)
        return rest

    def _without_product(self, node: ast.expr) -> ast.expr:
        """A part of the formula that has the product in it, with `VALUE` in its place."""
        terms = [*_terms(node, 1)]
        place = _place(terms)
        factors = [*_factors(*terms[place])]
        inner = _place(factors)
        sign, factor = factors[inner]
        if not _is_product(factor):
            factors[inner] = sign, self._inside(factor)
            terms[place] = _multiplied(factors)
            return _added(terms)
        assert isinstance(factor, ast.BinOp)
        factors[inner : inner + 1] = [
            *self._scaling(factor.left, "A"),
            (sign, ast.Name(VALUE)),
            *self._scaling(factor.right, "B"),
        ]
        alphas = [number for number, (_, each) in enumerate(factors) if _is(each, "alpha")]
        for number in alphas[:1]:
            factors[number] = factors[number][0], ast.Constant(1)
        terms[place] = _multiplied(factors)
        return _added(self._without_output(terms, place))

    def _inside(self, node: ast.expr) -> ast.expr:
        """A factor that has the product somewhere below."""
        match node:
            case ast.Call(func=function, args=given):
                inner = [
                    self._without_product(each) if any(map(_is_product, ast.walk(each))) else each
                    for each in given
                ]
                return ast.Call(function, inner, [])
        return self._without_product(node)

    def _scaling(self, side: ast.expr, name: str) -> Iterator[tuple[int, ast.expr]]:
        """The factor of an operand on one side of the product."""
        found = 0
        for sign, factor in _factors(1, side):
            if _is(factor, name):
                found += 1
                yield sign, ast.Constant(1)
            elif isinstance(factor, ast.Constant) or (
                isinstance(factor, ast.Name) and factor.id in self._scalars
            ):
                yield sign, factor
            else:
                found += 2
        if found != 1:
            self._fail(f"must multiply A @ B, and {name} is {ast.unparse(side)!r} there")

    def _without_output(
        self, terms: list[tuple[int, ast.expr]], place: int
    ) -> list[tuple[int, ast.expr]]:
        """Terms without ``beta * C``, which is part of the value."""
        kept = []
        for number, (sign, term) in enumerate(terms):
            factors = [*_factors(sign, term)]
            names = sorted(each.id for _, each in factors if isinstance(each, ast.Name))
            if names != ["C", "beta"] or len(factors) > 2:
                kept.append((sign, term))
                continue
            whole = _product_of_signs(factors)
            (own, value), alone = terms[place], terms[place][1]
            if number == place or not _is(alone, VALUE) or own != whole:
                self._fail(
                    "must add beta * C to [alpha *] A @ B itself, got "
                    f"{ast.unparse(_added([(own, value), (sign, term)]))!r}"
                )
        return kept

    def _check(self, node: ast.expr) -> None:
        """Refuse what is not computed for each element by itself."""
        for each in ast.walk(node):
            match each:
                case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
                    self._fail(
                        f"must be elementwise around the product, of + - * and "
                        f"{', '.join(FUNCTIONS)}, got {name}"
                    )
                case ast.Name(id="A" | "B" | "C" | "alpha" | "beta" as name):
                    self._fail(
                        f"must use {name} in [alpha *] A @ B [+ beta * C] alone, once, and around "
                        f"it has {ast.unparse(node)!r}"
                    )

    def _fail(self, rule: str) -> NoReturn:
        raise InputError(f"result {rule}: {self._operation.result.text!r}")


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _place(parts: Sequence[tuple[int, ast.expr]]) -> int:
    """The one of several parts that has the product in it."""
    return next(
        number for number, (_, part) in enumerate(parts) if any(map(_is_product, ast.walk(part)))
    )


def _terms(node: ast.expr, sign: int) -> Iterator[tuple[int, ast.expr]]:
    """The terms of a sum, each with its sign."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as symbol, right=right):
            yield from _terms(left, sign)
            yield from _terms(right, sign if isinstance(symbol, ast.Add) else -sign)
        case ast.UnaryOp(operand=operand):
            yield from _terms(operand, -sign)
        case _:
            yield sign, node


def _factors(sign: int, node: ast.expr) -> Iterator[tuple[int, ast.expr]]:
    """The factors of a product of elements, each with its sign."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(sign, left)
            yield from _factors(1, right)
        case ast.UnaryOp(operand=operand):
            yield from _factors(-sign, operand)
        case _:
            yield sign, node


def _product_of_signs(factors: Sequence[tuple[int, ast.expr]]) -> int:
    return -1 if sum(sign < 0 for sign, _ in factors) % 2 else 1


def _multiplied(factors: Sequence[tuple[int, ast.expr]]) -> tuple[int, ast.expr]:
    """Factors as one, and its sign; ones are left out."""
    kept = [
        each for _, each in factors if not (isinstance(each, ast.Constant) and each.value == 1)
    ]
    return _product_of_signs(factors), functools.reduce(
        lambda left, right: ast.BinOp(left, ast.Mult(), right), kept
    )


def _added(terms: Sequence[tuple[int, ast.expr]]) -> ast.expr:
    """Terms as a sum, in their order."""
    (sign, first), *others = terms
    total = first if sign > 0 else ast.UnaryOp(ast.USub(), first)
    for sign, term in others:
        total = ast.BinOp(total, ast.Add() if sign > 0 else ast.Sub(), term)
    return total
