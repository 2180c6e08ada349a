"""`matmul` of arrays in the memory of a GPU, beside the products of their own libraries."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernels_at_once import kernels_at_once
from matmul_cases import draw, spread, values

from autotune import matmul
from autotune.core.errors import OperandError, OperandTypeError
from autotune.core.session import forget

pytestmark = [
    pytest.mark.gpu,
    # Of libraries while they are imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

VIEWS = ("rows", "columns", "apart", "steps", "turned", "repeated")
TORCH_DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64")
CUPY_DTYPES = ("float32", "float64", "float16", "int32", "complex64")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of another test's cache serve nobody, and those there are compute at once."""
    kernels_at_once(monkeypatch)
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "0")
    forget()


def tensor(
    torch: Any, source: random.Random, shape: tuple[int, ...], dtype: str, view: str
) -> Any:
    """Small whole numbers on the GPU, in a view of a tensor."""
    numbers = spread(values(source, shape, "float64"), view)
    pairs = list(zip(shape, numbers.strides, strict=True))
    strides = [step // 8 if size > 1 else 1 for size, step in pairs]
    last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size)
    held = torch.full((1 + last,), 3, dtype=getattr(torch, dtype), device="cuda")
    made = held.as_strided(shape, strides)
    return made if view == "repeated" else made.copy_(torch.from_numpy(numbers.copy()))


def test_what_pytorch_multiplies() -> None:
    torch = pytest.importorskip("torch")
    source = random.Random(0)
    for _ in range(300):
        case = draw(source, VIEWS)
        dtype = source.choice(TORCH_DTYPES)
        a, b = (
            tensor(torch, source, shape, dtype, view)
            for shape, view in zip((case.a, case.b), case.views, strict=True)
        )
        wanted = torch.matmul(a, b)
        got = matmul(a, b)
        assert (got.dtype, got.shape, got.device) == (wanted.dtype, wanted.shape, wanted.device)
        assert got.equal(wanted)
        view, alpha, beta = (
            source.choice(VIEWS[:-1]),
            source.choice((1, -2)),
            source.choice((0, 3)),
        )
        out = tensor(torch, source, tuple(wanted.shape), dtype, view)
        before = out.clone()
        assert matmul(a, b, out, alpha, beta) is out
        assert out.equal(alpha * wanted + beta * before)


def test_large_stacks_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.randint(-4, 5, (3, 512, 512), device="cuda").float() for _ in range(2))
    for left, right in ((a, b), (a.mT, b), (a[:, ::2], b.mT), (a, b[0]), (a[0], b)):
        assert matmul(left, right).equal(torch.matmul(left, right))
    wanted = torch.matmul(a, a)
    assert matmul(a, a, a) is a
    assert a.equal(wanted)


def test_gradients_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones(2, 3, device="cuda", requires_grad=True)
    matmul(a, torch.full((3, 2), 2.0, device="cuda")).sum().backward()
    assert a.grad.equal(torch.full((2, 3), 4.0, device="cuda"))
    with torch.no_grad():
        weights = torch.nn.Parameter(torch.ones(3, 2, device="cuda"))
        assert not matmul(a, weights).requires_grad


def test_what_cupy_multiplies() -> None:
    cupy = pytest.importorskip("cupy")
    source = random.Random(0)
    for _ in range(200):
        case = draw(source)
        host = [
            spread(values(source, shape, source.choice(CUPY_DTYPES)), "rows")
            for shape in (case.a, case.b)
        ]
        a, b = (cupy.asarray(each) for each in host)
        if source.random() < 0.5 and a.ndim > 1:  # views of CuPy's own
            a = cupy.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
        if source.random() < 0.5:
            b = cupy.ascontiguousarray(b[::-1])[::-1]
        wanted = np.matmul(*host)
        got = matmul(a, b)
        assert isinstance(got, cupy.ndarray)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(cupy.asnumpy(got), wanted)
        out = cupy.full(wanted.shape, 5, wanted.dtype)
        assert matmul(a, b, out, 2, -1) is out
        np.testing.assert_array_equal(cupy.asnumpy(out), 2 * wanted - 5)


def test_what_does_not_fit_is_refused() -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones(2, 3, device="cuda")
    for b in (np.ones((3, 2), np.float32), torch.ones(3, 2), torch.ones(4, 4, device="cuda")):
        with pytest.raises(OperandError):
            matmul(a, b)
        with pytest.raises(OperandError):
            matmul(b, a[:, :2])
    with pytest.raises(OperandTypeError, match="must have one dtype"):
        matmul(a, torch.ones(3, 2, device="cuda", dtype=torch.float64))
