"""The vendor's library in place of a tuned kernel: same call, same checks, same errors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.gpu.arrays.libraries import Cupy, Torch, library_of
from autotune.serving.precision import cupy_is_exact, torch_is_exact

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.gpu.arrays.libraries import Library
    from autotune.operations.problem import Gemm
    from autotune.serving.kernel import BoundKernel


class DeviceLibrary:
    """``kernel(a, b, out, alpha, beta, stream)``: PyTorch's or CuPy's product on its stream.

    The tuned kernel takes every other call: operands of other libraries, of several, or that do
    not fit, a stream of the caller's own, and a library that is set to round its inputs. It is
    loaded when it is first needed.

    Args:
        problem: what it computes.
        tuned: makes the tuned kernel.
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
            if isinstance(library, Torch):
                return _by_torch(left, right, out, alpha, beta)
            return _by_cupy(left, right, out, alpha, beta)
        with self._lock:
            if self._tuned is None:
                self._tuned = self._make()
        return self._tuned(a, b, out, alpha, beta, stream)

    def _fits(self, library: Library, a: Any, b: Any, out: Any, beta: float) -> bool:
        """Whether the operands are plain ones of one library, on one device, and apart."""
        problem = self._problem
        if not _computes(library, problem) or type(b) is not type(a):
            return False
        if problem.out_dtype is not None:  # neither library takes one
            return False
        places = [
            library.reader(shape, problem.dtype)(array)
            for array, shape in ((a, problem.a_shape), (b, problem.b_shape))
        ]
        if out is None:
            return beta == 0 and None not in places and places[0][2] == places[1][2]  # type: ignore[index]
        if type(out) is not type(a):
            return False
        places.append(library.reader(problem.c_shape, problem.dtype)(out))
        shapes = (problem.a_shape, problem.b_shape, problem.c_shape)
        ranges = []
        for place, (rows, columns) in zip(places, shapes, strict=True):
            if place is None:
                return False
            start, leading, device = place
            end = start + ((rows - 1) * leading + columns) * problem.itemsize
            ranges.append((device, start, end))
        device, c_start, c_end = ranges[2]
        return all(
            other == device and (end <= c_start or c_end <= start)
            for other, start, end in ranges[:2]
        )


def _computes(library: Library, problem: Gemm) -> bool:
    """Whether a library multiplies in the class that a problem asks for."""
    if problem.accuracy == "ieee" and DTYPES[problem.dtype].accuracy != "ieee":
        return False  # libraries use tensor cores for these
    return problem.accuracy == "tf32" or _is_exact(library)


def _is_exact(library: Library) -> bool:
    """Whether a library multiplies float32 as it is asked to, not in shorter numbers."""
    if isinstance(library, Torch):
        import torch

        return torch_is_exact(torch, "cuda")
    return isinstance(library, Cupy) and cupy_is_exact()


def _by_torch(left: Any, right: Any, out: Any, alpha: float, beta: float) -> Any:
    import torch

    with torch.no_grad():
        if out is None:
            product = torch.matmul(left, right)
            return product if alpha == 1 else product.mul_(alpha)
        if alpha == 1 and beta == 0:
            return torch.matmul(left, right, out=out)
        return out.addmm_(left, right, beta=beta, alpha=alpha)


def _by_cupy(left: Any, right: Any, out: Any, alpha: float, beta: float) -> Any:
    import cupy

    with left.device:
        product = cupy.matmul(left, right)
        if alpha != 1:
            product *= alpha
        if out is None:
            return product
        if beta != 0:
            product += beta * out
        out[...] = product
        return out
