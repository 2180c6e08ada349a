from __future__ import annotations

import ctypes
import math
import mmap
import re
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.operations import contents, drawing, references
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import PRODUCT_CASES, SMALL_CASES, Case, special_cases
from autotune.operations.drawing import random_elements
from autotune.operations.guarded import LINE_OFFSET, GuardedArray
from autotune.operations.problem import Gemm
from autotune.operations.references import FullReference
from autotune.operations.verification import Check, ProductCheck
from autotune.targets.families import find_operation

LAYOUTS = ["nn", "nt", "tn", "tt"]


class Textbook:
    """NumPy in the operands' own precision, with a place for a fault to be put in."""

    def __init__(self, layout: str = "nn") -> None:
        self.layout = layout

    def __call__(self, a, b, out, alpha, beta) -> None:
        a = a.T if self.layout[0] == "t" else a
        b = b.T if self.layout[1] == "t" else b
        a, b = self.operands(a, b)
        product = alpha * self.product(a, b)
        self.store(product.astype(out.dtype) + (beta * out if beta else 0), out)

    def operands(self, a, b):
        return a, b

    def product(self, a, b):
        return a @ b

    def store(self, values, out) -> None:
        out[...] = values


class RunningSum(Textbook):
    """The order of summation with the largest rounding errors."""

    def product(self, a, b):
        total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
        for j in range(a.shape[1]):
            total += np.outer(a[:, j], b[j])
        return total


class Winograd(Textbook):
    """Winograd's variant of Strassen's algorithm down to 32, for even sizes."""

    def product(self, a, b):
        m, n = (size // 2 for size in a.shape)
        k = b.shape[1] // 2
        if min(m, n, k) < 16 or any(size % 2 for size in (*a.shape, b.shape[1])):
            return a @ b
        a11, a12, a21, a22 = a[:m, :n], a[:m, n:], a[m:, :n], a[m:, n:]
        b11, b12, b21, b22 = b[:n, :k], b[:n, k:], b[n:, :k], b[n:, k:]
        s1, t1 = a21 + a22, b12 - b11
        s2, t2 = s1 - a11, b22 - t1
        p1, p2 = self.product(a11, b11), self.product(a12, b21)
        p3, p4 = self.product(a12 - s2, b22), self.product(a22, t2 - b21)
        p5, p6 = self.product(s1, t1), self.product(s2, t2)
        u2 = p1 + p6
        u3 = u2 + self.product(a11 - a21, b22 - b12)
        return np.block([[p1 + p2, u2 + p5 + p3], [u3 - p4, u3 + p5]])


class DroppedTerm(Textbook):
    def product(self, a, b):
        return a[:, :-1] @ b[:-1]


class DroppedTermInOneElement(Textbook):
    def product(self, a, b):
        product = a @ b
        terms = np.abs(a[-1] * b[:, -1])
        j = terms.argmax()
        product[-1, -1] -= a[-1, j] * b[j, -1]
        return product


class DoubledTerm(Textbook):
    def product(self, a, b):
        return a @ b + np.outer(a[:, 0], b[0])


class SwappedColumns(Textbook):
    def product(self, a, b):
        order = np.arange(b.shape[1])
        order[[0, -1]] = order[[-1, 0]]
        return (a @ b)[:, order]


class SkippedLastRow(Textbook):
    def store(self, values, out) -> None:
        out[:-1] = values[:-1]


class SkippedLastColumn(Textbook):
    def store(self, values, out) -> None:
        out[:, :-1] = values[:, :-1]


class ZeroedLastColumn(Textbook):
    def store(self, values, out) -> None:
        out[...] = values
        out[:, -1] = 0


class HalfPrecision(Textbook):
    def operands(self, a, b):
        return a.astype("float16").astype(a.dtype), b.astype("float16").astype(b.dtype)


class HalfPrecisionResult(Textbook):
    def store(self, values, out) -> None:
        out[...] = values.astype("float16")


class ReadsUnwrittenC(Textbook):
    def store(self, values, out) -> None:
        out[...] = values + 0 * out


FAULTS = [
    DroppedTerm,
    DroppedTermInOneElement,
    DoubledTerm,
    SwappedColumns,
    SkippedLastRow,
    SkippedLastColumn,
    ZeroedLastColumn,
    HalfPrecision,
    HalfPrecisionResult,
    ReadsUnwrittenC,
]


def check(case: Case, dtype: str = "float32", layout: str = "nn", seed: int = 1) -> ProductCheck:
    return ProductCheck(case, Gemm(1, 1, 1, dtype, layout=layout), np.random.default_rng(seed))


@pytest.fixture(params=["every element", "sampled"])
def compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sampled":
        monkeypatch.setattr(contents, "FULL_PRODUCTS", 0)
    return request.param


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
@pytest.mark.usefixtures("compared")
def test_a_right_kernel_passes(case: Case, dtype: str, layout: str) -> None:
    for kernel in (Textbook(layout), RunningSum(layout)):
        verdict = check(case, dtype, layout).run(kernel, "ieee")
        assert verdict.right, verdict
        assert 0 <= verdict.error <= 1


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [100, 4096, 20_000])
@pytest.mark.usefixtures("compared")
def test_the_worst_order_of_summation_stays_well_inside(
    n: int, dtype: str, distribution: str
) -> None:
    verdict = check(Case(48, n, 48, distribution=distribution), dtype).run(RunningSum(), "ieee")
    assert 0 < verdict.error < 0.5


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("size", [64, 256, 512])
@pytest.mark.usefixtures("compared")
def test_strassen_is_right_in_its_own_class(size: int, distribution: str) -> None:
    verdict = check(Case(size, size, size, distribution=distribution)).run(Winograd(), "strassen")
    assert 0 < verdict.error < 0.9


def test_deep_recursion_is_not_ieee() -> None:
    verdict = check(Case(512, 512, 512)).run(Winograd(), "ieee")
    assert not verdict.right
    assert "error is" in verdict.reason


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("n", [64, 1024, 4096])
@pytest.mark.usefixtures("compared")
def test_faults_are_caught(fault: type[Textbook], n: int) -> None:
    for distribution in ("uniform", "normal"):
        verdict = check(Case(40, n, 56, distribution=distribution)).run(fault(), "ieee")
        assert not verdict.right, (distribution, verdict)
        assert verdict.error > 1


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught_in_class_strassen(fault: type[Textbook]) -> None:
    verdict = check(Case(256, 256, 256)).run(fault(), "strassen")
    assert not verdict.right, verdict


@pytest.mark.parametrize("fault", [DroppedTerm, DoubledTerm, SwappedColumns])
def test_gross_faults_exceed_even_the_tolerance_of_a_deep_recursion(
    fault: type[Textbook],
) -> None:
    sizes = (512, 4096, 128)
    error = check(Case(*sizes)).run(fault(), "strassen").error
    error *= Tolerance.of("strassen", "float32", sizes).factor
    assert error > Tolerance.of("strassen", "float32", (4096, 4096, 4096)).factor


@pytest.mark.parametrize("fault", [DroppedTermInOneElement, SwappedColumns, ZeroedLastColumn])
def test_the_identity_alone_catches_what_no_sample_sees(
    fault: type[Textbook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "FULL_PRODUCTS", 0)
    monkeypatch.setattr(references, "_pick", lambda count, rng: np.array([count // 2]))
    verdict = check(Case(300, 2000, 400)).run(fault(), "ieee")
    assert not verdict.right, verdict


@pytest.mark.parametrize("elements", ["FULL_PRODUCTS", "FULL_ELEMENTS"])
def test_large_problems_are_sampled(elements: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, elements, 99)
    large, small = check(Case(10, 10, 10)), check(Case(3, 3, 3))
    assert isinstance(large._drawn.reference, references.SampledReference)
    assert isinstance(small._drawn.reference, references.FullReference)


def test_an_unwritten_c_is_named() -> None:
    verdict = check(Case(4, 5, 6)).run(lambda *_: None, "ieee")
    assert verdict.reason.startswith("at 4x5x6 (M=4, N=5, K=6): left 24 of 24 elements")
    assert verdict.error == math.inf
    assert not verdict.damaged


@pytest.mark.parametrize("offset", [-1, -1000, 6 * 8, 6 * 8 + 500])
def test_a_write_outside_c_is_caught(offset: int) -> None:
    def kernel(a, b, out, alpha, beta) -> None:
        Textbook()(a, b, out, alpha, beta)
        ctypes.c_float.from_address(out.ctypes.data + 4 * offset).value = 1

    verdict = check(Case(6, 5, 8)).run(kernel, "ieee")
    assert verdict.damaged
    assert "wrote outside C" in verdict.reason


def test_a_write_into_the_padding_is_caught() -> None:
    def kernel(a, b, out, alpha, beta) -> None:
        Textbook()(a, b, out, alpha, beta)
        np.lib.stride_tricks.as_strided(out, (4, 7), out.strides)[1, 6] = 0

    verdict = check(Case(4, 5, 6, padding=2)).run(kernel, "ieee")
    assert verdict.damaged
    assert "past the end of a row" in verdict.reason


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_modified_input_is_caught(name: str) -> None:
    def kernel(a, b, out, alpha, beta) -> None:
        Textbook()(a, b, out, alpha, beta)
        operand = a if name == "A" else b
        operand[-1, -1] += 1

    verdict = check(Case(4, 5, 6)).run(kernel, "ieee")
    assert verdict.damaged
    assert f"modified {name}" in verdict.reason


def test_reading_past_the_end_shows_in_the_result() -> None:
    def kernel(a, b, out, alpha, beta) -> None:
        wide = np.lib.stride_tricks.as_strided(a, (a.shape[0], a.shape[1] + 1), a.strides)
        out[...] = a @ b + 0 * wide[:, -1:]

    assert not check(Case(4, 5, 6, padding=1)).run(kernel, "ieee").right


def test_small_cases_cover_what_the_large_one_does_not() -> None:
    assert {dict(case.scalars).get("beta", 0) != 0 for case in SMALL_CASES} == {False, True}
    assert any(dict(case.scalars).get("alpha", 1) != 1 for case in SMALL_CASES)
    assert any(case.padding for case in SMALL_CASES)
    assert min(min(case.sizes) for case in SMALL_CASES) == 1


def test_operands_are_reproducible_and_differ_between_seeds() -> None:
    first, again, other = (check(Case(9, 9, 9), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.a, again.a)
    assert np.array_equal(first.b, again.b)
    assert not np.array_equal(first.a, other.a)
    assert not np.array_equal(first.a, first.b)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_have_the_layouts_shapes(layout: str) -> None:
    made = check(Case(2, 3, 4, padding=1), layout=layout)
    assert made.a.shape == ((3, 2) if layout[0] == "t" else (2, 3))
    assert made.b.shape == ((4, 3) if layout[1] == "t" else (3, 4))
    assert made.c.shape == (2, 4)
    assert made.c.strides == (20, 4)


@given(
    rows=st.integers(1, 600),
    columns=st.integers(1, 600),
    padding=st.integers(0, 9),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_a_guarded_matrix_lies_where_large_arrays_do(
    rows: int, columns: int, padding: int, dtype: str
) -> None:
    matrix = GuardedArray((rows, columns), dtype, padding)
    assert matrix.array.ctypes.data % mmap.PAGESIZE == LINE_OFFSET
    assert matrix.array.shape == (rows, columns)
    assert matrix.array.strides[0] == (columns + padding) * matrix.array.itemsize


WRITES_SEALED = """\
import ctypes, sys
from autotune.operations.guarded import GuardedArray
matrix = GuardedArray((3, 5), "float32")
matrix.seal()
with matrix.unsealed() as array:
    array[...] = 1
print(array.sum(), flush=True)
before = array[2, 4]
array[2, 4] = 7
array[2, 4] = before
print("put back", flush=True)
"""


def test_who_writes_a_sealed_matrix_dies_even_if_it_is_put_back() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WRITES_SEALED], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "15.0\n"), ended.stderr


def test_contents_take_turns_at_the_same_addresses() -> None:
    made = ProductCheck(
        Case(9, 8, 7), Gemm(1, 1, 1), np.random.default_rng(1), others=("normal",), sealed=True
    )
    assert made.contents == 2
    addresses = made.a.ctypes.data, made.b.ctypes.data, made.c.ctypes.data
    seen = [made.a.copy()]
    for _ in range(2):
        assert made.run(Textbook(), "ieee").right
        made.turn()
        seen.append(made.a.copy())
    assert not (seen[0] == seen[1]).any()
    assert (seen[0] == seen[2]).all()
    made.redraw(np.random.default_rng(2))
    assert made.run(Textbook(), "ieee").right
    assert not (made.a == seen[0]).any()
    assert (made.a.ctypes.data, made.b.ctypes.data, made.c.ctypes.data) == addresses


def test_a_result_of_the_contents_before_is_wrong() -> None:
    made = ProductCheck(Case(9, 8, 7), Gemm(1, 1, 1), np.random.default_rng(1), others=("normal",))
    assert made.run(Textbook(), "ieee").right
    kept = made.c.copy()
    made.turn()
    made.prepare()
    made.c[...] = kept
    assert not made.judge("ieee").right
    assert not made.judge_again("ieee").right


def test_bits_that_were_right_are_right_again_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = ProductCheck(Case(9, 8, 7), Gemm(1, 1, 1), np.random.default_rng(1), others=("normal",))
    judged = []
    judge = made.judge
    monkeypatch.setattr(made, "judge", lambda accuracy: judged.append(accuracy) or judge(accuracy))
    for turn in range(4):
        Textbook()(made.a, made.b, made.c, 1.0, 0.0)
        assert made.judge_again("ieee").right
        assert len(judged) == min(turn + 1, 2)
        made.turn()
    Textbook()(made.a, made.b, made.c, 1.0, 0.0)
    made.c[3, 3] = np.nextafter(made.c[3, 3], 2)
    assert made.judge_again("ieee").right  # other bits, looked at anew
    assert len(judged) == 3
    made.c[3, 3] += 1
    assert not made.judge_again("ieee").right
    Textbook()(made.a, made.b, made.c, 1.0, 0.0)
    assert made.judge_again("ieee").right
    ctypes.c_float.from_address(made.c.ctypes.data - 4).value = 1
    assert made.judge_again("ieee").damaged


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_guarded_matrix_is_nan_until_it_is_written(dtype: str) -> None:
    matrix = GuardedArray((3, 5), dtype, padding=2)
    assert np.isnan(matrix.array).all()
    assert matrix.unwritten() == 15
    matrix.array[...] = 1
    assert matrix.unwritten() == 0
    assert matrix.damage() is None


def test_an_unknown_class_has_no_tolerance() -> None:
    with pytest.raises(InputError, match="must be one of ieee, fp32, "):
        Tolerance.of("fp8", "float32", (1, 1, 1))
    with pytest.raises(InputError, match="fp32 is for matrix products: use ieee"):
        Tolerance.of("fp32", "float32", (1, 1))


class DropsNan(Textbook):
    """As with fast math, which assumes that there are none."""

    def operands(self, a, b):
        return np.nan_to_num(a, posinf=np.inf, neginf=-np.inf), b


class ClipsOperands(Textbook):
    def operands(self, a, b):
        return np.where(np.isfinite(a), np.clip(a, -8, 8), a), b


class RepeatsWhatLiesLast(Textbook):
    """A reduction padded with zeros of A and with B's last row: an infinity there meets a zero."""

    def product(self, a, b):
        padded = np.concatenate([a, np.zeros((len(a), 3), a.dtype)], axis=1)
        repeated = np.concatenate([b, b[-1:], b[-1:], b[-1:]])
        return RunningSum().product(padded, repeated)


class LosesSignsOfInfinity(Textbook):
    def store(self, values, out) -> None:
        out[...] = np.where(np.isinf(values), np.inf, values)


SPECIAL_CASES = special_cases(Gemm(1, 1, 1), PRODUCT_CASES)
quietly = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


@quietly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SPECIAL_CASES, ids=str)
def test_nan_and_infinity_come_out_where_the_reference_has_them(
    case: Case, dtype: str, layout: str
) -> None:
    for seed in range(5):
        drawn = check(case, dtype, layout, seed)
        expected = drawn._drawn.reference.expected
        kinds = [np.isnan(expected), np.isposinf(expected), np.isneginf(expected)]
        assert all(kind.any() for kind in kinds)
        assert np.isfinite(expected).mean() > 0.2
        assert drawn.run(RunningSum(layout), "ieee").right
    faults = [DropsNan, ClipsOperands, RepeatsWhatLiesLast, LosesSignsOfInfinity, *FAULTS[2:4]]
    for fault in faults:
        verdict = check(case, dtype, layout).run(fault(layout), "ieee")
        assert "operands with NaN and infinity: C[" in verdict.reason, fault
        assert check(case, dtype, layout).run(fault(layout), "strassen").right


def test_every_plan_has_special_operands_of_either_alignment() -> None:
    assert {bool(case.padding) for case in SPECIAL_CASES} == {False, True}
    assert all(math.prod(case.sizes) < 2**20 for case in SPECIAL_CASES)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_operands_with_padded_rows_begin_off_alignment(dtype: str, padding: int) -> None:
    drawn = check(Case(5, 6, 7, padding=padding), dtype)
    for array in drawn.operands:
        off = array.ctypes.data % 16
        assert off == (array.itemsize if padding else 0)


def test_a_verdict_shows_the_element() -> None:
    verdict = check(Case(4, 5, 6, scalars={"beta": 2.0})).run(ZeroedLastColumn(), "ieee")
    told = r"at 4x5x6 \(M=4, N=5, K=6\) beta=2: C\[\d, 5\] is 0, expected -?\d\S* "
    assert re.fullmatch(told + r"\(error is \S+ times what ieee allows\)", verdict.reason)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("tolerance", [1e-5, None])
@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        (complex(INF, 0.4), complex(INF, 0.4 + 1e-6), True),
        (complex(0.4, -INF), complex(0.4 + 1e-6, -INF), True),
        (complex(NAN, 0.4), complex(NAN, 0.4 + 1e-6), True),
        (complex(INF, NAN), complex(INF, NAN), True),
        (complex(-INF, 0.4), complex(INF, 0.4), False),
        (complex(INF, INF), complex(INF, 0.4), False),
        (complex(INF, NAN), complex(INF, 0.4), False),
        (complex(NAN, 0.4), complex(INF, 0.4), False),
        (complex(NAN, 0.4), complex(0.4, NAN), False),
        (complex(3, 0.4), complex(INF, 0.4), False),
        (complex(INF, 0.5), complex(INF, 0.4), None),
    ],
)
def test_parts_of_a_complex_number_are_compared_each(
    found: complex, expected: complex, right: bool | None, tolerance: float | None
) -> None:
    """None is wrong where the user says how far parts may be off."""
    wanted = np.array([0.3 - 0.2j, expected])
    reference = FullReference(wanted, np.abs(wanted), tolerance=tolerance)
    values = np.array([0.3 - 0.2j, found], np.complex64)
    deviation = reference.worst(values, Tolerance.of("ieee", "complex64", (8,), "complex64"))
    assert (deviation.error <= 1) is (tolerance is None if right is None else right)


@pytest.mark.parametrize("fault", [ZeroedLastColumn, SkippedLastRow])
def test_a_sampled_verdict_shows_the_element(
    fault: type[Textbook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "FULL_PRODUCTS", 0)
    case = Case(40, 30, 50)
    drawn = check(case)
    verdict = drawn.run(fault(), "ieee")
    if fault is ZeroedLastColumn:
        assert re.search(r"C\[\d+, 49\] is 0, expected", verdict.reason)
    else:
        assert "left 50 of 2000 elements of C unwritten" in verdict.reason


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_operands_that_come_out_equal_are_refused(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(DTYPES["float32"], name=dtype)
    monkeypatch.setattr(drawing, "ELEMENTS", {**DTYPES, dtype: row})
    with pytest.raises(InputError, match=f"operands of {dtype} cannot be verified"):
        random_elements(np.random.default_rng(0), (3, 4), "uniform", dtype, False)


def test_some_columns_stand_for_large_stacks() -> None:
    problem = find_operation("bmm").problem(P=1, M=1, N=1, K=1, dtype="float32", accuracy="ieee")
    check = Check(Case(2, 2048, 2, 4103), problem, np.random.default_rng(0))
    columns = check._contents[0].reference.columns
    assert {0, 4102} <= {*columns}
    assert (np.diff(columns) < 64).all()

    def multiply(a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        np.matmul(a, b, out=c)
        c[1, 5, wrong] += 1

    wrong = slice(0, 0)
    assert check.run(multiply, "ieee").right
    wrong = slice(100, 164)
    verdict = check.run(multiply, "ieee")
    assert verdict.reason.startswith("at 2x2048x2x4103 (P=2, M=2048, N=2, K=4103): C[1, 5, 1")
