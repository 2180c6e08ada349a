"""A CPU kernel bound to a problem, called on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import OperandError
from autotune.operands import check_operands

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.problem import Gemm


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
        """See `autotune.runtime.Kernel`.

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


def _real(name: str, scalar: Any) -> float:
    try:
        return float(scalar)
    except (TypeError, ValueError, OverflowError) as error:
        raise OperandError(f"{name} must be a real number, got {scalar!r:.40}: {error}") from error


def _never(*arguments: object) -> bool:
    return False
