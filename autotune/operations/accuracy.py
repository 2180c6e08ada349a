"""Accuracy classes: what a kernel of each may be used for, and how far off its results may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError

_Factor: TypeAlias = Callable[[float, tuple[int, ...]], float]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """An accuracy class.

    Attributes:
        factor: of a tolerance (`Tolerance.factor`), by eps of the sums and a problem's sizes.
        serves: further classes that its kernels satisfy.
        normwise: whether it promises accuracy in norm only.
        products: whether it is for matrix products alone.
        spreads: whether its kernels spread NaN and infinity over numbers.
        operations: most operations of the textbook algorithm for one that its kernels do.
    """

    factor: _Factor
    serves: tuple[str, ...] = ()
    normwise: bool = False
    products: bool = True
    spreads: bool = False
    operations: float = 1.0


def _truncated(eps: float, sizes: tuple[int, ...]) -> float:
    """Sums of exact products that are cut off: (16 + sqrt n) eps, n the reduction.

    Tensor cores hold products of 16-bit operands exactly, but truncate: addends, when they are
    brought to the largest exponent, and every sum of a block of 4 to 16 products with what was
    there (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ
    Computer Science 7:e330, 2021). What is cut off always points to zero, so it does not average
    out: in one accumulator each of n / 4 sums loses up to eps of itself, which for data of one
    sign adds up to n eps / 8 on average. For data of mean zero, as used here, a sum is a random
    walk: for the largest of some 2^24 elements, 5.5 deviations, the losses add up to
    0.5 sqrt(n) eps S.
    """
    return (16 + math.sqrt(sizes[1])) * eps


def _rounded(eps: float, sizes: tuple[int, ...]) -> float:
    """`_truncated`, and 2^-10 min(1, 10 / sqrt n) for operands of 11 bits of significand.

    Two roundings change a product by 2^-10 of itself at most, and by that a sum by 2^-10 S. They
    are of either sign: by Hoeffding's inequality an element is off by more than
    6 2^-10 sqrt(sum of squared products) with a chance of 2 exp(-18), and that root is at most
    1.6 S / sqrt(n) for normal data, 1.4 for uniform.
    """
    return _truncated(eps, sizes) + 2.0**-10 * min(1.0, 10 / math.sqrt(sizes[1]))


def _recursive(eps: float, sizes: tuple[int, ...]) -> float:
    """8 eps 4.5^(L/2), with L recursion levels down to 32.

    The bound of one level of Winograd's variant grows by 18 where the textbook product grows by 4
    (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 23.2.2;
    Strassen's own by 12), so relative to S by 4.5; rounding errors of random data add up like a
    random walk, by its square root. Measured: a factor of 2.1 to 2.4 per level.
    """
    levels = max(0, math.ceil(math.log2(min(sizes) / 32)))
    return 8 * eps * math.pow(4.5, levels / 2)


_LOOSER = ("fp32", "fp32-normwise", "tf32", "native", "strassen")

ACCURACIES: Mapping[str, Accuracy] = {
    # 16 eps. For any data, rounding errors of an inner product are within n u S and, with high
    # probability, within a multiple of sqrt(n) u S; for data of mean zero, as used here, within a
    # multiple of u S that does not grow with n at all, whatever the order of summation (Higham and
    # Mary, "Sharper probabilistic backward error analysis for basic linear algebra kernels with
    # random data", SIAM J. Sci. Comput. 42, 2020). The worst order, one running sum, stays below
    # 3 eps up to n = 32768. The rest is margin, and covers the rounding of the reference itself
    # where the problem is float64. A dropped or doubled term is off by about 1/n: thousands of eps
    # at n = 4096.
    "ieee": Accuracy(lambda eps, _: 16 * eps, serves=_LOOSER, products=False),
    # Operands as they are, in sums that may be cut off, as where tensor cores add up their parts.
    "fp32": Accuracy(_truncated, serves=("fp32-normwise", "tf32")),
    # The same relative to the largest element: small ones may be off by more.
    "fp32-normwise": Accuracy(_truncated, normwise=True),
    "tf32": Accuracy(_rounded),
    "native": Accuracy(_truncated),
    # The bound is one for finite operands, and only those are checked. An Inf or NaN in A or B
    # makes Inf or NaN of elements of C that are finite in the textbook product, since whole blocks
    # are added and subtracted before they are multiplied; in every other class it stays in its row
    # of A, or its column of B. Ten levels are more than anybody recurses.
    "strassen": Accuracy(_recursive, normwise=True, spreads=True, operations=(8 / 7) ** 10),
}
"""Every accuracy class, by name."""


def admits(wanted: str, offered: str) -> bool:
    """Return whether a kernel of class `offered` may serve a problem that asks for `wanted`."""
    return offered == wanted or wanted in ACCURACIES[offered].serves


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The distance that C may have from the float64 reference.

    With S = |alpha| |A| |B| + |beta| |C0|, the error of element ij may be `factor` times S_ij, or,
    where the class promises accuracy only in norm, `factor` times the largest element of S; and
    `rounding` times the magnitude of the reference; and `absolute`. Integers are exact.
    """

    factor: float
    normwise: bool
    rounding: float = 0.0
    absolute: float = 0.0

    @classmethod
    def of(
        cls, accuracy: str, dtype: str, sizes: tuple[int, ...], out_dtype: str | None = None
    ) -> Tolerance:
        """The tolerance of an accuracy class.

        Operands are taken as they were drawn, in their own type: they are exact. eps is of the
        type that products are summed in, float32 for operands of 16 bits, whose products it holds
        exactly (2 x 11 and 2 x 8 bits of significand fit 24); u = eps / 2.

        A result of another type than the sums is rounded to it, once, at the end: off by at most
        u' |C_ij|, where u' is that type's unit roundoff, and among its subnormal numbers by half
        the smallest one (Higham, section 2.1, where (2.8) adds the second to the first).
        C_ij is what was summed; that it differs from the reference adds u' times the above, which
        the margin holds. This part is relative to the result, not to S: data of mean zero cancel,
        so that |C_ij| is about S_ij / sqrt(n). A kernel that rounds every partial sum to 16 bits
        is off by a random walk of such roundings, and stands out; within u' S_ij it would not.

        Args:
            accuracy: the accuracy class of the kernel.
            dtype: element type of the operands.
            sizes: of the problem; of a product M, N (the reduction) and K.
            out_dtype: element type of the result; None means the usual one.

        Raises:
            InputError: there is no such class, or not for what is no product.
        """
        known = ACCURACIES.get(accuracy)
        if known is None:
            raise InputError(f"accuracy must be one of {', '.join(ACCURACIES)}, got {accuracy!r}")
        if known.products and len(sizes) != 3:
            raise InputError(f"accuracy {accuracy} is for matrix products: use ieee")
        sums = DTYPES[dtype].accumulated
        if sums.kind == "integer":
            return cls(0.0, False)
        result = DTYPES[out_dtype or DTYPES[dtype].result]
        final = (0.0, 0.0) if result is sums else (result.unit_roundoff, result.smallest / 2)
        return cls(known.factor(2 * sums.unit_roundoff, sizes), known.normwise, *final)

    def allowed(self, scale: NDArray[Any], largest: float, expected: NDArray[Any]) -> NDArray[Any]:
        """The error that each element may have.

        Args:
            scale: S.
            largest: its largest element.
            expected: the reference.
        """
        allowed = np.multiply(self.factor, largest if self.normwise else scale)
        if self.rounding:
            allowed = allowed + self.rounding * np.abs(expected) + self.absolute
        return np.asarray(allowed)
