"""A CPU kernel bound to a problem, called on NumPy arrays."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import OperandError
from autotune.core.forking import LOADING, threads_are_lost
from autotune.core.limits import CpuLimits
from autotune.targets.cpu.direct import direct_call
from autotune.targets.cpu.kernel import load_kernel
from autotune.targets.host_operands import check_operands

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Gemm


class HostKernel:
    """``kernel(a, b, out, alpha, beta, stream)``: checks operands, then computes.

    Args:
        problem: what it computes.
        raw: ``raw(a, b, out, alpha, beta)`` on operands that have been validated.
        direct: ``direct(a, b, out, alpha, beta)`` computes usual calls and says whether it did, if
            there is such a thing for the kernel.
    """

    def __init__(
        self,
        problem: Gemm,
        raw: Callable[..., None],
        direct: Callable[..., bool] | None = None,
    ) -> None:
        self._problem = problem
        self._raw = raw
        self._shape = problem.c_shape
        self._dtype = np.dtype(problem.dtype)
        self._direct = direct or _never

    def __call__(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> NDArray[Any]:
        """See `autotune.targets.Kernel`.

        The usual call costs less than one of NumPy's: it is checked by compiled code, which
        computes nothing unless all is well.
        """
        if stream is None and (out is not None or beta == 0):
            c = np.empty(self._shape, self._dtype) if out is None else out
            if self._direct(a, b, c, alpha, beta):
                return c
        return self._call_carefully(a, b, out, alpha, beta, stream)

    def _call_carefully(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any] | None,
        alpha: float,
        beta: float,
        stream: Any,
    ) -> NDArray[Any]:
        """Any operands there may be: what does not fit is named, what is not plain is copied."""
        if stream is not None:
            raise OperandError(f"a cpu kernel takes no stream, got {stream!r:.80}")
        alpha, beta = _real("alpha", alpha), _real("beta", beta)
        c = check_operands(self._problem, a, b, out, beta)
        self._raw(a, b, c, alpha, beta)
        return c

    def replace_when_called(self, other: Callable[[], HostKernel]) -> None:
        """Let the next call, and all after it, do what another kernel does."""

        def computes(*arguments: Any) -> None:
            with LOADING:
                if self._raw is computes:
                    made = other()
                    self._raw, self._direct = made._raw, made._direct
            self._raw(*arguments)

        self._raw, self._direct = computes, _never


class NumpyProduct:
    """``raw(a, b, out, alpha, beta)``: what a problem asks for, computed by NumPy."""

    def __init__(self, problem: Gemm) -> None:
        self._formula = problem.formula
        self._flipped = [stored == "t" for stored in problem.layout]

    def __call__(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], alpha: float, beta: float
    ) -> None:
        """Store ``alpha A B + beta out`` in `out`; where beta is zero, `out` is not read."""
        left, right = (
            stored.T if flipped else stored
            for stored, flipped in zip((a, b), self._flipped, strict=True)
        )
        if self._formula is not None:
            out[...] = self._formula.evaluate(left, right, out if beta else None, alpha, beta)
        elif alpha == 1 and beta == 0:
            np.matmul(left, right, out=out)
        else:
            product = np.matmul(left, right)
            product *= alpha
            if beta != 0:
                product += beta * out
            out[...] = product


def numpy_kernel(problem: Gemm) -> HostKernel:
    """NumPy's product, with the checks and errors of a tuned kernel."""
    return HostKernel(problem, NumpyProduct(problem))


def host_kernel(
    family: KernelFamily,
    configuration: Configuration,
    problem: Gemm,
    limits: DeviceLimits,
    programs: ProgramCache,
) -> HostKernel:
    """A candidate of a CPU family as a callable, from Numba's file cache when it was compiled.

    In a child by fork that lost Numba's threads it is the nearest candidate of one thread, and
    one that had threads before the fork becomes that; NumPy computes where there is none.

    Args:
        family: the candidate's family.
        configuration: valid for the problem.
        problem: what it computes.
        limits: of the processor.
        programs: where emitted sources go.
    """

    def of_one_thread() -> HostKernel:
        alone = replace(limits, max_threads=1) if isinstance(limits, CpuLimits) else limits
        space = family.space(problem, alone)
        row = space.nearest(configuration, ())
        if row is None:
            return numpy_kernel(problem)
        return host_kernel(family, space[row], problem, alone, programs)

    threaded = family.thread_count(configuration, problem.dtype) != 1
    if threaded and threads_are_lost():
        return of_one_thread()
    kernel = load_kernel(family, configuration, problem, programs)
    bound = HostKernel(problem, kernel, direct_call(kernel, problem, programs))
    if threaded:
        _THREADED[bound] = of_one_thread
    return bound


_THREADED: weakref.WeakKeyDictionary[HostKernel, Callable[[], HostKernel]] = (
    weakref.WeakKeyDictionary()
)
"""Kernels with threads, and what each becomes in a child that lost them."""


def _after_fork_in_child() -> None:
    if threads_are_lost():
        for kernel, other in list(_THREADED.items()):
            kernel.replace_when_called(other)
        _THREADED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _real(name: str, scalar: Any) -> float:
    try:
        return float(scalar)
    except (TypeError, ValueError, OverflowError) as error:
        raise OperandError(f"{name} must be a real number, got {scalar!r:.40}: {error}") from error


def _never(*arguments: object) -> bool:
    return False
