"""Products with a B that stays as it is, as users hold them."""

from __future__ import annotations

import copy
import functools
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

from autotune import Gemm, load
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import LaunchError
from autotune.serving.kernel import Kept, KeptProduct, ProductKernel, Request
from autotune.store import MatchQuality

PROBLEM = Gemm(4, 5, 6)


class Bound:
    """A bound kernel that keeps B, and tells of all that is asked of it."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> str:
        self.told.append(("call", *arguments))
        return "made"

    def keep(self, b: Any, stream: Any) -> Kept | None:
        self.told.append(("keep", b, stream))

        def call(*arguments: Any) -> str:
            self.told.append(("kept", *arguments))
            return "found"

        return Kept(call, 64, lambda: self.told.append(("close",)))


class Bare:
    """One that keeps nothing."""

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        return arguments


def kernel_of(bound: Any) -> ProductKernel:
    again = functools.partial(kernel_of, bound)
    request = Request(PROBLEM, "exact", None, None, (), None, again=again)
    candidate = Candidate("split_fp16", Configuration({"sm": 64}))
    quality = MatchQuality.EXACT
    return ProductKernel(PROBLEM, "cuda", candidate, quality, "", None, bound, _request=request)


def test_calls_find_what_was_made_of_b() -> None:
    bound = Bound()
    kernel = kernel_of(bound)
    used: list[int] = []
    kernel.hear(lambda: used.append(1))
    kept = kernel.keep("b", stream=7)
    assert kept.kept_bytes == 64
    assert repr(kept) == f"<B kept in 64 bytes for {kernel!r}>"
    assert kept("a") == "found"
    assert kept("a", "out", 2.0, beta=0.5, stream=9) == "found"
    assert kernel("a", "b") == "made"
    assert bound.told == [
        ("keep", "b", 7),
        ("kept", "a", "b", None, 1.0, 0.0, None),
        ("kept", "a", "b", "out", 2.0, 0.5, 9),
        ("call", "a", "b", None, 1.0, 0.0, None),
    ]
    assert len(used) == 3


@pytest.mark.parametrize("bound", [Bound(), Bare()])
def test_a_closed_one_refuses_calls(bound: Any) -> None:
    class Array:
        pass

    b = Array()
    gone = weakref.ref(b)
    kept = kernel_of(bound).keep(b)
    if isinstance(bound, Bound):
        bound.told.clear()
    del b
    assert gone() is not None
    kept.close()
    kept.close()
    assert gone() is None
    with pytest.raises(LaunchError, match="was closed: keep it again"):
        kept("a")
    if isinstance(bound, Bound):
        assert ("close",) in bound.told


def test_kernels_that_keep_nothing_are_called() -> None:
    for bound in (Bare(), Bound()):
        if isinstance(bound, Bound):
            bound.keep = lambda b, stream: None  # type: ignore[method-assign]
        kernel = kernel_of(bound)
        kept = kernel.keep("b")
        assert kept.kept_bytes == 0
        assert kept("a", stream=3) == kernel("a", "b", stream=3)
        kernel.become(lambda *arguments: "later", "")
        assert kept("a") == "later"


def test_b_is_kept_once_its_kernel_is_compiled() -> None:
    kernel, bound = kernel_of(Bare()), Bound()
    kernel.become(lambda *arguments: "meanwhile", "", passing=True)
    kept = kernel.keep("b")
    assert [kept("a"), kept("a")] == ["meanwhile"] * 2
    keep = bound.keep

    def captured(b: Any, stream: Any) -> Kept | None:
        raise LaunchError("a graph is captured")

    bound.keep = captured  # type: ignore[method-assign]
    kernel.become(bound, "")
    assert kept("a") == "made"
    assert kept.kept_bytes == 0
    bound.keep = keep  # type: ignore[method-assign]
    bound.told.clear()
    assert [kept("a", stream=3), kept("a")] == ["found"] * 2
    assert kept.kept_bytes == 64
    assert bound.told[0] == ("keep", "b", 3)
    assert [each[0] for each in bound.told] == ["keep", "kept", "kept"]
    kept.close()
    with pytest.raises(LaunchError, match="closed"):
        kept("a")


def test_copies_keep_b_again() -> None:
    bound = Bound()
    kept = kernel_of(bound).keep(b"b")
    assert copy.copy(kept)(b"a") == "found"
    assert bound.told == [("keep", b"b", None)] * 2 + [("kept", b"a", b"b", None, 1.0, 0.0, None)]
    again = pickle.loads(pickle.dumps(kernel_of(Bound()).keep(b"b")))
    assert isinstance(again, KeptProduct)
    assert again(b"a") == "found"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_of_the_cpu_have_it(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.random(shape).astype(dtype) for shape in ((4, 5), (5, 6)))
    kernel = load(Gemm(4, 5, 6, dtype), target="cpu", match="nearest")
    kept = kernel.keep(b)
    assert kept.kept_bytes == 0
    np.testing.assert_allclose(kept(a), a @ b, rtol=1e-5)
    out = np.ones((4, 6), dtype)
    assert kept(a, out, 2.0, 1.0) is out
    np.testing.assert_allclose(out, 2 * a @ b + 1, rtol=1e-5)
