"""NumPy's arrays, and CuPy's, which behave like them."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError, OperandTypeError
from autotune.operations.calls import number
from autotune.runtime.arrays.base import core_of, is_usual, only, out_is_missing, scale
from autotune.runtime.shapes import Spread
from autotune.serving.precision import cupy_is_exact
from autotune.targets.registry import home_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from autotune.runtime.arrays.base import Core, Look
    from autotune.runtime.shapes import Factor

SMALL_PRODUCT = 1 << 18
"""Multiplications: NumPy's loop over a stack costs less than ours where products have fewer."""

_OBJECTS = np.dtype(object)
"""The element type of results that have none: objects, where a product is one number."""


class NumpyArrays:
    """Arrays of NumPy."""

    module: ClassVar[Any] = np
    name = f"NumPy {np.__version__}"

    def keeps(self, a: Any, b: Any) -> bool:
        """See `Library.keeps`."""
        return False

    def look(self, array: Any) -> tuple[Any, ...]:
        """See `Library.look`."""
        return array.shape, array.strides, array.dtype

    def is_watched(self) -> bool:
        """See `Library.is_watched`."""
        return False

    def target(self, a: Look, b: Look) -> str | None:
        """See `Library.target`."""
        return home_of(np.empty(0))

    def dtype(self, a: Look, b: Look) -> str | None:
        """See `Library.dtype`: what `numpy.matmul` computes in."""
        try:
            left, right, result = np.matmul.resolve_dtypes((a.dtype, b.dtype, None))
        except TypeError as error:
            raise OperandTypeError(_one_line(error)) from error
        same = left == right == result
        return result.name if same and result.name in DTYPES else None

    def is_direct(self, a: Look) -> bool:
        """See `Library.is_direct`."""
        return True

    def spread(self, operand: Look, dtype: str) -> Spread:
        """See `Library.spread`."""
        itemsize = operand.dtype.itemsize
        if operand.dtype != DTYPES[dtype].numpy:
            return Spread(operand.shape, None)
        if any(
            stride % itemsize and size > 1
            for stride, size in zip(operand.strides, operand.shape, strict=True)
        ):
            return Spread(operand.shape, None)
        return Spread(operand.shape, tuple(stride // itemsize for stride in operand.strides))

    def working(self, array: Any) -> AbstractContextManager[Any]:
        """See `Library.working`."""
        return contextlib.nullcontext()

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        """See `Library.matrices`."""
        if factor.first:
            array = array[(0,) * factor.first]
        if factor.copied:
            array = array.astype(DTYPES[dtype].numpy, order="C")
        if array.shape != factor.shape:
            array = array.reshape(factor.shape)
        if factor.stack:
            array = self.module.broadcast_to(array, factor.stack + factor.shape[-2:])
        return array.swapaxes(-1, -2) if factor.turned else array

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """See `Library.empty`."""
        return self.module.empty(shape, DTYPES[dtype].numpy)

    def seen(self, array: Any) -> Any:
        """See `Library.seen`."""
        return array

    def finished(self, result: Any) -> Any:
        """See `Library.finished`: a number."""
        return result[()]

    def takes(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...]) -> bool:
        """See `Library.takes`."""
        return (
            type(out) is self.module.ndarray
            and out.shape == shape
            and out.dtype == DTYPES[dtype].numpy
            and out.flags.c_contiguous
            and self._is_writeable(out)
            and not any(self.module.may_share_memory(out, each) for each in inputs)
        )

    def aligned(self, array: Any) -> Any:
        """See `Library.aligned`."""
        return array if array.flags.aligned else array.copy()

    def store(self, out: Any, result: Any, beta: Any, core: Core) -> Any:
        """See `Library.store`: as NumPy stores results, which may be broadcast and cast."""
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
            raise OperandTypeError(_one_line(error)) from error
        except (ValueError, OverflowError) as error:
            raise OperandError(_one_line(error)) from error
        return out

    def batches(self, a: Look, work: int) -> bool:
        """See `Library.batches`."""
        return work < SMALL_PRODUCT

    def is_exact(self, array: Any) -> bool:
        """See `Library.is_exact`."""
        return True

    def multiply(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """See `Library.multiply`: any operands that the library's own product takes."""
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
            raise OperandTypeError(_one_line(error)) from error
        except (ValueError, OverflowError) as error:
            raise OperandError(_one_line(error)) from error
        return self.store(out, result, beta, core_of(a, b))

    def _product(self, a: Any, b: Any, out: Any) -> Any:
        return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)

    def _is_writeable(self, out: Any) -> bool:
        return bool(out.flags.writeable)


class CupyArrays(NumpyArrays):
    """Arrays of CuPy, in the memory of GPUs.

    Args:
        module: the package `cupy`.
    """

    def __init__(self, module: Any) -> None:
        self.module = module  # type: ignore[misc]
        self.name = f"CuPy {module.__version__}"

    def keeps(self, a: Any, b: Any) -> bool:
        """See `Library.keeps`: a launch for each product is no match for one for all."""
        return bool(a.ndim > 2 and b.ndim > 2)

    def look(self, array: Any) -> tuple[Any, ...]:
        """See `Library.look`."""
        return array.shape, array.strides, array.dtype, array.data.device_id

    def target(self, a: Look, b: Look) -> str | None:
        """See `Library.target`: where products of arrays in the memory of a GPU are computed."""
        if a.place != b.place:
            raise OperandError(
                f"a and b must be on one device, got devices {a.place} and {b.place}"
            )
        return home_of(self.module.empty(0))

    def dtype(self, a: Look, b: Look) -> str | None:
        """See `Library.dtype`: CuPy promotes as NumPy does."""
        try:
            result = np.promote_types(a.dtype, b.dtype)
        except TypeError as error:
            raise OperandTypeError(_one_line(error)) from error
        return result.name if result.name in DTYPES else None

    def working(self, array: Any) -> AbstractContextManager[Any]:
        """See `Library.working`."""
        context: AbstractContextManager[Any] = array.device
        return context

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        """See `Library.matrices`."""
        if not factor.copied:
            return super().matrices(array, factor, dtype)
        with array.device:
            return super().matrices(array, factor, dtype)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """See `Library.empty`."""
        with like.device:
            return super().empty(like, shape, dtype)

    def finished(self, result: Any) -> Any:
        """See `Library.finished`: an array without dimensions."""
        return result

    def aligned(self, array: Any) -> Any:
        """See `Library.aligned`."""
        return array if array.data.ptr % array.dtype.itemsize == 0 else array.copy()

    def batches(self, a: Look, work: int) -> bool:
        """See `Library.batches`: a launch for each product is no match for one for all."""
        return True

    def is_exact(self, array: Any) -> bool:
        """See `Library.is_exact`."""
        return cupy_is_exact()

    def _product(self, a: Any, b: Any, out: Any) -> Any:
        with a.device:
            result = self.module.matmul(a, b)
            # CuPy does not mind an output that overlaps what it reads.
            return result if out is None else self.store(out, result, 0, core_of(a, b))

    def _is_writeable(self, out: Any) -> bool:
        return True


def _check_out(shape: tuple[int, ...], wanted: tuple[int, ...], core: Core) -> None:
    """A result goes to an output of its shape, or to each of a stack.

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
    if shape[len(to) :] != wanted[len(stack) :] or not _broadcasts(stack, to):
        raise OperandError(f"out must have shape {wanted}, got {shape}")


def _broadcasts(sizes: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a stack can be repeated to be another one, which may lack leading sizes of 1."""
    pairs = itertools.zip_longest(reversed(sizes), reversed(to), fillvalue=1)
    return all(size in (1, wanted) for size, wanted in pairs)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
