"""A CPU kernel bound to a problem, called on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    """

    def __init__(self, problem: Gemm, raw: Callable[..., None]) -> None:
        self._problem = problem
        self._raw = raw

    def __call__(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> NDArray[Any]:
        """See `autotune.runtime.Kernel`."""
        if stream is not None:
            raise OperandError(f"a cpu kernel takes no stream, got {stream!r:.80}")
        c = check_operands(self._problem, a, b, out, beta)
        self._raw(a, b, c, alpha, beta)
        return c
