"""Products inside frameworks: a kernel where one was measured, else the framework's own.

`matmul` takes the best kernel there is. What stands in for a framework's product must never be
slower for want of a measurement: it is served where the device's records or its model speak of
the very problem, and left to the framework everywhere else.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.errors import AutotuneError, NotTunedError, OperandError
from autotune.families.catalog import catalog
from autotune.families.offers import refusal
from autotune.operations.problem import Gemm
from autotune.runtime.loading import load
from autotune.runtime.multiplying import on_forgetting
from autotune.runtime.routes import tell, way_of
from autotune.runtime.shapes import products_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.runtime.arrays.base import Library, Look
    from autotune.targets.kernel import BoundKernel, Kernel

_SHAPES = 4096
"""Problems whose kernel is remembered."""

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


def turning(kernel: Callable[..., Any], layout: str) -> Callable[..., Any]:
    """A kernel that takes operands as they are multiplied, by turning those that it wants turned.

    Args:
        kernel: ``kernel(a, b, out, alpha, beta)`` of operands as they are stored.
        layout: how those are stored.
    """
    if layout == "nn":
        return kernel
    turn_a, turn_b = (each == "t" for each in layout)

    def call(a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        return kernel(a.T if turn_a else a, b.T if turn_b else b, out, alpha, beta)

    return call


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
    kernel, reason = _found(problem, target)
    tell(caller, problem, target, f"{_LEFT}{reason}" if kernel is None else way_of(kernel))
    return kernel


@functools.lru_cache(maxsize=_SHAPES)
def _found(problem: Gemm, target: str) -> tuple[Kernel | None, str]:
    """The kernel that serves, or why none does."""
    if (reason := refusal(catalog(target), problem)) is not None:
        return None, reason
    try:
        kernel = load(problem, target, match="predicted", fallback="library")
    except NotTunedError as error:
        return None, str(error)
    except AutotuneError as error:  # programs must not end for what they can do without
        _log.warning("kernels of target %s take no part in a product: %s", target, error)
        return None, str(error)
    return (None, kernel.reason) if kernel.library else (kernel, "")


on_forgetting(_found.cache_clear)
