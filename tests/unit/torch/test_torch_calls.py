"""Launches of tensors whose look is known, by a kernel of the host that is given addresses."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from autotune.arrays.library import Descriptor  # noqa: E402
from autotune.core.errors import OperandError  # noqa: E402
from autotune.operations.problem import Gemm  # noqa: E402
from autotune.runtime.choosing import turning  # noqa: E402
from autotune.torch import calls  # noqa: E402

PLACE = torch.device("cpu", 0)
STREAM = 77


class Addressed:
    """A product's kernel, as those of GPUs are called; knows how often it looked at operands."""

    def __init__(self, problem: Gemm, devices: tuple[int, ...] = (0,)) -> None:
        self.problem = problem
        self.devices = devices
        self.looked = 0
        self.launched = 0

    def __call__(
        self, a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0
    ) -> Any:
        self.looked += 1
        a, b = self.as_multiplied(a, b)
        made = alpha * (a @ b)
        return made if out is None else out.copy_(made)

    def as_multiplied(self, *stored: Any) -> tuple[Any, ...]:
        layout = self.problem.layout
        return tuple(x.T if t == "t" else x for x, t in zip(stored, layout, strict=True))

    def launch_on(self, device: int) -> Any:
        if device not in self.devices:
            raise OperandError(f"no kernel for device {device}")
        return self.launch

    def launch(self, *numbers: Any) -> None:
        a, lda, b, ldb, c, ldc, alpha, beta, stream = numbers
        assert (alpha, beta, stream) == (1, 0, STREAM)
        self.launched += 1
        shapes = (self.problem.a_shape, self.problem.b_shape, self.problem.c_shape)
        places = ((a, lda), (b, ldb), (c, ldc))
        left, right, out = map(matrix, places, shapes)
        left, right = self.as_multiplied(left, right)
        out[...] = left @ right


def matrix(place: tuple[int, int], shape: tuple[int, int]) -> Any:
    """Memory as a matrix of float32, by its address and the elements from one row to the next."""
    (address, leading), (rows, columns) = place, shape
    count = (rows - 1) * leading + columns
    memory = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
    return np.lib.stride_tricks.as_strided(memory, (rows, columns), (4 * leading, 4))


def launched(kernel: Addressed, a: Any, b: Any, bound: Any = None) -> calls.TensorCalls:
    """The calls of a kernel, or of what is bound in its place, on tensors that lie like these."""
    looks = [Descriptor(x.shape, x.stride(), x.dtype, (PLACE, False, False)) for x in (a, b)]
    layout = kernel.problem.layout
    ways = [
        calls._launched(kernel.problem, bound or kernel, *looks, each)
        for each in (kernel, turning(kernel, layout))
    ]
    return calls.TensorCalls(layout, *ways)


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_raw_stream", lambda device: STREAM + device)


def operands(layout: str, m: int, n: int, k: int, apart: int) -> tuple[Any, Any]:
    """A and B as they are multiplied, with so many elements more between stored rows."""
    made = []
    for (rows, columns), stored in zip(((m, n), (n, k)), layout, strict=True):
        lines, width = (rows, columns) if stored == "n" else (columns, rows)
        tensor = torch.randint(-4, 5, (lines, width + apart)).float()[:, :width]
        made.append(tensor if stored == "n" else tensor.t())
    return made[0], made[1]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1)])
@pytest.mark.parametrize("apart", [0, 3])
def test_only_addresses_are_asked_for(
    layout: str, sizes: tuple[int, int, int], apart: int
) -> None:
    a, b = operands(layout, *sizes, apart)
    kernel = Addressed(Gemm(*sizes, layout=layout))
    product = launched(kernel, a, b)
    stored = [x.t() if t == "t" else x for x, t in zip((a, b), layout, strict=True)]
    for got in (product.call(a, b), product.of_stored(*stored)):
        assert got.is_contiguous()
        assert got.equal(a @ b)
    assert (kernel.looked, kernel.launched) == (0, 2)


def test_calls_with_an_output_or_a_scale_are_looked_at() -> None:
    a, b = operands("nn", 3, 4, 5, 0)
    kernel = Addressed(Gemm(3, 4, 5))
    product = launched(kernel, a, b)
    out = torch.empty(3, 5)
    assert product.call(a, b, out) is out
    assert out.equal(a @ b)
    assert product.call(a, b, None, 2.0).equal(2 * (a @ b))
    assert (kernel.looked, kernel.launched) == (2, 0)


def test_a_look_sees_nothing_of_gradients() -> None:
    """They are seen to above: under the switch's gates operands still require them."""
    a, b = (each.requires_grad_() for each in operands("nt", 3, 4, 5, 0))
    seen: list[bool] = []

    def bound(*given: Any) -> Any:
        seen.extend(each.requires_grad for each in given[:2])

    looks = [Descriptor(x.shape, x.stride(), x.dtype, (PLACE, False, False)) for x in (a, b)]
    kernel: Any = types.SimpleNamespace(bound=bound)
    made = calls._launches(Gemm(3, 4, 5, layout="nt"), kernel, *looks)
    made.call(a, b)
    made.of_stored(a, b.t())
    assert seen == [False] * 4


@pytest.mark.parametrize("what", ["device", "steps", "repeated", "PyTorch", "kernel"])
def test_what_cannot_be_launched_so_is_looked_at(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands("nn", 3, 4, 5, 0)
    kernel = Addressed(Gemm(3, 4, 5), devices=() if what == "device" else (0,))
    if what == "steps":
        a = torch.ones(3, 8)[:, ::2]
    elif what == "repeated":
        a = torch.ones(1, 4).expand(3, 4)
    elif what == "PyTorch":
        monkeypatch.setattr(calls, "_raw_stream", None)
    bound = kernel.__call__ if what == "kernel" else None  # as while it is being compiled
    product = launched(kernel, a, b, bound)
    assert product.call(a, b).equal(a @ b)
    assert (kernel.looked, kernel.launched) == (1, 0)
