"""NumPy's matrix products by tuned kernels: functions, and arrays whose ``@`` calls them.

Nothing of NumPy's is replaced: ``@`` of its own arrays is compiled into NumPy and cannot be, and
replacing `numpy.matmul` for all callers would change programs that never asked. An array that
`tuned` made carries the choice with it instead, through whatever library it is passed to::

    from autotune.numpy import tuned

    weights = tuned(weights)  # a view
    scores = features @ weights  # by a kernel where one was measured, else by NumPy

Importing it is as cheap as importing NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.host import PLAIN
from autotune.arrays.libraries import NUMPY
from autotune.arrays.library import Descriptor
from autotune.core.errors import OperandError
from autotune.core.session import Remembered
from autotune.runtime.choosing import check_class, class_name, serve, turning

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from autotune.operations.problem import Gemm

__all__ = ["TunedArray", "dot", "matmul", "tuned"]


def matmul(
    a: ArrayLike, b: ArrayLike, out: Any = None, *, accuracy: str = "", **options: Any
) -> Any:
    """`numpy.matmul` by a kernel where one was measured to be faster.

    Two matrices that are plain arrays of one dtype are served; everything else is NumPy's, with
    its results and errors.

    Args:
        a: A.
        b: B.
        out: C, as `numpy.matmul` takes it.
        accuracy: the loosest accuracy class that a kernel may have; empty is `ieee`.
        options: `numpy.matmul`'s others; with any of them it is NumPy's.

    Raises:
        InputError: there is no such class, or not for operands of the type.
    """
    if type(accuracy) is not str:
        accuracy = class_name(accuracy)
    if not options and type(a) is np.ndarray and type(b) is np.ndarray:
        product = _PRODUCTS[NUMPY.describe_fast(a), NUMPY.describe_fast(b), accuracy]
        if product is not None:
            try:
                return product(a, b, out)
            except OperandError:  # an output or addresses that NumPy takes, or says what is wrong
                pass
    return np.matmul(a, b, out=out, **options)


def dot(a: ArrayLike, b: ArrayLike, out: Any = None) -> Any:
    """`numpy.dot`; of two matrices it is `matmul`."""
    if type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2 and out is None:
        return matmul(a, b)
    return np.dot(a, b, out=out)


def tuned(array: ArrayLike) -> TunedArray:
    """A view of an array, whose products go to tuned kernels; `numpy.asarray` takes it back."""
    return np.asarray(array).view(TunedArray)


class TunedArray(np.ndarray[Any, Any]):
    """An array of NumPy's whose products, by ``@`` or a function, are those of this module.

    What is computed from it is such an array, too. All other functions of NumPy take about a
    microsecond longer.
    """

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        given = [_plain(each) for each in inputs]
        if out is not None:
            options["out"] = tuple(_plain(each) for each in out)
        if ufunc is np.matmul and method == "__call__":
            (options["out"],) = options.get("out", (None,))
            result = matmul(*given, **options)
        else:
            result = getattr(ufunc, method)(*given, **options)
        if out is not None and result is not NotImplemented:
            return out[0] if len(out) == 1 else out
        if isinstance(result, tuple):
            return tuple(map(_tuned, result))
        return _tuned(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function is np.dot and "out" not in options and len(arguments) == 2:
            return _tuned(dot(*map(_plain, arguments)))
        return super().__array_function__(function, types, arguments, options)

    def dot(self, other: Any, out: Any = None) -> Any:
        """As `numpy.dot`."""
        return np.dot(self, other) if out is None else np.dot(self, other, out=out)


PLAIN.add(TunedArray)


def _plain(operand: Any) -> Any:
    return operand.view(np.ndarray) if isinstance(operand, TunedArray) else operand


def _tuned(result: Any) -> Any:
    return result.view(TunedArray) if type(result) is np.ndarray else result


def _make_product(
    a: tuple[Any, ...], b: tuple[Any, ...], accuracy: str
) -> Callable[..., NDArray[Any]] | None:
    """The product of plain arrays that lie like these; None is NumPy's for good."""

    def asked(problem: Gemm) -> str:
        check_class(accuracy, problem.dtype)
        return accuracy

    found = serve(NUMPY, Descriptor(*a), Descriptor(*b), "numpy matmul", asked)
    if found is None:
        return None
    contest, layout = found.contest, found.problem.layout

    def product(left: Any, right: Any, out: Any = None) -> Any:
        return contest.call(
            lambda kernel: turning(kernel.bound, layout)(left, right, out),
            lambda: np.matmul(left, right, out=out),
            left,
            twice=out is None,
        )

    def by_now() -> Callable[..., NDArray[Any]] | None:
        if contest.winner is not None:
            return turning(contest.winner.bound, layout)
        return None if contest.is_librarys else product

    def changed() -> None:
        _PRODUCTS[a, b, accuracy] = by_now()

    contest.on_change(changed)
    return by_now()


_PRODUCTS = Remembered(_make_product)
