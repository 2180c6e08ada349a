"""Accuracy classes: what a kernel of each may be used for, and how far off its results may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import InputError
from autotune.core.printable import shown

_Factor: TypeAlias = Callable[[float, tuple[int, ...]], float]

Relative: TypeAlias = Literal["terms", "norms", "largest"]
"""The number that the error of element ij is relative to.

- terms: S_ij, with S = |alpha| |A| |B| + |beta| |C0|.
- norms: |alpha| ||a_i|| ||b_j|| + |beta| |C0_ij|, by the 2-norms of row i of A and column j of B.
  By the inequality of Cauchy and Schwarz it is at least S_ij, which may stand for it (exported
  programs check random elements alone, where it is 0.6 to 0.75 of it).
- largest: the largest element of S.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of errors.

    Attributes:
        factor: of a tolerance (`Tolerance.factor`), by eps of the sums and a problem's sizes.
        relative: what it is a factor of.
    """

    factor: _Factor
    relative: Relative = "terms"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """An accuracy class.

    Attributes:
        usual: the bound for operands of random elements of mean zero.
        promise: the bound for all finite operands, where kernels are held to one.
        serves: further classes that its kernels satisfy.
        dtypes: element types of operands that it is for; empty means all.
        subnormal: whether the promise is also for operands of subnormal numbers.
        products: whether it is for matrix products alone.
        spreads: whether its kernels spread NaN and infinity over numbers.
        operations: most operations of the textbook algorithm for one that its kernels do.
        short: least products of 16-bit numbers on tensor cores that its kernels have in place of
            one, two of 8 bits counted as one; None where products are of the operands' type.
    """

    usual: Bound
    promise: Bound | None = None
    serves: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    subnormal: bool = True
    products: bool = True
    spreads: bool = False
    operations: float = 1.0
    short: float | None = None


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


_SHORT = 256
"""A reduction up to which sums in a tensor core's accumulator are as far off as at this one."""


def _statistical(eps: float, sizes: tuple[int, ...]) -> float:
    """4 sqrt(n) u, where u = eps / 2 and n is the reduction, at least 256.

    Rounding errors of n products and sums, each at most u of what it rounds, add up to n u in the
    worst case, and with high probability to a multiple of sqrt(n) u, whatever the operands (Higham
    and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41,
    2019: lambda = 4 leaves a chance of 2 exp(-8)).

    Kernels that divide operands into parts come to the following, relative to ||a_i|| ||b_j||:

    - Three products of two float16 parts, after exact powers of two for rows and columns: 13 u for
      what the parts leave out, up to n = 2^15. An instruction of a tensor core truncates 16
      products to 26 bits below the largest addend, and then their sum: of a sum that grows, where
      nothing averages out, 24 instructions cut off 43 u (emulated: 47 u). That is all between two
      additions in float32, every 128 steps, which themselves round by u: 90 u at n = 4096, of 256.
      A single accumulator loses 0.3 n u.
    - Six products of three bfloat16 parts: all of 24 bits; with an addition every 64 steps the
      same 24 instructions.
    - Not six products of three signed bytes each, whose sums are exact: the products that are left
      out come to 0.5 sqrt(n) u of the product of the largest elements where low digits are as good
      as random, and to 2 n u where they are not. An outlier among equal elements has it all.
    - Ozaki II: operands are rounded to integers, by half of one, so scaled that
      ||a_i|| ||b_j|| <= P / 2, P the product of the moduli. All else is exact. If all roundings of
      a row have one sign, the error is sqrt(n) / sqrt(P / 2), twice that where a norm is just past
      a power of two, for rows and for columns: at 14 moduli up to 256 (P = 2^110.2) 0.7 sqrt(n) u
      with u = 2^-53, at 13 moduli 10 sqrt(n) u.
    """
    return 2 * math.sqrt(max(sizes[1], _SHORT)) * eps


def _of_tf32(eps: float, sizes: tuple[int, ...]) -> float:
    """2^-10 for two operands rounded to 11 bits, and (n + 64) u for sums in one accumulator.

    Three products of two signed bytes each have half the error on normal data, but where there is
    an outlier among equal elements they are off by 0.06 of the norms at n = 4096, by 0.2 at 16384.
    """
    return 2.0**-10 + (sizes[1] + 64) * eps / 2


def _recursive(eps: float, sizes: tuple[int, ...]) -> float:
    """8 eps 4.5^(L/2), with L recursion levels down to 32.

    The bound of one level of Winograd's variant grows by 18 where the textbook product grows by 4
    (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 23.2.2;
    Strassen's own by 12), so relative to S by 4.5; rounding errors of random data add up like a
    random walk, by its square root. Measured: a factor of 2.1 to 2.4 per level.
    """
    levels = max(0, math.ceil(math.log2(min(sizes) / 32)))
    return 8 * eps * math.pow(4.5, levels / 2)


_LOOSER = ("fp32", "fp32-normwise", "fp64", "tf32", "native", "strassen")
_TERMS = Bound(_statistical)
_NORMS = Bound(_statistical, "norms")
_SINGLE = ("float32",)

ACCURACIES: Mapping[str, Accuracy] = {
    # 16 eps. For any data, rounding errors of an inner product are within n u S and, with high
    # probability, within a multiple of sqrt(n) u S; for data of mean zero, as used here, within a
    # multiple of u S that does not grow with n at all, whatever the order of summation (Higham and
    # Mary, "Sharper probabilistic backward error analysis for basic linear algebra kernels with
    # random data", SIAM J. Sci. Comput. 42, 2020). The worst order, one running sum, stays below
    # 3 eps up to n = 32768. The rest is margin, and covers the rounding of the reference itself
    # where the problem is float64. A dropped or doubled term is off by about 1/n: thousands of eps
    # at n = 4096.
    "ieee": Accuracy(Bound(lambda eps, _: 16 * eps), serves=_LOOSER, products=False),
    # Operands as they are, however their products come about: every term counts.
    "fp32": Accuracy(_TERMS, _TERMS, serves=("fp32-normwise", "tf32"), dtypes=_SINGLE, short=6),
    # The same relative to norms: terms far below the largest of their row or column may be lost.
    "fp32-normwise": Accuracy(_NORMS, _NORMS, serves=("tf32",), dtypes=_SINGLE, short=3),
    # 13 moduli of 8 bits are too few at any reduction, see `_statistical`.
    "fp64": Accuracy(_NORMS, _NORMS, dtypes=("float64",), short=7),
    # Operands of 11 bits; 10 where scales are those of a row's largest element.
    "tf32": Accuracy(
        Bound(_rounded), Bound(_of_tf32, "norms"), dtypes=_SINGLE, subnormal=False, short=1
    ),
    "native": Accuracy(Bound(_truncated)),
    # The bound is one for finite operands, and only those are checked. An Inf or NaN in A or B
    # makes Inf or NaN of elements of C that are finite in the textbook product, since whole blocks
    # are added and subtracted before they are multiplied; in every other class it stays in its row
    # of A, or its column of B. Ten levels are more than anybody recurses.
    "strassen": Accuracy(Bound(_recursive, "largest"), spreads=True, operations=(8 / 7) ** 10),
}
"""Every accuracy class, by name."""


def admits(wanted: str, offered: str) -> bool:
    """Return whether a kernel of class `offered` may serve a problem that asks for `wanted`."""
    return offered == wanted or wanted in ACCURACIES[offered].serves


def refuse_unknown(accuracy: object) -> None:
    """Refuse what is no accuracy class.

    Raises:
        InputError: it is none.
    """
    if not isinstance(accuracy, str) or accuracy not in ACCURACIES:
        raise InputError(f"accuracy must be one of {', '.join(ACCURACIES)}, got {shown(accuracy)}")


def unfit(accuracy: str, dtype: str) -> str | None:
    """One line that refuses an accuracy class for operands of a type; None where it is for them.

    Args:
        accuracy: a class that there is.
        dtype: element type of the operands.
    """
    dtypes = ACCURACIES[accuracy].dtypes
    if not dtypes or dtype in dtypes:
        return None
    able = [name for name, each in ACCURACIES.items() if not each.dtypes or dtype in each.dtypes]
    return (
        f"accuracy {accuracy} is of {' and '.join(dtypes)} operands, got {dtype}: use one of "
        f"{', '.join(able)}"
    )


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The distance that C may have from the float64 reference.

    The error of an element may be `factor` times what it is `relative` to; and `rounding` times
    the magnitude of the reference; and `absolute`. Integers are exact.
    """

    factor: float
    relative: Relative = "terms"
    rounding: float = 0.0
    absolute: float = 0.0

    @classmethod
    def of(
        cls,
        accuracy: str,
        dtype: str,
        sizes: tuple[int, ...],
        out_dtype: str | None = None,
        *,
        hard: bool = False,
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
            hard: whether the bound is to be the one for all finite operands. Products may then be
                subnormal numbers, off by half the smallest one each.

        Raises:
            InputError: there is no such class, or not for what is no product.
        """
        refuse_unknown(accuracy)
        known = ACCURACIES[accuracy]
        if known.products and len(sizes) != 3:
            raise InputError(f"accuracy {accuracy} is for matrix products: use ieee")
        sums = ELEMENTS[dtype].accumulated
        if sums.kind in ("integer", "boolean"):
            return cls(0.0)
        result = ELEMENTS[out_dtype or ELEMENTS[dtype].result]
        rounding, absolute = 0.0, 0.0
        if result is not sums:
            rounding, absolute = result.unit_roundoff, result.smallest / 2
        bound = (known.promise if hard else None) or known.usual
        if hard:
            absolute += sizes[1] * sums.smallest
        factor = bound.factor(2 * sums.unit_roundoff, sizes)
        return cls(factor, bound.relative, rounding, absolute)

    def allowed(self, scale: NDArray[Any] | float, expected: NDArray[Any]) -> NDArray[Any]:
        """The error that each element may have.

        Args:
            scale: what errors are relative to, as `relative` says.
            expected: the reference.
        """
        allowed = np.multiply(self.factor, scale)
        if self.rounding or self.absolute:
            allowed = allowed + self.rounding * np.abs(expected) + self.absolute
        return np.asarray(allowed)
