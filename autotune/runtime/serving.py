"""Products inside frameworks: a kernel where one was measured, else the framework's own.

`matmul` takes the best kernel there is. What stands in for a framework's product must never be
slower for want of a measurement: it is served where the device's records or its model speak of
the very problem, and left to the framework everywhere else.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError, OperandError
from autotune.operations.problem import Gemm
from autotune.runtime.multiplying import kernel_for
from autotune.runtime.routes import tell, way_of
from autotune.runtime.shapes import products_of
from autotune.store import MatchQuality

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.runtime.arrays.base import Library, Look
    from autotune.targets.kernel import BoundKernel, Kernel

MEASURED = (MatchQuality.EXACT, MatchQuality.STALE, MatchQuality.PREDICTED)
"""How a kernel must match to take the place of a framework's product."""

_log = logging.getLogger(__name__)

_LEFT = "left to the library: "


@dataclass(frozen=True, slots=True)
class Served:
    """A product of two matrices that a kernel computes.

    Attributes:
        problem: what it is; its layout says which operands the kernel takes turned, as they are
            stored.
        kernel: ``kernel(a, b, out, alpha, beta)`` of operands as they are stored.
    """

    problem: Gemm
    kernel: BoundKernel


def served(
    library: Library,
    a: Look,
    b: Look,
    caller: str,
    accepts: Callable[[Gemm], bool] | None = None,
) -> Served | None:
    """The product of two matrices by a measured kernel; None leaves it to their library.

    Nothing is copied for it: what a kernel cannot read where it lies is left to the library, too.

    Args:
        library: what the operands are of.
        a: how A lies.
        b: how B lies.
        caller: the function that was called, for the log.
        accepts: which problems may be served; None takes all.
    """
    problem_and_target = _problem_of(library, a, b)
    if problem_and_target is None:
        kinds = f"{tuple(a.shape)} of {a.dtype} by {tuple(b.shape)} of {b.dtype}"
        tell(caller, None, "", f"{kinds}: {_LEFT}no kernel takes them as they lie")
        return None
    problem, target = problem_and_target
    if accepts is not None and not accepts(problem):
        tell(caller, problem, target, f"{_LEFT}not selected")
        return None
    kernel = measured_kernel(problem, target, caller)
    return None if kernel is None else Served(problem, kernel.bound)


def _problem_of(library: Library, a: Look, b: Look) -> tuple[Gemm, str] | None:
    """What two operands ask for, and where; None where no kernel could take them."""
    if len(a.shape) != 2 or len(b.shape) != 2:
        return None
    try:
        target = library.target(a, b)
        dtype = None if target is None else library.dtype(a, b)
        if target is None or dtype is None:
            return None
        products = products_of(library.spread(a, dtype), library.spread(b, dtype))
    except OperandError:  # the library says what is wrong
        return None
    if min(products.sizes) < 1 or products.left.copied or products.right.copied:
        return None
    m, n, k = products.sizes
    return Gemm(m, n, k, dtype, layout=products.layout), target


def measured_kernel(problem: Gemm, target: str, caller: str) -> Kernel | None:
    """The kernel that serves a problem in place of a framework's product, or None.

    Args:
        problem: what is to be computed.
        target: where.
        caller: the function that was called, for the log.
    """
    try:
        kernel = kernel_for(problem, target)
    except AutotuneError as error:  # programs must not end for what they can do without
        _warn(f"{target} kernels take no part: {error}")
        return None
    if kernel is None:
        way = f"{_LEFT}no family can serve it"
    elif kernel.library:
        way = f"{_LEFT}{kernel.reason}"
    elif kernel.match not in MEASURED:
        way = f"{_LEFT}nothing was measured for it on this device ({kernel.match})"
    else:
        tell(caller, problem, target, way_of(kernel))
        return kernel
    tell(caller, problem, target, way)
    return None


@functools.cache
def _warn(text: str) -> None:
    _log.warning("%s", text)
