"""The vendor's library in place of a tuned kernel: same call, same checks, same errors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from autotune.arrays.libraries import library_of
from autotune.core.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.arrays.library import Library
    from autotune.operations.problem import Gemm
    from autotune.serving.kernel import BoundKernel


class DeviceLibrary:
    """``kernel(a, b, out, alpha, beta, stream)``: PyTorch's or CuPy's product on its stream.

    The tuned kernel takes every other call: operands of other libraries, of several, or that do
    not fit, a stream of the caller's own, and a library that is set to round its inputs. It is
    loaded when it is first needed.
    """

    def __init__(self, problem: Gemm, tuned: Callable[[], BoundKernel]) -> None:
        self._problem = problem
        self._make = tuned
        self._tuned: BoundKernel | None = None
        self._lock = threading.Lock()

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """See `autotune.targets.Kernel`."""
        library = library_of(a)
        numbers = isinstance(alpha, int | float) and isinstance(beta, int | float)
        if stream is None and numbers and self._fits(library, a, b, out, beta):
            flip_a, flip_b = (stored == "t" for stored in self._problem.layout)
            left, right = a.T if flip_a else a, b.T if flip_b else b
            return library.multiply_plain(left, right, out, alpha, beta)
        with self._lock:
            if self._tuned is None:
                self._tuned = self._make()
        return self._tuned(a, b, out, alpha, beta, stream)

    def _fits(self, library: Library, a: Any, b: Any, out: Any, beta: float) -> bool:
        """Are the operands plain ones of one library, on one device, and apart?"""
        problem = self._problem
        if problem.accuracy == "ieee" and DTYPES[problem.dtype].accuracy != "ieee":
            return False  # libraries use tensor cores for these
        if problem.accuracy != "tf32" and not library.is_exact(a):
            return False
        # Neither library takes a result of another dtype.
        if problem.out_dtype is not None or (out is None and beta != 0):
            return False
        ranges = []
        operands = [(a, problem.a_shape), (b, problem.b_shape)]
        for array, shape in operands if out is None else [*operands, (out, problem.c_shape)]:
            found = library.reader(shape, problem.dtype)(array) if type(array) is type(a) else None
            if found is None:
                return False
            start, leading, device = found
            end = start + ((shape[0] - 1) * leading + shape[1]) * problem.itemsize
            ranges.append((device, start, end))
        (device, *_), *_ = ranges
        if any(other != device for other, *_ in ranges):
            return False
        *inputs, (_, c_start, c_end) = ranges
        return out is None or all(end <= c_start or c_end <= start for _, start, end in inputs)
