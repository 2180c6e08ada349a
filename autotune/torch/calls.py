"""Products of plain tensors by kernels: which there are, and calling them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from autotune.core.errors import OperandError
from autotune.runtime.arrays.base import Look
from autotune.runtime.arrays.kinds import library_of
from autotune.runtime.multiplying import on_forgetting
from autotune.runtime.serving import served, turning
from autotune.targets.kernel import Launching

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.operations.problem import Gemm
    from autotune.runtime.serving import Served

    Call: TypeAlias = Callable[..., Any]

_raw_stream: Call | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The handle of the current stream of a device; what PyTorch's own compiler calls."""

_ROW_LIMIT = 2**31
"""Elements between rows that kernels count no further than."""

_SHAPES = 4096
"""Kinds of operands whose product is remembered."""


@dataclass(frozen=True, slots=True)
class TensorProduct:
    """A product of two matrices by a kernel.

    Both calls raise OperandError where they cannot compute where the tensors lie.

    Attributes:
        layout: which operands the kernel takes turned.
        of_stored: ``of_stored(a, b, out=None, alpha=1.0, beta=0.0)`` of operands as the layout
            says that they are stored: ``alpha a @ b + beta out``, in `out` or a new tensor.
        call: the same of operands as they are multiplied.
    """

    layout: str
    of_stored: Call
    call: Call


def product_of(
    a: Any, b: Any, caller: str, accepts: Callable[[Gemm], bool] | None = None
) -> TensorProduct | None:
    """The product of two plain tensors by a kernel; None leaves it to PyTorch.

    Args:
        a: A.
        b: B.
        caller: the function that was called, for the log.
        accepts: which problems may be served; None takes all.
    """
    return product_by_looks(
        a.shape,
        a.stride(),
        a.dtype,
        a.device,
        b.shape,
        b.stride(),
        b.dtype,
        b.device,
        caller,
        accepts,
    )


def layer_of(rows: Any, weight: Any, caller: str) -> TensorProduct | None:
    """The product of rows and a layer's weights, which are stored turned, by a kernel.

    Args:
        rows: A.
        weight: B as stored, K x N; its view as B need not be made for that.
        caller: the function that was called, for the log.
    """
    return layer_by_looks(
        caller,
        rows.shape,
        rows.stride(),
        rows.dtype,
        rows.device,
        weight.shape,
        weight.stride(),
        weight.dtype,
        weight.device,
    )


@functools.lru_cache(maxsize=_SHAPES)
def product_by_looks(
    shape_a: tuple[int, ...],
    strides_a: tuple[int, ...],
    dtype_a: torch.dtype,
    device_a: torch.device,
    shape_b: tuple[int, ...],
    strides_b: tuple[int, ...],
    dtype_b: torch.dtype,
    device_b: torch.device,
    caller: str,
    accepts: Callable[[Gemm], bool] | None = None,
) -> TensorProduct | None:
    """The product of plain tensors that lie like these, by a kernel."""
    tensors = library_of(torch.Tensor)
    assert tensors is not None
    # Whether gradients are wanted is not for kernels to know, which are called below all that.
    a = Look(shape_a, strides_a, dtype_a, (device_a, False, False))
    b = Look(shape_b, strides_b, dtype_b, (device_b, False, False))
    found = served(tensors, a, b, caller, accepts)
    if found is None:
        return None
    layout = found.problem.layout
    if device_a.type == "cpu":
        stored = _of_host(found)
        return TensorProduct(layout, stored, turning(stored, layout))
    launched = functools.partial(_launched, found, a, b)
    return TensorProduct(layout, launched(found.kernel), launched(turning(found.kernel, layout)))


@functools.lru_cache(maxsize=_SHAPES)
def layer_by_looks(caller: str, *looks: Any) -> TensorProduct | None:
    """The same of rows and of weights as they are stored."""
    *rows, shape, strides, dtype, device = looks
    return product_by_looks(*rows, shape[::-1], strides[::-1], dtype, device, caller)


def _of_host(found: Served) -> Call:
    """Calls of a kernel that takes NumPy's arrays."""
    kernel, shape = found.kernel, found.problem.c_shape
    dtype = getattr(torch, found.problem.dtype)
    empty = torch.empty

    def of_stored(a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        if out is None:
            out = empty(shape, dtype=dtype)
        left = a.detach().numpy() if a.requires_grad else a.numpy()
        right = b.detach().numpy() if b.requires_grad else b.numpy()
        kernel(left, right, out.numpy(), alpha, beta)
        return out

    return of_stored


def _launched(found: Served, a: Look, b: Look, usual: Call) -> Call:
    """Calls of a kernel of a GPU: where tensors lie alike, all that is new are their addresses.

    Args:
        found: the kernel, and what it computes.
        a: how A lies, as it is multiplied.
        b: how B lies.
        usual: the same calls, with a look at the operands in each.
    """
    leading = [
        _leading(each, stored) for each, stored in zip((a, b), found.problem.layout, strict=True)
    ]
    kernel, device = found.kernel, a.place[0]
    if _raw_stream is None or None in leading or not isinstance(kernel, Launching):
        return usual
    try:
        launch = kernel.launch_on(device.index)
    except OperandError:  # the usual calls say so as well
        return usual
    stream, number, empty = _raw_stream, device.index, torch.empty
    shape, dtype = found.problem.c_shape, a.dtype
    (lda, ldb), ldc = leading, shape[1]

    def call(a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        if out is not None or alpha != 1 or beta != 0:
            return usual(a, b, out, alpha, beta)
        made = empty(shape, dtype=dtype, device=device)
        c = made.data_ptr()
        launch(a.data_ptr(), lda, b.data_ptr(), ldb, c, ldc, 1.0, 0.0, stream(number))
        return made

    return call


def _leading(look: Look, stored: str) -> int | None:
    """Elements from one stored row to the next; None where that is for a closer look to say."""
    lines = zip(look.shape, look.strides, strict=True)
    (rows, leading), (columns, step) = lines if stored == "n" else reversed([*lines])
    if columns > 1 and step != 1:
        return None
    if rows == 1:
        return columns
    return leading if columns <= leading < _ROW_LIMIT else None


on_forgetting(product_by_looks.cache_clear)
on_forgetting(layer_by_looks.cache_clear)
