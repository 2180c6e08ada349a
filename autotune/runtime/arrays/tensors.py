"""PyTorch's tensors, on a GPU and on the host."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError, OperandTypeError
from autotune.operations.calls import number
from autotune.runtime.arrays.base import core_of, is_usual, out_is_missing, scale
from autotune.runtime.arrays.strided import SMALL_PRODUCT
from autotune.runtime.shapes import Spread
from autotune.serving.precision import torch_is_exact
from autotune.targets.registry import home_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from autotune.runtime.arrays.base import Core, Look
    from autotune.runtime.shapes import Factor

_ON_HOST = ("float32", "float64", "float16")
"""What NumPy has too: it is through its arrays that kernels take a tensor of the host."""


class TorchTensors:
    """Tensors of PyTorch.

    Args:
        module: the package `torch`.
    """

    def __init__(self, module: Any) -> None:
        from autotune.serving import watching  # it imports PyTorch

        self._torch = module
        self.name = f"PyTorch {module.__version__}"
        self._is_plain = watching.is_plain
        self.is_watched = watching.is_watched
        self._dtypes = {name: getattr(module, name) for name in DTYPES}
        self._strided = module.strided
        self._names = {dtype: name for name, dtype in self._dtypes.items()}

    def keeps(self, a: Any, b: Any) -> bool:
        """See `Library.keeps`: a launch for each product is no match for one for all."""
        return bool(a.dim() > 2 and b.dim() > 2 and a.is_cuda)

    def look(self, array: Any) -> tuple[Any, ...]:
        """See `Library.look`."""
        plain = self._is_plain(array)
        negated = not plain and array.is_neg()
        own = not (plain or negated) or (array.requires_grad and self._torch.is_grad_enabled())
        strides = () if own else array.stride()  # sparse tensors have none
        shape = () if array.is_nested else array.shape
        return shape, strides, array.dtype, (array.device, own, negated)

    def target(self, a: Look, b: Look) -> str | None:
        """See `Library.target`."""
        device = a.place[0]
        if device != b.place[0]:
            raise OperandError(
                f"a and b must be on one device, got {device} and {b.place[0]}: move one of them"
            )
        if a.place[1] or b.place[1] or device.type not in ("cpu", "cuda"):
            return None
        if device.type == "cpu" and self._names.get(a.dtype) not in _ON_HOST:
            return None
        return home_of(self._torch.empty(0, device=device))

    def dtype(self, a: Look, b: Look) -> str | None:
        """See `Library.dtype`: PyTorch promotes nothing."""
        if a.dtype != b.dtype:
            raise OperandTypeError(
                f"a and b must have one dtype, got {a.dtype} and {b.dtype}: convert one of them"
            )
        return self._names.get(a.dtype)

    def is_direct(self, a: Look) -> bool:
        """See `Library.is_direct`."""
        return bool(a.place[0].type == "cuda")

    def spread(self, operand: Look, dtype: str) -> Spread:
        """See `Library.spread`."""
        negated = operand.place[2]
        return Spread(tuple(operand.shape), None if negated else tuple(operand.strides))

    def working(self, array: Any) -> AbstractContextManager[Any]:
        """See `Library.working`: new tensors say where they are made."""
        return contextlib.nullcontext()

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        """See `Library.matrices`."""
        if array.requires_grad:
            array = array.detach()
        if factor.first:
            array = array[(0,) * factor.first]
        if factor.copied:
            array = array.resolve_neg().contiguous()
        if array.shape != factor.shape:
            array = array.reshape(factor.shape)
        if factor.stack:
            array = array.expand(factor.stack + factor.shape[-2:])
        return array.transpose(-1, -2) if factor.turned else array

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """See `Library.empty`."""
        return self._torch.empty(shape, dtype=self._dtypes[dtype], device=like.device)

    def seen(self, array: Any) -> Any:
        """See `Library.seen`: tensors of the host as arrays of NumPy."""
        return array if array.is_cuda else array.numpy()

    def finished(self, result: Any) -> Any:
        """See `Library.finished`: a tensor without dimensions."""
        return result

    def takes(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...]) -> bool:
        """See `Library.takes`."""
        return (
            type(out) is self._torch.Tensor
            and out.shape == shape
            and out.dtype is self._dtypes[dtype]
            and out.device == inputs[0].device
            and out.layout is self._strided
            and not out.requires_grad
            and out.is_contiguous()
            and not out.is_neg()
            and all(self._lies_apart(out, each) for each in inputs)
        )

    def _lies_apart(self, out: Any, tensor: Any) -> bool:
        """Whether two tensors have no storage in common."""
        mine, other = (each.untyped_storage().data_ptr() for each in (out, tensor))
        return bool(mine != other)

    def aligned(self, array: Any) -> Any:
        """See `Library.aligned`."""
        return array if array.data_ptr() % array.element_size() == 0 else array.clone()

    def store(self, out: Any, result: Any, beta: Any, core: Core) -> Any:
        """See `Library.store`: as PyTorch, which casts nothing and resizes what is empty."""
        if not isinstance(out, self._torch.Tensor):
            raise OperandTypeError(f"out must be a tensor of torch, got {type(out).__name__}")
        if out.dtype != result.dtype:
            raise OperandTypeError(f"out must have dtype {result.dtype}, got {out.dtype}")
        if out.device != result.device:
            raise OperandError(f"out must be on {result.device}, as a and b, got {out.device}")
        factor = scale("beta", beta, _numpys(out.dtype))
        if out.numel() == 0 and factor == 0:
            out.resize_(result.shape)
        if out.shape != result.shape:
            raise OperandError(
                f"out must have shape {tuple(result.shape)}, got {tuple(out.shape)}"
            )
        if factor != 0:
            result = result + factor * out
        return out.copy_(result)

    def batches(self, a: Look, work: int) -> bool:
        """See `Library.batches`: a launch for each product is no match for one for all."""
        return bool(a.place[0].type != "cpu" or work < SMALL_PRODUCT)

    def is_exact(self, array: Any) -> bool:
        """See `Library.is_exact`."""
        return torch_is_exact(self._torch, array.device.type)

    def multiply(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """See `Library.multiply`: whatever PyTorch multiplies, with gradients where wanted."""
        usual = type(alpha) is type(beta) is float and alpha == 1 and beta == 0
        if usual and out is None:
            return self._product(a, b)
        alpha, beta = number("alpha", alpha), number("beta", beta)
        if beta != 0 and out is None:
            raise out_is_missing(beta)
        result = self._product(a, b)
        if not is_usual(alpha, beta):
            dtype = _numpys(result.dtype)
            factor = scale("alpha", alpha, dtype)
            result = result if factor == 1 else result * factor
            scale("beta", beta, dtype)
        return result if out is None else self.store(out, result, beta, core_of(a, b))

    def _product(self, a: Any, b: Any) -> Any:
        stacks = type(a) is type(b) is self._torch.Tensor and a.dim() == b.dim() == 3
        # Who records it may have other sizes later.
        plain = stacks and not self.is_watched() and self._is_plain(a) and self._is_plain(b)
        if plain and a.shape[0] == b.shape[0]:
            return self._torch.bmm(a, b)  # where `matmul` arrives, some microseconds later
        return self._torch.matmul(a, b)


def _numpys(dtype: Any) -> np.dtype[Any]:
    """NumPy's element type that takes the same scalars as one of PyTorch."""
    if dtype.is_complex:
        return np.dtype(complex)
    return np.dtype(float if dtype.is_floating_point else str(dtype).removeprefix("torch."))
