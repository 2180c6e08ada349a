"""NumPy's arrays, and the rules that CuPy shares with them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.library import Library, core_of, is_usual, only, out_is_missing, scale
from autotune.arrays.shapes import Strided
from autotune.core.dtypes import DTYPES, ELEMENTS
from autotune.core.errors import OperandError, OperandTypeError
from autotune.operations.calls import number

if TYPE_CHECKING:
    from autotune.arrays.library import Core, Descriptor

SMALL_PRODUCT = 1 << 18
"""Multiplications: NumPy's loop over a stack costs less than ours where products have fewer."""

_OBJECTS = np.dtype(object)
"""The element type of results that have none: objects, where a product is one number."""


class NumpyArrays(Library):
    """Arrays of NumPy."""

    module: Any = np
    name = f"NumPy {np.__version__}"
    kinds = (np.ndarray,)

    def batches(self, a: Descriptor, work: int) -> bool:
        return work < SMALL_PRODUCT

    def describe_fast(self, array: Any) -> tuple[Any, ...]:
        return array.shape, array.strides, array.dtype

    def memory(self, a: Descriptor, b: Descriptor) -> str | None:
        return "host"

    def dtype(self, a: Descriptor, b: Descriptor) -> str | None:
        try:
            left, right, result = np.matmul.resolve_dtypes((a.dtype, b.dtype, None))
        except TypeError as error:
            raise OperandTypeError(one_line(error)) from error
        same = left == right == result
        return result.name if same and result.name in DTYPES else None

    def strided(self, operand: Descriptor, dtype: str) -> Strided:
        itemsize, sizes = operand.dtype.itemsize, zip(operand.strides, operand.shape, strict=True)
        broken = any(stride % itemsize and size > 1 for stride, size in sizes)
        if broken or operand.dtype != ELEMENTS[dtype].numpy:
            return Strided(operand.shape, None)
        return Strided(operand.shape, tuple(stride // itemsize for stride in operand.strides))

    def row_major(self, array: Any, dtype: str) -> Any:
        return array.astype(ELEMENTS[dtype].numpy, order="C")

    def aligned(self, array: Any) -> Any:
        return array if array.flags.aligned else array.copy()

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None = None
    ) -> Any:
        return np.empty(shape, ELEMENTS[dtype].numpy)

    def scalar(self, result: Any) -> Any:
        return result[()]

    def takes(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...]) -> bool:
        return (
            type(out) is self.module.ndarray
            and out.shape == shape
            and out.dtype == ELEMENTS[dtype].numpy
            and out.flags.c_contiguous
            and getattr(out.flags, "writeable", True)  # CuPy's always are
            and not any(self.module.may_share_memory(out, array) for array in inputs)
        )

    def store(self, out: Any, result: Any, beta: Any, core: Core) -> Any:
        """As NumPy stores results, which may be broadcast and cast."""
        if not isinstance(out, self.module.ndarray):
            raise OperandTypeError(
                f"out must be an array of {self.module.__name__}, got {type(out).__name__}"
            )
        _check_out(out.shape, np.shape(result), core)
        factor = scale("beta", beta, out.dtype)
        try:
            if np.ndim(result) > out.ndim:  # a stack of one product
                result = result[(0,) * (result.ndim - out.ndim)]
            if factor != 0:
                result = result + factor * out
            self.module.copyto(out, result, casting="same_kind")
        except TypeError as error:
            raise OperandTypeError(one_line(error)) from error
        except (ValueError, OverflowError) as error:
            raise OperandError(one_line(error)) from error
        return out

    def multiply(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """Any operands that the library's own product takes."""
        if type(alpha) is not float or type(beta) is not float:
            alpha, beta = number("alpha", alpha), number("beta", beta)
        out = only(out)
        if beta != 0 and out is None:
            raise out_is_missing(beta)
        usual = is_usual(alpha, beta)
        try:
            result = self._product(a, b, out if usual else None)
            if usual:
                return result
            dtype = getattr(result, "dtype", _OBJECTS)
            factor = scale("alpha", alpha, dtype)
            result = result if factor == 1 else result * factor
            if out is None:
                scale("beta", beta, dtype)
                return result
        except TypeError as error:
            raise OperandTypeError(one_line(error)) from error
        except (ValueError, OverflowError) as error:
            raise OperandError(one_line(error)) from error
        return self.store(out, result, beta, core_of(a, b))

    def _product(self, a: Any, b: Any, out: Any) -> Any:
        return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)


def _check_out(shape: tuple[int, ...], wanted: tuple[int, ...], core: Core) -> None:
    """Refuse an output that is neither of the result's shape nor a stack of such.

    NumPy does without leading sizes of 1, that of a single row included.

    Args:
        shape: of the output.
        wanted: of the result.
        core: what the last dimensions of the result are.
    """
    own = sum(core)
    if core.rows and len(shape) < own:
        own -= 1
    stack, to = wanted[: len(wanted) - own], shape[: max(len(shape) - own, 0)]
    pairs = itertools.zip_longest(reversed(stack), reversed(to), fillvalue=1)
    repeats = all(size in (1, given) for size, given in pairs)
    if shape[len(to) :] != wanted[len(stack) :] or not repeats:
        raise OperandError(f"out must have shape {wanted}, got {shape}")


def one_line(error: Exception) -> str:
    """Message of a library's error, in one line."""
    return " ".join(str(error).split())
