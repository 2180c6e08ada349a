"""`matmul` of tensors on the host beside PyTorch's own, where that is installed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kernels_at_once import own_cache  # noqa: F401 - a fixture
from matmul_cases import NO_NUMBERS, NOT_REAL, TOO_LARGE, draw, spread, values

from autotune import matmul
from autotune.arrays.torch import torch_is_exact
from autotune.core.errors import OperandError, OperandTypeError

if TYPE_CHECKING:
    pass

torch: Any = pytest.importorskip("torch")

VIEWS = ("rows", "columns", "apart", "steps", "turned", "repeated")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "complex64")


def tensor(source: random.Random, shape: tuple[int, ...], dtype: str, view: str) -> Any:
    """Small whole numbers, in a view of a tensor."""
    numbers = spread(values(source, shape, "float64"), view)
    pairs = list(zip(shape, numbers.strides, strict=True))
    strides = [step // 8 if size > 1 else 1 for size, step in pairs]
    last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size)
    held = torch.full((1 + last,), 3, dtype=getattr(torch, dtype))
    made = held.as_strided(shape, strides)
    return made if view == "repeated" else made.copy_(torch.from_numpy(numbers))


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.equal(wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_what_pytorch_multiplies(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(300):
        case = draw(source, VIEWS)
        dtype = source.choice(DTYPES)
        a, b = (
            tensor(source, shape, dtype, view)
            for shape, view in zip((case.a, case.b), case.views, strict=True)
        )
        wanted = torch.matmul(a, b)
        same(matmul(a, b), wanted)
        view, alpha, beta = (
            source.choice(VIEWS[:-1]),
            source.choice((1, -2)),
            source.choice((0, 3)),
        )
        out = tensor(source, tuple(wanted.shape), dtype, view)
        before = out.clone()
        assert matmul(a, b, out, alpha, beta) is out
        same(out, alpha * wanted + beta * before)


def test_results_are_in_the_memory_of_the_tensor() -> None:
    out = torch.zeros(2, 2)
    seen = out.numpy()
    assert matmul(torch.ones(2, 3), torch.ones(3, 2), out) is out
    assert (seen == 3).all()
    empty = torch.empty(0)
    assert matmul(torch.ones(2, 3), torch.ones(3, 2), empty).shape == (2, 2)
    same(matmul(out, out, out), torch.full((2, 2), 18.0))


def test_gradients_are_pytorchs() -> None:
    a = torch.ones(2, 3, requires_grad=True)
    matmul(a, torch.full((3, 2), 2.0)).sum().backward()
    assert a.grad.equal(torch.full((2, 3), 4.0))
    with torch.no_grad():
        weights = torch.nn.Parameter(torch.ones(3, 2))
        got = matmul(torch.ones(2, 3), weights)
        into = torch.nn.Parameter(torch.zeros(2, 2))
        assert matmul(torch.ones(2, 3), weights, into) is into
    assert not got.requires_grad
    same(got, torch.full((2, 2), 3.0))
    assert into.equal(got)


@pytest.mark.parametrize("wanting", ["a", "b", "out"])
def test_gradients_through_an_output_are_refused_as_by_pytorch(wanting: str) -> None:
    given = {name: torch.ones(2, 2) for name in ("a", "b", "out")}
    given[wanting].requires_grad_()
    with pytest.raises(RuntimeError, match="grad"):
        matmul(**given)


def test_stacks_are_exact_whatever_pytorch_is_set_to() -> None:
    source = random.Random(0)
    a, b = (tensor(source, (3, 20, 20), "float32", "rows") for _ in range(2))
    wanted = torch.matmul(a, b)
    same(matmul(a, b), wanted)
    torch.set_float32_matmul_precision("medium")
    try:
        same(matmul(a + 2.0**-20, b), torch.matmul(a.double() + 2.0**-20, b.double()).float())
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_settings_that_round_are_seen(device: str) -> None:
    backends = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    assert torch_is_exact(torch, device)
    torch.set_float32_matmul_precision("medium")
    rounds = not torch_is_exact(torch, device)
    torch.set_float32_matmul_precision("highest")
    assert rounds
    before = backends.matmul.fp32_precision
    backends.matmul.fp32_precision = "tf32"  # after which PyTorch refuses the old question
    try:
        assert not torch_is_exact(torch, device)
    finally:
        backends.matmul.fp32_precision = before
    assert torch_is_exact(torch, device)


def test_negated_views_and_sparse_tensors() -> None:
    imaginary = torch.tensor([[1 + 2j, 3 - 1j]]).conj().imag
    assert imaginary.is_neg()
    same(matmul(imaginary, torch.ones(2, 2)), torch.matmul(imaginary, torch.ones(2, 2)))
    sparse = torch.eye(3).to_sparse()
    same(matmul(sparse, torch.ones(3, 2)), torch.ones(3, 2))


ROUTES = {
    "kernel": ((3, 3), (3, 3), "float32"),
    "no reduction": ((3, 0), (0, 3), "float32"),
    "stack": ((2, 3, 3), (2, 3, 3), "float64"),
    "whole": ((3, 3), (3, 3), "int32"),
    "bfloat16": ((3, 3), (3, 3), "bfloat16"),
}


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_no_number_is_refused_on_every_way(route: str, name: str) -> None:
    *shapes, dtype = ROUTES[route]
    a, b = (torch.ones(shape, dtype=getattr(torch, dtype)) for shape in shapes)
    out = torch.matmul(a, b)
    before = out.clone()
    tensors = (torch.tensor([2.0]), torch.tensor(2j))
    for scalar in (*NO_NUMBERS, *NOT_REAL, *TOO_LARGE, *tensors):
        for to in (None, out, out.mT):
            with pytest.raises(OperandError, match=f"^{name} (must be|=)"):
                matmul(a, b, to, **{name: scalar})
    assert out.equal(before)


def test_numbers_of_any_type_scale() -> None:
    a = torch.ones(3, 3)
    for two in (2, 2.0, np.float32(2), np.array(2), torch.tensor(2.0), torch.tensor(2)):
        out = torch.ones(3, 3)
        same(matmul(a, a, out, two, two), torch.full((3, 3), 8.0))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_whole_numbers_are_scaled_exactly_or_refused(dtype: str) -> None:
    one = torch.ones(1, 1, dtype=getattr(torch, dtype))
    limits = torch.iinfo(one.dtype)
    for whole in (limits.max, limits.max - 1, limits.min):
        assert matmul(one, one, alpha=whole).item() == whole
        assert matmul(one, one, 0 * one, 0, whole).item() == 0
        assert matmul(one, one, one.clone(), 0, whole).item() == whole
    for whole in (limits.max + 1, limits.min - 1):
        with pytest.raises(OperandError, match="alpha must be from"):
            matmul(one, one, alpha=whole)


def test_what_pytorch_refuses_is_refused() -> None:
    a = torch.ones(2, 3)
    for b, said in (
        (torch.ones(3, 2, dtype=torch.float64), "one dtype, got torch.float32 and torch.float64"),
        (np.ones((3, 2), np.float32), "of one library, got Tensor and ndarray"),
        ([[1.0]], "of one library, got Tensor and list"),
    ):
        with pytest.raises(OperandTypeError, match=said):
            matmul(a, b)
    for b in (torch.ones(2, 2), torch.ones(()), torch.ones(3, 2, device="meta")):
        with pytest.raises(OperandError):
            matmul(a, b)
    fitting = torch.ones(3, 2)
    for out in (torch.ones(2, 2, dtype=torch.float64), np.ones((2, 2), np.float32)):
        with pytest.raises(OperandTypeError, match="out must"):
            matmul(a, fitting, out)
    with pytest.raises(OperandError, match=r"out must have shape \(2, 2\), got \(2, 3\)"):
        matmul(a, fitting, torch.ones(2, 3))
