"""Entries of CPU programs, called on matrices within guard values and compared with float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

GUARD = 7.0


@dataclass(frozen=True, slots=True)
class GemmCall:
    """A product: sizes, scalars, and columns of NaN beyond the rows of the stored operands.

    Rows of C have `padding_c` guard values between them, or none.
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    padding_a: int = 0
    padding_b: int = 0
    padding_c: int = 5


def stored(matrix: NDArray[np.floating], transposed: bool, padding: int) -> NDArray[np.floating]:
    """The matrix as a layout stores it, with columns of NaN beyond its leading dimension."""
    rows = matrix.T if transposed else matrix
    padded = np.full((rows.shape[0], rows.shape[1] + padding), np.nan, matrix.dtype)
    padded[:, : rows.shape[1]] = rows
    return padded


def multiply(
    module: ModuleType,
    layout: str,
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    call: GemmCall,
    runtime: Sequence[int],
    accuracy: str = "ieee",
) -> NDArray[np.floating]:
    """What the entry makes of operands, found to be right.

    C lies in a frame of guard values; it holds NaN before the call where beta is 0, as it must not
    be read then.

    Args:
        module: of the program.
        layout: it is for.
        a: M x N.
        b: N x K.
        call: scalars and paddings.
        runtime: the parameters passed at the call.
        accuracy: class of the family; of `strassen` only a bound by norm holds, if all is finite.
    """
    (m, n), k = a.shape, b.shape[1]
    stored_a = stored(a, layout[0] == "t", call.padding_a)
    stored_b = stored(b, layout[1] == "t", call.padding_b)
    untouched = stored_a.copy(), stored_b.copy()
    frame = np.full((m + 2, k + call.padding_c), GUARD, a.dtype)
    left = min(2, call.padding_c)
    c = frame[1:-1, left : left + k]
    c[:] = np.nan if call.beta == 0 else np.random.default_rng(m).standard_normal(c.shape)
    before = np.zeros(c.shape) if call.beta == 0 else c.astype(np.float64)
    module.gemm(
        *(m, n, k, call.alpha),
        *(stored_a.ctypes.data, stored_a.shape[1], stored_b.ctypes.data, stored_b.shape[1]),
        *(call.beta, c.ctypes.data, frame.shape[1]),
        *runtime,
    )
    result = c.copy()
    c[:] = GUARD
    assert (frame == GUARD).all(), "wrote outside C"
    np.testing.assert_array_equal(stored_a, untouched[0])
    np.testing.assert_array_equal(stored_b, untouched[1])
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities times zeros, where a test asks for them
        exact = call.alpha * (a64 @ b64) + call.beta * before
        scale = abs(call.alpha) * (abs(a64) @ abs(b64)) + abs(call.beta * before)
    bound = (4 + 2 * np.sqrt(n)) * float(np.finfo(a.dtype).eps) * scale
    finite = np.isfinite(exact)
    if accuracy == "strassen":
        bound = np.full_like(bound, 32 * bound.max())
        finite = np.isfinite(scale).all() & finite
    else:
        np.testing.assert_array_equal(result[~finite], exact[~finite].astype(a.dtype))
    error = np.abs(result[finite] - exact[finite])
    assert (error <= bound[finite]).all(), error.max()
    return result


def drawn(call: GemmCall, dtype: str) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Operands of a call: the same numbers every time."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((call.m, call.n)).astype(dtype)
    b = rng.standard_normal((call.n, call.k)).astype(dtype)
    return a, b
