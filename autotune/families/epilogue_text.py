"""Epilogues as text of the language that templates emit.

What an epilogue reads may have any name, and so may what templates of gemm declare. So what is the
epilogue's has an underscore in emitted sources: at its end in CUDA C++ (``bias_``, ``ldbias_``),
at its beginning in Python (``_bias_address``). Nothing else has.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.operations.epilogue import VALUE, epilogue_of
from autotune.operations.parts import Kind, operand_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.operations.epilogue import Along, Epilogue
    from autotune.operations.operation import Operation

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

    return _text(epilogue, element, "T", operand, CUDA_NAME)


def numba_epilogue(epilogue: Epilogue) -> EpilogueText | None:
    """An epilogue in Python for Numba, over arrays; None where nothing follows.

    A vector is indexed by ``column`` or ``row``, and so is the row at hand of a matrix by
    ``column``. ``REAL`` is what is computed in.
    """

    def element(each: EpilogueOperand) -> str:
        return f"{each.name}[{'row' if each.along == 'row' else 'column'}]"

    return _text(epilogue, element, "REAL", "", NUMBA_NAME)


def _text(
    epilogue: Epilogue,
    element: Callable[[EpilogueOperand], str],
    real: str,
    c_type: str,
    name: str,
) -> EpilogueText | None:
    formula = epilogue.formula
    if formula.text == VALUE:
        return None
    operands = tuple(_operand(each, c_type, name) for each in epilogue.operands)
    written = {each: name.format(each) for each in epilogue.scalars}
    for each, operand in zip(epilogue.operands, operands, strict=True):
        written[each.operand.name] = element(operand)
    writer = _Writer(written, real)
    expression = ast.unparse(writer.visit(ast.parse(formula.text, mode="eval").body))
    return EpilogueText(
        formula.text,
        expression,
        operands,
        tuple(map(name.format, epilogue.scalars)),
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

    def __init__(self, elements: Mapping[str, str], real: str) -> None:
        self._elements = elements
        self._real = real
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
        """Calls by bare names; relu is what it is short for."""
        assert isinstance(node.func, ast.Name)
        name, given = node.func.id, [self.visit(each) for each in node.args]
        if name == "relu":
            name = "maximum"
            given.append(ast.Name(f"{self._real}(0)"))
        self.functions.add(name)
        return ast.Call(ast.Name(name), given, [])
