"""Stacks and groups of rows in PyTorch: what kernels are asked for, gradients, what is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from autotune.torch import (  # noqa: E402
    bmm,
    grouped_mm,
    stacks,
    use_tuned,
)

GPU, OTHER = torch.device("cuda", 0), torch.device("cuda", 1)


def looks(*tensors: Any, device: Any = GPU) -> tuple[Any, ...]:
    """How tensors lie, as if they were on a GPU."""
    return tuple(each for one in tensors for each in (one.shape, one.stride(), one.dtype, device))


def stack(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("a", "b", "layout", "strides"),
    [
        (stack(3, 5, 8), stack(3, 8, 4), "nn", [(40, 8), (32, 4)]),
        (stack(3, 8, 5).mT, stack(3, 4, 8).mT, "tt", [(40, 5), (32, 8)]),
        (stack(5, 3, 8).transpose(0, 1), stack(3, 4, 8).mT, "nt", [(8, 24), (32, 8)]),
        (stack(3, 5, 8), stack(8, 4).expand(3, 8, 4), "nn", [(40, 8), (0, 4)]),
        (stack(3, 5, 16)[..., :8], stack(3, 8, 4), "nn", [(80, 16), (32, 4)]),
        (stack(3, 1, 8), stack(3, 8, 1), "nn", [(8, 8), (8, 1)]),
    ],
)
def test_stacks_are_taken_as_they_lie(
    a: Any, b: Any, layout: str, strides: list[tuple[int, ...]]
) -> None:
    found = stacks._problem_of("bmm", looks(a, b))
    assert found is not None
    problem, given = found
    assert problem.shape == (*a.shape, b.shape[-1])
    assert problem.layout == layout
    assert given == strides
    stored = [each.shape for each in problem.operands]
    assert stored[0] == tuple(a.shape if layout[0] == "n" else a.mT.shape)
    assert stored[1] == tuple(b.shape if layout[1] == "n" else b.mT.shape)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (stack(3, 5, 8), stack(3, 8, 4, dtype=torch.float16)),
        (stack(3, 5, 8, dtype=torch.float32), stack(3, 8, 4, dtype=torch.float32)),
        (stack(3, 5, 8), stack(2, 8, 4)),
        (stack(3, 5, 8), stack(3, 7, 4)),
        (stack(0, 5, 8), stack(0, 8, 4)),
        (stack(3, 5, 16)[..., ::2], stack(3, 8, 4)),
        (stack(8).expand(3, 5, 8), stack(3, 8, 4)),
    ],
)
def test_others_are_left_to_pytorch(a: Any, b: Any) -> None:
    assert stacks._problem_of("bmm", looks(a, b)) is None
    there = (a, b) if a.dtype is b.dtype else None
    if there and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]:
        torch.testing.assert_close(bmm(a, b), torch.bmm(a, b))


def test_groups_ask_for_a_problem() -> None:
    a, b, ends = stack(20, 8), stack(3, 4, 8).mT, torch.zeros(3, dtype=torch.int32)
    found = stacks._problem_of("grouped", looks(a, b, ends))
    assert found is not None
    problem, strides = found
    assert problem.shape == (3, 20, 8, 4)
    assert problem.layout == "nt"
    assert strides == [(8,), (32, 8), ()]
    for wrong in (ends[:2], ends.long(), torch.zeros(6, dtype=torch.int32)[::2]):
        assert stacks._problem_of("grouped", looks(a, b, wrong)) is None
    assert stacks._problem_of("grouped", (*looks(a), *looks(b, ends, device=OTHER))) is None


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_are_pytorchs(turned: bool) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 5, 8), torch.randn(3, 4, 8).mT if turned else torch.randn(3, 8, 4)
    ours, theirs = ([each.clone().requires_grad_() for each in (a, b)] for _ in range(2))
    made, expected = bmm(*ours), torch.bmm(*theirs)
    torch.testing.assert_close(made, expected)
    seed = torch.randn(3, 5, 4)
    made.backward(seed)
    expected.backward(seed)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert torch.autograd.gradgradcheck(bmm, [each.double().requires_grad_() for each in (a, b)])


def test_groups_of_rows_have_gradients() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([3, 3, 16], dtype=torch.int32)
    a = torch.randn(16, 8, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(3, 8, 16, dtype=torch.bfloat16, requires_grad=True)
    made = grouped_mm(a, b, ends)
    seed = torch.randn(16, 16, dtype=torch.bfloat16)
    made.backward(seed)
    of_a, of_b = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    parts = [a[:3] @ b[0], a[3:] @ b[2]]
    torch.testing.assert_close(made, torch.cat(parts), rtol=2e-2, atol=2e-2)
    torch.cat(parts).backward(seed)
    torch.testing.assert_close(of_a, a.grad, rtol=2e-2, atol=5e-2)
    torch.testing.assert_close(of_b, b.grad, rtol=2e-2, atol=5e-2)


def test_a_look_sees_nothing_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the switch's gates operands still require them."""
    a, b = stack(3, 5, 8).requires_grad_(), stack(3, 4, 8).requires_grad_().mT
    kernel = SimpleNamespace(bound=lambda *given, out: [each.requires_grad for each in given])
    contest = SimpleNamespace(winner=kernel, over=True, counts=False, on_change=lambda told: None)
    monkeypatch.setattr(stacks, "contest_of", lambda *described: contest)
    product = stacks._make_product("bmm", "here", None, *looks(a, b))
    assert product is not None
    computed = product.compute(lambda call: call((a, b), None), lambda: "PyTorch", a)
    assert computed == [False, False]


def test_the_switch_leaves_other_stacks_as_they_were() -> None:
    a, b = torch.randn(3, 5, 8), torch.randn(3, 8, 4)
    expected = torch.bmm(a, b)
    out = torch.empty_like(expected)
    with use_tuned(devices=["cpu"]):
        torch.testing.assert_close(torch.matmul(a, b), expected)
        torch.testing.assert_close(torch.bmm(a, b, out=out), expected)
        with pytest.raises(RuntimeError, match="size"):
            torch.bmm(a, b.mT)
    compiled = torch.compile(lambda x, y: bmm(x, y), backend="eager")
    torch.testing.assert_close(compiled(a, b), expected)
