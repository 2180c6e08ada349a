"""Promises of accuracy classes, kept and broken by the schemes that tensor cores compute with.

Every scheme is a kernel in NumPy that the real verification judges, at all cases of its class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import Gemm
from autotune.core.errors import ProblemError
from autotune.operations.accuracy import ACCURACIES, unfit
from autotune.operations.cases import SMALL_CASES, Case, hard_cases, special_cases
from autotune.operations.hard import DRAWS, draw, norms, twofold_product
from autotune.operations.verification import Check, Verdict

Matrix = NDArray[np.float64]
Multiply = Callable[[Matrix, Matrix], Matrix]

SINGLE, DOUBLE = Gemm(1, 1, 1), Gemm(1, 1, 1, "float64")


def towards_zero(values: Matrix) -> Matrix:
    """Float64 numbers truncated to float32."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float64)


def tensor_core(c: Matrix, a: Matrix, b: Matrix) -> Matrix:
    """C + A B of one instruction of Hopper's.

    Addends are truncated to 26 bits below the largest of them, and the sum to float32.
    """
    addends = np.concatenate([c[None], a.T[:, :, None] * b[:, None, :]])
    largest = np.abs(addends).max(axis=0)
    quantum = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - 25)
    return towards_zero((np.trunc(addends / quantum) * quantum).sum(axis=0))


def summed(pairs: Sequence[tuple[Matrix, Matrix]], promoted: int | None) -> Matrix:
    """The sum of products by tensor cores, smallest first, 16 steps of the reduction at a time.

    Args:
        pairs: factors.
        promoted: steps after which the accumulator is added to a sum in float32; None is never.
    """
    n = pairs[0][0].shape[1]
    total = np.zeros((pairs[0][0].shape[0], pairs[0][1].shape[1]))
    for first in range(0, n, promoted or n):
        c = np.zeros_like(total)
        for start in range(first, min(n, first + (promoted or n)), 16):
            for a, b in pairs:
                c = tensor_core(c, a[:, start : start + 16], b[start : start + 16])
        total = (total + c).astype(np.float32).astype(np.float64)
    return total


def significand(values: Matrix, bits: int) -> Matrix:
    """Numbers rounded to so many bits."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)


def exponents(values: Matrix, axis: int) -> NDArray[np.int32]:
    """Of the largest elements along an axis."""
    found: NDArray[np.int32] = np.frexp(np.abs(values).max(axis=axis, keepdims=True))[1]
    return found


def scaled(scheme: Multiply, top: int = 0) -> Multiply:
    """A scheme with exact powers of two for rows of A and columns of B."""

    def multiply(a: Matrix, b: Matrix) -> Matrix:
        rows, columns = top - exponents(a, 1), top - exponents(b, 0)
        c = scheme(np.ldexp(a, rows), np.ldexp(b, columns))
        return np.asarray(np.ldexp(c, -(rows + columns)))

    return multiply


def in_parts(
    bits: int, parts: int, products: int, promoted: int | None, least: float = 0.0
) -> Multiply:
    """Products of operands that are sums of parts of so many bits, the largest ones of them.

    Args:
        bits: of significand of a part.
        parts: of an operand.
        products: computed, of all pairs of parts.
        promoted: as for `summed`.
        least: smallest positive number of the parts' type.
    """

    def split(values: Matrix) -> list[Matrix]:
        made = []
        for _ in range(parts):
            part = significand(values, bits)
            made.append(np.rint(part / least) * least if least else part)
            values = values - made[-1]
        return made

    def multiply(a: Matrix, b: Matrix) -> Matrix:
        left, right = split(a), split(b)
        order = sorted((i + j, i, j) for i in range(parts) for j in range(parts))
        pairs = [(left[i], right[j]) for _, i, j in order[:products]]
        return summed(pairs[::-1], promoted)

    return multiply


def bytes3(products: int) -> Multiply:
    """Three signed bytes an element, of which so many products are summed exactly."""

    def split(values: Matrix, axis: int) -> tuple[list[Matrix], NDArray[np.int32]]:
        fraction, exponent = np.frexp(np.abs(values).max(axis=axis, keepdims=True))
        shift = np.where(fraction <= 0.996, 23 - exponent, 22 - exponent).astype(np.int32)
        whole, digits = np.rint(np.ldexp(values, shift)), []
        for _ in range(2):
            digit = (whole + 128) % 256 - 128
            digits.append(digit)
            whole = (whole - digit) / 256
        assert np.abs(whole).max() <= 127
        return [whole, *digits[::-1]], shift

    def multiply(a: Matrix, b: Matrix) -> Matrix:
        (left, rows), (right, columns) = split(a, 1), split(b, 0)
        order = sorted((i + j, i, j) for i in range(3) for j in range(3))
        total = sum((left[i] @ right[j]) * 256.0 ** (4 - i - j) for _, i, j in order[:products])
        return np.asarray(np.ldexp(total, -(rows + columns)))

    return multiply


MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197)


def integers(count: int) -> Multiply:
    """Ozaki II: operands rounded to integers, whose product is known modulo so many numbers."""
    period = math.prod(MODULI[:count])
    room = math.sqrt(period / 2)

    def rounded(values: Matrix, axis: int) -> tuple[Matrix, NDArray[np.int32]]:
        shift = np.frexp(room)[1] - 1 - np.frexp(norms(values, axis))[1]
        return np.rint(np.ldexp(values, shift)), shift

    def limbs(values: Matrix) -> list[Matrix]:
        """Digits to the base 2^19, so that products of them are summed exactly."""
        made = []
        for _ in range(4):
            digit = values - 2.0**19 * np.rint(values / 2.0**19)
            made.append(digit)
            values = (values - digit) / 2.0**19
        return made

    def multiply(a: Matrix, b: Matrix) -> Matrix:
        (left, rows), (right, columns) = rounded(a, 1), rounded(b, 0)
        total: Any = np.zeros((len(a), b.shape[1]), object)
        to_int = np.frompyfunc(int, 1, 1)
        for i, x in enumerate(limbs(left)):
            for j, y in enumerate(limbs(right)):
                total = total + to_int(x @ y) * 2 ** (19 * (i + j))
        total = (total + period // 2) % period - period // 2
        return np.asarray(np.ldexp(total.astype(np.float64), -(rows + columns)))

    return multiply


def chain(a: Matrix, b: Matrix) -> Matrix:
    """A running sum in float32."""
    c = np.zeros((len(a), b.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for column, row in zip(a.T, b, strict=True):
            c = (c + np.outer(column, row)).astype(np.float32)
    return c.astype(np.float64)


def kernel(multiply: Multiply) -> Callable[..., None]:
    """A scheme, called as kernels are."""

    def run(a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        product = multiply(a.astype(np.float64), b.astype(np.float64)).astype(c.dtype)
        c[...] = c.dtype.type(alpha) * product + (c.dtype.type(beta) * c if beta else 0)

    return run


@functools.cache
def checks(dtype: str, accuracy: str) -> list[Check]:
    problem, rng = Gemm(1, 1, 1, dtype), np.random.default_rng(5)
    cases = (*SMALL_CASES, *hard_cases(problem, accuracy))
    return [Check(case, problem, rng) for case in cases]


def verdicts(multiply: Multiply, dtype: str, accuracy: str) -> Iterator[tuple[Case, Verdict]]:
    run = kernel(multiply)
    for check in checks(dtype, accuracy):
        yield check.case, check.run(run, accuracy)


fp16x1 = in_parts(11, 1, 1, None, 2.0**-24)
fp16x3 = scaled(in_parts(11, 2, 3, 128, 2.0**-24), 15)
bf16x6 = scaled(in_parts(8, 3, 6, 64, 2.0**-133))


KEPT = {
    ("fp32-normwise", "fp16x3, promoted every 128"): fp16x3,
    ("fp32-normwise", "int8x8"): bytes3(8),
    ("fp32-normwise", "bf16x6, promoted every 64"): bf16x6,
    ("fp32", "bf16x6, promoted every 64"): bf16x6,
    ("fp32", "tf32x3, promoted every 64"): scaled(in_parts(11, 2, 3, 64)),
    ("tf32", "one TF32 product"): in_parts(11, 1, 1, None),
    ("tf32", "one float16 product"): scaled(fp16x1, 15),
    ("tf32", "fp16x3"): fp16x3,
    ("fp64", "Ozaki II, 15 moduli"): integers(15),
    ("fp64", "Ozaki II, 14 moduli"): integers(14),
    ("fp64", "float64"): np.matmul,
}

BROKEN = {
    **{
        (accuracy, name): scheme
        for accuracy in ("fp32", "fp32-normwise")
        for name, scheme in {
            "one TF32 product": in_parts(11, 1, 1, 64),
            "one bfloat16 product": in_parts(8, 1, 1, 64),
            "bf16x3": in_parts(8, 2, 3, 64),
            "fp16x3, one accumulator": scaled(in_parts(11, 2, 3, None, 2.0**-24), 15),
            "bf16x6, one accumulator": scaled(in_parts(8, 3, 6, None)),
            "tf32x3, one accumulator": scaled(in_parts(11, 2, 3, None)),
            "int8x3": bytes3(3),
            "int8x6": bytes3(6),
            "fp16x2": scaled(in_parts(11, 2, 2, 128, 2.0**-24), 15),
            "fp16x3 without scales": in_parts(11, 2, 3, 128, 2.0**-24),
        }.items()
    },
    ("fp32", "fp16x3, promoted every 128"): fp16x3,
    ("tf32", "one bfloat16 product"): in_parts(8, 1, 1, 64),
    ("tf32", "one float16 product without scales"): fp16x1,
    ("tf32", "int8x3"): bytes3(3),
    ("fp64", "Ozaki II, 13 moduli"): integers(13),
    ("fp64", "float32"): chain,
}


def named(table: dict[tuple[str, str], Multiply]) -> Any:
    return pytest.mark.parametrize(
        ("accuracy", "multiply"),
        [(accuracy, multiply) for (accuracy, _), multiply in table.items()],
        ids=[": ".join(key) for key in table],
    )


@named(KEPT)
def test_schemes_that_keep_a_promise_pass(accuracy: str, multiply: Multiply) -> None:
    dtype = "float64" if accuracy == "fp64" else "float32"
    for _, verdict in verdicts(multiply, dtype, accuracy):
        assert verdict.right, verdict.reason


@named(BROKEN)
def test_schemes_that_break_a_promise_are_refused(accuracy: str, multiply: Multiply) -> None:
    dtype = "float64" if accuracy == "fp64" else "float32"
    assert any(not each.right for _, each in verdicts(multiply, dtype, accuracy))


@pytest.mark.parametrize("accuracy", ["fp32", "fp32-normwise", "tf32"])
def test_nan_and_infinity_are_ieees_whatever_the_class(accuracy: str) -> None:
    (case, *_) = special_cases(SINGLE, SMALL_CASES)
    check = Check(case, SINGLE, np.random.default_rng(0))
    with np.errstate(invalid="ignore", over="ignore"):
        assert check.run(kernel(np.matmul), accuracy).right
        wrong = check.run(kernel(lambda a, b: np.nan_to_num(a) @ np.nan_to_num(b)), accuracy)
    assert not wrong.right


@pytest.mark.parametrize("kind", DRAWS)
def test_products_of_twice_the_precision_are_rounded_once(kind: str) -> None:
    rng = np.random.default_rng(1)
    a, b = draw(rng, kind, (3, 21, 4), np.float64)
    exact = [
        [sum((Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)), Fraction())
         for column in b.T]
        for row in a
    ]  # fmt: skip
    terms = np.abs(a) @ np.abs(b)
    found = twofold_product(a, b)
    for place, expected in np.ndenumerate(np.array(exact)):
        error = abs(Fraction(found[place]) - expected)
        rounding = Fraction(2.0**-53) * abs(expected) + Fraction(2.0**-1074)
        assert error <= rounding + Fraction(2.0**-98) * Fraction(terms[place])


def test_norms_of_tiny_and_huge_rows_are_no_zeros_and_no_infinities() -> None:
    rows = np.ldexp(np.full((3, 4), 1.5), np.array([[-700], [0], [700]]))
    assert norms(rows, 1) == pytest.approx(np.ldexp(3.0, np.array([[-700], [0], [700]])))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_hard_operands_are_the_same_products_in_every_layout(layout: str) -> None:
    case = Case(5, 6, 7, distribution="graded pair")
    check = Check(case, Gemm(1, 1, 1, layout=layout), np.random.default_rng(0))
    a, b, _ = check.operands
    c = (a.T if layout[0] == "t" else a) @ (b.T if layout[1] == "t" else b)
    plain = Check(case, SINGLE, np.random.default_rng(0))
    assert c == pytest.approx(plain.operands[0] @ plain.operands[1], rel=1e-4, abs=1e-3)


def test_classes_without_a_promise_have_no_hard_cases() -> None:
    for accuracy, each in ACCURACIES.items():
        problem = DOUBLE if accuracy == "fp64" else SINGLE
        assert bool(hard_cases(problem, accuracy)) == (each.promise is not None)
    assert hard_cases(Gemm(1, 1, 1, "float16"), "tf32") == ()


def test_a_class_of_other_operands_is_refused_in_a_line() -> None:
    for dtype, accuracy in (("float32", "fp64"), ("float64", "fp32"), ("bf16", "fp32-normwise")):
        with pytest.raises(
            ProblemError, match=f"accuracy {accuracy} is of float.*use one of ieee"
        ):
            Gemm(8, 8, 8, dtype=dtype, accuracy=accuracy)
    assert unfit("fp64", "float64") is None
    assert unfit("ieee", "float16") is None
