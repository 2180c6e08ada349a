"""`matmul` beside NumPy's own, over whatever operands that takes."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_at_once import own_cache  # noqa: F401 - a fixture
from matmul_cases import (
    NO_NUMBERS,
    NOT_REAL,
    TOO_LARGE,
    VIEWS,
    draw,
    near,
    spread,
    values,
)

from autotune import matmul
from autotune.core.errors import OperandError, OperandTypeError

if TYPE_CHECKING:
    pass

# What OpenBLAS computes beside a short vector, and throws away, NumPy warns of now and then.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")

KERNELS = ("float32", "float64")
OTHERS = ("float16", "int32", "uint8", "int64", "bool", "complex64", "longdouble", ">f4", ">f8")


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_what_numpy_multiplies(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(400):
        case = draw(source)
        kinds = KERNELS if source.random() < 0.6 else KERNELS + OTHERS
        a, b = (
            spread(values(source, shape, source.choice(kinds)), view)
            for shape, view in zip((case.a, case.b), case.views, strict=True)
        )
        same(matmul(a, b), np.matmul(a, b))


OUTS = ("plain", "turned", "steps", "wider", "broadcast", "whole", "overlapping", "bytes")


@pytest.mark.parametrize("seed", range(4))
def test_results_go_where_numpy_puts_them(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(300):
        case = draw(source)
        a, b = (
            spread(values(source, shape, source.choice(KERNELS)), view)
            for shape, view in zip((case.a, case.b), case.views, strict=True)
        )
        wanted = np.matmul(a, b)
        how = source.choice(OUTS)
        dtype = {"wider": "complex128", "whole": "int64"}.get(how, wanted.dtype)
        shape = (2, *wanted.shape) if how == "broadcast" else wanted.shape
        out = spread(values(source, shape, dtype), how)
        if how == "overlapping" and a.shape == wanted.shape and a.dtype == wanted.dtype:
            out = a = np.array(a)
        before, alpha, beta = out.copy(), source.choice((1.0, -2.0)), source.choice((0.0, 1.0, 3))
        if how == "whole":
            with pytest.raises(TypeError):
                np.matmul(a, b, out=out)
            with pytest.raises(OperandTypeError):
                matmul(a, b, out)
            continue
        assert matmul(a, b, out, alpha, beta) is out
        np.testing.assert_array_equal(out, alpha * wanted + beta * before)


@pytest.mark.parametrize("seed", range(4))
def test_outputs_of_other_shapes_are_those_that_numpy_takes(seed: int) -> None:
    source = random.Random(seed)
    kinds = (*KERNELS, *KERNELS, "int32", "complex64")
    taken = 0
    for _ in range(600):
        case = draw(source)
        a, b = (values(source, shape, source.choice(kinds)) for shape in (case.a, case.b))
        shape = near(source, np.matmul(a, b).shape)
        if b.ndim > 1 and not shape:
            continue  # NumPy reads columns as a stack then, which fits if all sizes are 1
        out = values(source, shape, source.choice(("float64", "complex128")))
        wanted, before = out.copy(), out.copy()
        try:
            np.matmul(a, b, out=wanted)
        except (TypeError, ValueError):
            with pytest.raises(OperandError):
                matmul(a, b, out)
            np.testing.assert_array_equal(out, before)
            continue
        assert matmul(a, b, source.choice((out, (out,)))) is out
        np.testing.assert_array_equal(out, wanted)
        again = before.copy()
        matmul(a, b, again, 2, 3)
        np.testing.assert_array_equal(again, 2 * wanted + 3 * before)
        taken += shape != np.matmul(a, b).shape
    assert taken > 50


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_an_output_of_none_in_a_tuple_is_allocated(dtype: str) -> None:
    a = values(random.Random(0), (4, 4), dtype)
    same(matmul(a, a, out=(None,)), np.matmul(a, a))
    same(matmul(a, a, out=(None,), alpha=2), 2 * np.matmul(a, a))
    same(matmul(a.view(np.matrix), a, out=(None,), alpha=2), 2 * np.matmul(a.view(np.matrix), a))
    with pytest.raises(OperandError, match="pass out="):
        matmul(a, a, out=(None,), beta=1)


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), min_size=0, max_size=4), min_size=2, max_size=2),
    dtypes=st.tuples(*[st.sampled_from([*KERNELS, *OTHERS, "U1", "M8[s]", "O"])] * 2),
)
@settings(max_examples=400)
def test_what_numpy_refuses_is_refused(shapes: list[list[int]], dtypes: tuple[str, str]) -> None:
    a, b = (np.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    try:
        wanted = np.matmul(a, b)
    except (TypeError, ValueError) as error:
        with pytest.raises(OperandError) as caught:
            matmul(a, b)
        kind, said = type(error), str(caught.value)
        assert isinstance(caught.value, TypeError if issubclass(kind, TypeError) else kind)
        assert "\n" not in said
    else:
        got = matmul(a, b)
        assert (type(got), np.shape(got)) == (type(wanted), np.shape(wanted))
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("views", list(itertools.product(VIEWS, VIEWS)))
def test_any_strides(views: tuple[str, str]) -> None:
    source = random.Random(1)
    a = spread(values(source, (7, 19), "float32"), views[0])
    b = spread(values(source, (19, 12), "float32"), views[1])
    same(matmul(a, b), np.matmul(a, b))


def test_what_numpy_makes_arrays_of() -> None:
    same(matmul([[1.0, 2.0]], [[3.0], [4.0]]), np.array([[11.0]]))
    same(matmul([1, 2], ((3, 4), (5, 6))), np.array([13, 16]))
    same(matmul(np.float32([1, 2]), [1.0, 1.0]), np.float64(3.0))
    with pytest.raises(OperandError, match="a must be an array, or what NumPy makes one of"):
        matmul([[1.0], [2.0, 3.0]], [1.0])
    for wrong in (None, 3.0, "text"):
        with pytest.raises(OperandError):
            matmul(wrong, np.ones((2, 2)))


class Tagged(np.ndarray):
    """A subclass that NumPy's products are of."""


class Quantity:
    """Not an array, with products of its own."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> str:
        return f"{ufunc.__name__} of {len(inputs)}"


def test_subclasses_are_multiplied_as_numpy_does(tmp_path: Path) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for kind in (np.matrix, Tagged):
        same(matmul(a.view(kind), b), np.matmul(a.view(kind), b))
        same(matmul(a, b.view(kind)), np.matmul(a, b.view(kind)))
    assert matmul(Quantity(), a) == "matmul of 2"
    mapped = np.memmap(tmp_path / "a", np.float64, "w+", shape=a.shape)
    mapped[...] = a
    same(matmul(mapped, b), a @ b)


@pytest.mark.parametrize("dtype", [*KERNELS, "float16", "int64"])
def test_scalars_change_no_element_type(dtype: str) -> None:
    source = random.Random(0)
    a, b, c = (values(source, shape, dtype) for shape in ((2, 3, 4), (4, 5), (2, 3, 5)))
    wanted = 2 * np.matmul(a, b) - c
    out = c.copy()
    matmul(a, b, out, np.float64(2), np.float64(-1))
    np.testing.assert_array_equal(out, wanted)
    assert out.dtype == c.dtype
    same(matmul(a, b, alpha=2), 2 * np.matmul(a, b))
    with pytest.raises(OperandError, match=r"beta = 1.0 scales what out holds: pass out="):
        matmul(a, b, beta=1.0)
    with pytest.raises(OperandError, match="alpha must be a"):
        matmul(a, b, alpha="two")  # type: ignore[arg-type]


def test_whole_numbers_are_scaled_by_whole_numbers() -> None:
    whole = np.ones((2, 2), np.int32)
    with pytest.raises(OperandTypeError, match="alpha must be a whole number"):
        matmul(whole, whole, alpha=0.5)
    same(matmul(whole, whole, alpha=2.0), np.full((2, 2), 4, np.int32))


@given(data=st.data(), dtype=st.sampled_from("bhilqBHILQ"))
def test_no_digit_of_a_whole_number_is_lost(data: st.DataObject, dtype: str) -> None:
    limits = np.iinfo(dtype)
    wholes = st.integers(int(limits.min), int(limits.max))
    alpha, beta, held = (data.draw(wholes) for _ in range(3))
    one, out = np.ones((1, 1), dtype), np.full((1, 1), held, dtype)
    assert matmul(one, one, out, alpha, beta) is out
    bits = 8 * one.itemsize
    assert (int(out[0, 0]) - alpha - beta * held) % 2**bits == 0
    for beyond in (int(limits.max) + 1, int(limits.min) - 1):
        for name in ("alpha", "beta"):
            with pytest.raises(OperandError, match=f"{name} must be from {limits.min} to"):
                matmul(one, one, out, **{name: beyond})


@given(data=st.data(), dtype=st.sampled_from("gG"))
def test_no_digit_of_a_long_double_is_lost(data: st.DataObject, dtype: str) -> None:
    parts = st.integers(1, 2**60)
    alpha, beta = (np.longdouble(data.draw(parts)) / data.draw(parts) for _ in range(2))
    one = np.ones((1, 1), dtype)
    same(matmul(one, one, alpha=alpha), alpha * one)
    same(matmul(one, one, one.copy(), alpha, beta), (alpha + beta) * one)
    same(matmul(one, one, alpha=2**63 + 1), np.longdouble(2**63 + 1) * one)


@given(
    scalars=st.tuples(*[st.sampled_from([0, 1, 2, -1, 0.5, 0.0, True, False, np.nan])] * 2),
    seed=st.integers(0, 100),
)
def test_products_of_truths_are_true_or_false(scalars: tuple[Any, Any], seed: int) -> None:
    alpha, beta = scalars
    source = np.random.default_rng(seed)
    a, b, out = (source.random(shape) < 0.5 for shape in ((3, 4), (4, 2), (3, 2)))
    product = np.matmul(a, b) & bool(alpha)
    wanted = product | (out & bool(beta))
    same(matmul(a, b, alpha=alpha), product)
    matmul(a, b, out, alpha, beta)
    same(out, wanted)


ROUTES: dict[str, tuple[Any, Any, Any]] = {
    "kernel": (np.ones((3, 3)), np.ones((3, 3)), np.ones((3, 3))),
    "no reduction": (np.ones((3, 0)), np.ones((0, 3)), np.ones((3, 3))),
    "no rows": (np.ones((0, 3)), np.ones((3, 3)), np.ones((0, 3))),
    "kept beside": (np.ones((3, 3)), np.ones((3, 3)), np.ones((3, 3)).T),
    "cast": (np.ones((3, 3), "f4"), np.ones((3, 3), "f4"), np.ones((3, 3))),
    "vector": (np.ones(3), np.ones((3, 3)), np.ones(3)),
    "number": (np.ones(3), np.ones(3), np.ones(())),
    "stack": (np.ones((2, 3, 3)), np.ones((2, 3, 3)), np.ones((2, 3, 3))),
    "large stack": (np.ones((2, 70, 70)), np.ones((2, 70, 70)), np.ones((2, 70, 70))),
    "unaligned": (spread(np.ones((3, 3)), "bytes"), np.ones((3, 3)), np.ones((3, 3))),
    "half": (np.ones((3, 3), "f2"), np.ones((3, 3), "f2"), np.ones((3, 3), "f2")),
    "whole": (np.ones((3, 3), "i4"), np.ones((3, 3), "i4"), np.ones((3, 3), "i4")),
    "truths": (np.ones((3, 3), "?"), np.ones((3, 3), "?"), np.ones((3, 3), "?")),
    "long": (np.ones((3, 3), "g"), np.ones((3, 3), "g"), np.ones((3, 3), "g")),
    "matrix": (np.ones((3, 3)).view(np.matrix), np.ones((3, 3)), np.ones((3, 3))),
    "complex": (np.ones((3, 3), "F"), np.ones((3, 3), "F"), np.ones((3, 3), "F")),
    "objects": (np.ones((3, 3), "O"), np.ones((3, 3), "O"), np.ones((3, 3), "O")),
    "object": (np.ones(3, "O"), np.ones(3, "O"), np.ones((), "O")),
}


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_no_number_is_refused_on_every_way(route: str, name: str) -> None:
    a, b, out = ROUTES[route]
    before = out.copy()
    for scalar, to in itertools.product(NO_NUMBERS, (None, out)):
        with pytest.raises(OperandTypeError, match=f"^{name} must be [^\n]*$"):
            matmul(a, b, to, **{name: scalar})
    others = () if route in ("complex", "objects", "object") else NOT_REAL
    others += () if route in ("long", "objects", "object") else TOO_LARGE
    for scalar, to in itertools.product(others, (None, out)):
        with pytest.raises(OperandError, match=f"^{name} (must be|=) [^\n]*$"):
            matmul(a, b, to, **{name: scalar})
    np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("route", ROUTES)
def test_numbers_of_any_type_are_taken_on_every_way(route: str) -> None:
    a, b, held = ROUTES[route]
    product = np.matmul(a, b)
    numbers = [2, np.float32(2), np.int8(2), np.uint64(2), np.array(2.0), Fraction(2), Decimal(2)]
    for two in numbers[: -2 if held.dtype == object else None]:
        out = held.copy("K")
        matmul(a, b, out, two, two)
        twice = product if route == "truths" else 2 * product + 2 * held
        np.testing.assert_array_equal(out, twice)


def test_an_empty_reduction_leaves_beta_times_out() -> None:
    out = np.full((3, 2), 5.0)
    assert matmul(np.empty((3, 0)), np.empty((0, 2)), out, beta=2.0) is out
    assert (out == 10).all()
    out[0, 0] = np.nan
    matmul(np.empty((3, 0)), np.empty((0, 2)), out)
    assert (out == 0).all()


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (np.zeros((2, 5)), r"out must have shape \(2, 2\), got \(2, 5\)"),
        (np.zeros(2), r"out must have shape \(2, 2\), got \(2,\)"),
        ([[0.0, 0.0], [0.0, 0.0]], "out must be an array of numpy, got list"),
        (np.zeros((2, 2), np.int8), "Cannot cast"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(out: Any, said: str) -> None:
    with pytest.raises(OperandError, match=said):
        matmul(np.ones((2, 2)), np.ones((2, 2)), out)
    with pytest.raises((TypeError, ValueError)):
        np.matmul(np.ones((2, 2)), np.ones((2, 2)), out=out)


def test_an_output_that_must_not_be_written_stays() -> None:
    out = np.zeros((2, 2))
    out.flags.writeable = False
    with pytest.raises(OperandError, match="read-only"):
        matmul(np.ones((2, 2)), np.ones((2, 2)), out)
    assert (out == 0).all()


def test_stacks_of_larger_products() -> None:
    source = random.Random(3)
    for shapes in (
        ((3, 65, 40), (3, 40, 33)),
        ((2, 1, 65, 40), (1, 3, 40, 33)),
        ((65, 40), (2, 40, 33)),
    ):
        a, b = (values(source, shape, "float32") for shape in shapes)
        same(matmul(a, b), np.matmul(a, b))
        out = np.ones(np.matmul(a, b).shape, np.float32)
        matmul(a, b, out, 2.0, 3.0)
        np.testing.assert_array_equal(out, 2 * np.matmul(a, b) + 3)
    a = values(source, (3, 40, 40), "float64")
    wanted = np.matmul(a, a)
    np.testing.assert_array_equal(matmul(a, a, out=a), wanted)
