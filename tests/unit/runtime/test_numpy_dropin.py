"""`autotune.numpy` beside NumPy: kernels mark their results, where that is told."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matmul_cases import draw, spread, values
from measured_shapes import MARK, SHAPES, measured_cache

from autotune.numpy import TunedArray, dot, matmul, tuned

if TYPE_CHECKING:
    from pathlib import Path

M, N, K = SHAPES[0]


own_cache = measured_cache(MARK)


def whole(*shape: int, dtype: str = "float64") -> Any:
    """Small whole numbers: sums are exact in any order."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def same(got: Any, wanted: Any, kind: type = np.ndarray) -> None:
    assert type(got) is (kind if isinstance(wanted, np.ndarray) else type(wanted))
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got), wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_products_that_go_to_kernels(dtype: str, layout: str, own_cache: Path) -> None:
    a, b = (
        np.asarray(whole(*shape, dtype=dtype), order="F" if stored == "t" else "C")
        for shape, stored in zip(((M, N), (N, K)), layout, strict=True)
    )
    wanted = a @ b + np.asarray(MARK, dtype)
    out = np.empty((M, K), dtype)
    for got in (matmul(a, b), dot(a, b), matmul(a, b, out), matmul(a, b, out=out)):
        same(got, wanted)
    for got in (tuned(a) @ b, a @ tuned(b), np.matmul(a, tuned(b)), tuned(a).dot(b)):
        same(got, wanted, TunedArray)
    same(np.dot(a, tuned(b)), wanted, TunedArray)
    assert np.matmul(tuned(a), b, out=out) is out
    same(out, wanted)
    assert f"numpy matmul {M}x{N}x{K}-{dtype}" in own_cache.read_text()


def test_what_numpy_multiplies() -> None:
    source = random.Random(0)
    for _ in range(200):
        case = draw(source)
        dtype = source.choice(("float32", "float64", "int64", "complex128", "bool"))
        a, b = (
            spread(values(source, shape, dtype), view)
            for shape, view in zip((case.a, case.b), case.views, strict=True)
        )
        if {a.shape, b.shape} <= {(x, y) for x in (5, 6, 7) for y in (5, 6, 7)}:
            continue  # may be marked
        wanted = np.matmul(a, b)
        same(matmul(a, b), wanted)
        same(tuned(a) @ b, wanted, TunedArray)
        same(dot(a, b), np.dot(a, b))


def test_what_numpy_is_told_besides_is_numpys() -> None:
    a, b = whole(M, N), whole(N, K)
    same(matmul(a, b, dtype="float32", casting="same_kind"), np.matmul(a, b, dtype="float32"))
    same(matmul(a, b, axes=[(0, 1), (0, 1), (1, 0)]), np.matmul(a, b).T)
    narrow = np.empty((M, K), np.complex128)
    assert matmul(a, b, narrow) is narrow
    np.testing.assert_array_equal(narrow, a @ b)
    for refused in ((a, a), (a, 3.0), (a, b, np.empty((2, 2)))):
        with pytest.raises(ValueError) as wanted:  # noqa: PT011 - NumPy's own words
            np.matmul(*refused)
        with pytest.raises(ValueError) as got:  # noqa: PT011
            matmul(*refused)
        assert str(got.value) == str(wanted.value)


def test_tuned_arrays_are_arrays() -> None:
    a = whole(M, N)
    view = tuned(a)
    assert np.shares_memory(view, a)
    same(tuned(a.tolist()), a, TunedArray)
    for got, wanted in (
        (view + 1, a + 1),
        (np.exp(view), np.exp(a)),
        (view[1:, ::2], a[1:, ::2]),
        (view.T, a.T),
        (np.add.reduce(view, 0), a.sum(0)),
        (view.sum(1), a.sum(1)),
        (np.divmod(view, 2)[1], np.divmod(a, 2)[1]),
    ):
        same(got, wanted, TunedArray)
    assert view.sum() == a.sum()
    view += 1
    assert type(view) is TunedArray
    view @= np.eye(N)
    for made in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        same(made, np.asarray(view), TunedArray)
    assert type(np.asarray(view)) is np.ndarray


def test_nothing_of_numpys_is_replaced() -> None:
    a, b = whole(M, N), whole(N, K)
    plain = a @ b
    assert matmul(a, b).min() > MARK / 2
    for got in (a @ b, np.matmul(a, b), np.dot(a, b)):
        same(got, plain)


def test_threads() -> None:
    a, b = whole(M, N), tuned(whole(N, K))
    wanted, wrong = np.asarray(a @ b), []

    def work() -> None:
        for _ in range(200):
            if not np.array_equal(a @ b, wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
