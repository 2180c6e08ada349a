"""Epilogues as text of the language that templates emit.

What an epilogue reads may have any name, and so may what templates of gemm declare. So what is the
epilogue's has an underscore in emitted sources: at its end in CUDA C++ (``bias_``, ``ldbias_``),
at its beginning in Python (``_bias_address``). Nothing else has.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.operations.epilogue import GATES, VALUE, epilogue_of
from autotune.operations.formula import GELU_CUBE, GELU_SCALE
from autotune.operations.parts import Kind, operand_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.operations.epilogue import Along, Epilogue
    from autotune.operations.operation import Operation

_HALF_ROOT, _SLOPE, _CURVE = math.sqrt(0.5), -2 * GELU_SCALE, -2 * GELU_SCALE * GELU_CUBE

_EXACT = {
    "sigmoid": "T(1) / (T(1) + exp(-x))",
    "silu": "x / (T(1) + exp(-x))",
    "gelu": f"T(0.5) * x * (T(1) + erf(x * T({_HALF_ROOT!r})))",
    "gelu_tanh": f"x / (T(1) + exp(x * (T({_SLOPE!r}) + T({_CURVE!r}) * x * x)))",
}
"""Functions of one argument ``x`` that may occur more than once; gelu_tanh by the sigmoid."""

_IN_CUDA = {name: f" return {text}; " for name, text in _EXACT.items()}

_GELU_FAST = """
  // x times the normal distribution function: Abramowitz and Stegun, 26.2.17.
  const T t = __fdividef(T(1), T(1) + T(0.2316419) * fabsf(x));
  const T rest = T(0.710706871) + t * (T(-0.726576013) + t * T(0.530702714));
  const T sum = t * (T(0.127414796) + t * (T(-0.142248368) + t * rest));
  const T tail = sum * __expf(T(-0.5) * x * x);
  return x * (x < T(0) ? tail : T(1) - tail);
"""
"""Within 7.5e-8 of x; coefficients are scaled as the distribution's density is."""

_IN_CUDA_FAST = {
    "sigmoid": " return __fdividef(T(1), T(1) + __expf(-x)); ",
    "silu": " return __fdividef(x, T(1) + __expf(-x)); ",
    "gelu": _GELU_FAST,
    "gelu_tanh": (
        f" return __fdividef(x, T(1) + __expf(x * (T({_SLOPE!r}) + T({_CURVE!r}) * x * x))); "
    ),
}
"""The same of products of 16-bit operands, whose sums are farther off than these."""

_IN_PYTHON = {
    name: text.replace("T(", "REAL(") for name, text in _EXACT.items() if "erf" not in text
}

NUMBA_LACKS = frozenset(GATES) - _IN_PYTHON.keys()
"""Functions that Numba's modules have not: no template imports the error function."""

_LARGEST_WHOLE = 2**24
"""Numbers up to here are written as whole ones: every element type has them."""


@dataclass(frozen=True, slots=True)
class EpilogueOperand:
    """An operand that an epilogue reads, as templates are told of it.

    Attributes:
        name: what the expression calls it; in CUDA C++ its argument too, in Python that less its
            "_address".
        stride: the argument with the elements from one of its rows to the next; None where it has
            none.
        along: "column", "row" or "matrix": whether a column of C has an element of it, a row, or
            every element.
        c_type: in CUDA C++, what sources call the type of its elements; else empty.
    """

    name: str
    stride: str | None
    along: str
    c_type: str


@dataclass(frozen=True, slots=True)
class EpilogueText:
    """The text of an epilogue in a template.

    Attributes:
        formula: for a comment: "relu(value + bias)".
        expression: of the element ``value`` of C in ``row`` and ``column``.
        operands: what it reads, in the order of the arguments.
        scalars: what the expression calls the scalars it uses, and kernels the arguments.
        functions: which of maximum, minimum, exp and tanh it calls; the first two give NaN where
            an argument is NaN.
    """

    formula: str
    expression: str
    operands: tuple[EpilogueOperand, ...]
    scalars: tuple[str, ...]
    functions: tuple[str, ...]


CUDA_NAME, NUMBA_NAME = "{}_", "_{}"
"""The names of an epilogue's arguments in sources."""


def emitted_names(operation: Operation, name: str) -> Mapping[str, str]:
    """The names of an operation's arguments in sources, by the arguments' own names.

    Args:
        operation: whose kernels take them.
        name: `CUDA_NAME` or `NUMBA_NAME`.
    """
    following = epilogue_of(operation)
    names = {each.name: each.name for each in operation.arguments}
    if following is None:
        return names
    own = {*following.scalars}
    for along in following.operands:
        operand = along.operand
        parts = operand_arguments(operand.name, len(operand.shape), written=False)
        own |= {each.name for each in parts}
    return names | {each: name.format(each) for each in own}


def cuda_epilogue(epilogue: Epilogue, operand: str) -> EpilogueText | None:
    """An epilogue in CUDA C++, over pointers and leading dimensions; None where nothing follows.

    Args:
        epilogue: what follows the product.
        operand: what the source calls the type of operands, where ``T`` is what it computes in.
    """

    def element(each: EpilogueOperand) -> str:
        line = f"static_cast<long long>(row) * {each.stride}"
        places = {"column": "column", "row": line, "matrix": f"{line} + column"}
        read = f"{each.name}[{places[each.along]}]"
        return read if operand == "T" else f"T({read})"

    gates = _IN_CUDA if operand == "T" else _IN_CUDA_FAST
    bodies = {name: f"[](T x) {{{{{text}}}}}({{}})" for name, text in gates.items()}
    return _text(epilogue, element, _Words("T", operand, CUDA_NAME, bodies))


def numba_epilogue(epilogue: Epilogue) -> EpilogueText | None:
    """An epilogue in Python for Numba, over arrays; None where nothing follows.

    A vector is indexed by ``column`` or ``row``, and so is the row at hand of a matrix by
    ``column``. ``REAL`` is what is computed in.
    """

    def element(each: EpilogueOperand) -> str:
        return f"{each.name}[{'row' if each.along == 'row' else 'column'}]"

    bodies = {name: f"(lambda x: {text})({{}})" for name, text in _IN_PYTHON.items()}
    return _text(epilogue, element, _Words("REAL", "", NUMBA_NAME, bodies))


@dataclass(frozen=True, slots=True)
class _Words:
    """Words of a language.

    Attributes:
        real: the type that is computed in.
        c_type: as in `EpilogueOperand`.
        name: of the epilogue's arguments, to format.
        gates: functions that are written out, each to format with its argument.
    """

    real: str
    c_type: str
    name: str
    gates: Mapping[str, str]


def _text(
    epilogue: Epilogue, element: Callable[[EpilogueOperand], str], words: _Words
) -> EpilogueText | None:
    formula = epilogue.formula
    if formula.text == VALUE:
        return None
    operands = tuple(_operand(each, words.c_type, words.name) for each in epilogue.operands)
    written = {each: words.name.format(each) for each in epilogue.scalars}
    for each, operand in zip(epilogue.operands, operands, strict=True):
        written[each.operand.name] = element(operand)
    writer = _Writer(written, words)
    expression = ast.unparse(writer.visit(ast.parse(formula.text, mode="eval").body))
    return EpilogueText(
        formula.text,
        expression,
        operands,
        tuple(map(words.name.format, epilogue.scalars)),
        tuple(sorted(writer.functions)),
    )


def _operand(each: Along, c_type: str, name: str) -> EpilogueOperand:
    address, *strides = operand_arguments(
        each.operand.name, len(each.operand.shape), written=False
    )
    leading = next((one.name for one in strides if one.kind is Kind.LEADING), None)
    return EpilogueOperand(
        name=name.format(address.name),
        stride=None if leading is None else name.format(leading),
        along=each.place,
        c_type=c_type,
    )


class _Writer(ast.NodeTransformer):
    """Puts a language's words for operands, scalars, numbers and functions into a formula.

    What both languages have in common, operators and how tightly they bind, is left as it is.

    Attributes:
        functions: those that it calls.
    """

    def __init__(self, elements: Mapping[str, str], words: _Words) -> None:
        self._elements = elements
        self._real = words.real
        self._gates = words.gates
        self.functions: set[str] = set()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Elements of operands, and scalars; the value is called what it is called."""
        return ast.Name(self._elements.get(node.id, node.id))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Numbers of the type that is computed in."""
        number = float(node.value)  # type: ignore[arg-type]  # formulas have no other constants
        whole = number.is_integer() and number <= _LARGEST_WHOLE
        return ast.Name(f"{self._real}({int(number) if whole else number})")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """A minus sign; two of them would be another operator in C++."""
        if isinstance(node.operand, ast.UnaryOp):
            inner: ast.expr = self.visit(node.operand.operand)
            return inner
        return ast.UnaryOp(ast.USub(), self.visit(node.operand))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Calls by bare names; relu is what it is short for, and gates are written out."""
        assert isinstance(node.func, ast.Name)
        name, given = node.func.id, [self.visit(each) for each in node.args]
        if name in GATES:
            self.functions |= {"exp"} if "exp" in self._gates[name] else set()
            return ast.Name(self._gates[name].format(ast.unparse(given[0])))
        if name == "relu":
            name = "maximum"
            given.append(ast.Name(f"{self._real}(0)"))
        self.functions.add(name)
        return ast.Call(ast.Name(name), given, [])
