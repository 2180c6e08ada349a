"""PyTorch's tensors, on a GPU and on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.device import DeviceArray
from autotune.arrays.library import (
    Library,
    core_of,
    is_usual,
    out_is_missing,
    refuse_host,
    scale,
)
from autotune.arrays.numpy import SMALL_PRODUCT
from autotune.arrays.shapes import Strided
from autotune.core.dtypes import DTYPES, ELEMENTS
from autotune.core.errors import OperandError, OperandTypeError
from autotune.operations.calls import number

if TYPE_CHECKING:
    from autotune.arrays.library import Core, Descriptor, Place, Reader
    from autotune.arrays.shapes import Factor

_ON_HOST = ("float32", "float64", "float16")
"""Dtypes that NumPy shares: CPU kernels receive tensors of the host as NumPy arrays."""

_EXACT = ("ieee", "none")
"""PyTorch's names for float32 as it is, and for a setting that leaves it to the one above."""


class TorchTensors(Library):
    """Tensors of PyTorch.

    Args:
        module: the package `torch`.
    """

    def __init__(self, module: Any) -> None:
        # Importing it imports PyTorch.
        from autotune.arrays.watching import check_unrecorded, is_plain, is_watched

        self.module = module
        self.name = f"PyTorch {module.__version__}"
        self.kinds = (module.Tensor, module.nn.Parameter)
        self.is_watched = is_watched  # type: ignore[method-assign]
        self._is_plain = is_plain
        self._check_unrecorded = check_unrecorded
        found = {name: getattr(module, name, None) for name in ELEMENTS}
        self._dtypes = {name: dtype for name, dtype in found.items() if dtype is not None}
        self._names = {dtype: name for name, dtype in self._dtypes.items() if name in DTYPES}
        self._empty = module.empty
        # What PyTorch's own compiler calls: the public way makes an object of the stream first.
        raw = getattr(module._C, "_cuda_getCurrentRawStream", None)
        self._current: Callable[[int], int] = raw or self._public_stream

    def memory_of(self, array: Any) -> str:
        return "gpu" if getattr(array, "is_cuda", False) else "host"

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        wanted = self._dtypes[dtype]
        columns = shape[1]
        records = self.module.is_grad_enabled

        def read(array: Any) -> Place | None:
            if array.dtype is not wanted or array.shape != shape:
                return None
            if array.requires_grad and records():
                return None
            leading = columns
            if not array.is_contiguous():
                leading, step = array.stride()
                if step != 1 or leading < columns:
                    return None
            device, address = array.get_device(), array.data_ptr()
            return (address, leading, device) if device >= 0 and address else None

        return read

    def describe(
        self, name: str, array: Any, stream: int, device_of: Callable[[int], int | None]
    ) -> DeviceArray:
        if not array.is_cuda:
            refuse_host(name, array)
        return DeviceArray(
            address=array.data_ptr(),
            shape=tuple(array.shape),
            strides=tuple(array.stride()),
            dtype=str(array.dtype).removeprefix("torch."),
            device=array.get_device(),
        )

    def current_stream(self, array: Any) -> int:
        self._check_unrecorded()
        device = array.get_device()
        return self._current(device) if device >= 0 else 0

    def check_detached(self, array: Any) -> None:
        if array.requires_grad and self.module.is_grad_enabled():
            raise OperandError(
                "a kernel's call must have no tensors that require grad, which would lose their "
                "gradients: pass x.detach(), call it under torch.no_grad(), or use "
                "autotune.torch.mm or linear, or torch_operator() of a kernel of your own"
            )

    def _public_stream(self, device: int) -> int:
        return int(self.module.cuda.current_stream(device).cuda_stream)

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None = None
    ) -> Any:
        made = self._dtypes[dtype]
        if stream is None:
            return self._empty(shape, dtype=made, device=like.device)
        # The memory of a tensor belongs to the stream that it was allocated on.
        cuda = self.module.cuda
        with cuda.stream(cuda.ExternalStream(stream, device=like.device)):
            return self._empty(shape, dtype=made, device=like.device)

    def lend(self, array: Any, stream: int) -> None:
        array.record_stream(self.module.cuda.ExternalStream(stream, device=array.device))

    def multiply_plain(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
        with self.module.no_grad():
            if out is None:
                product = self.module.matmul(a, b)
                return product if alpha == 1 else product.mul_(alpha)
            if alpha == 1 and beta == 0:
                return self.module.matmul(a, b, out=out)
            return out.addmm_(a, b, beta=beta, alpha=alpha)

    def is_exact(self, array: Any) -> bool:
        return torch_is_exact(self.module, array.device.type)

    def multiplies_stacks(self, a: Any, b: Any) -> bool:
        """Both are stacks on a GPU: a launch for each product is no match for one for all."""
        return bool(a.dim() > 2 and b.dim() > 2 and a.is_cuda)

    def batches(self, a: Descriptor, work: int) -> bool:
        return bool(a.place[0].type != "cpu" or work < SMALL_PRODUCT)

    def describe_fast(self, array: Any) -> tuple[Any, ...]:
        plain = self._is_plain(array)
        negated = not plain and array.is_neg()
        own = not (plain or negated) or (array.requires_grad and self.module.is_grad_enabled())
        strides = () if own else array.stride()  # sparse tensors have none
        shape = () if array.is_nested else array.shape
        return shape, strides, array.dtype, (array.device, own, negated)

    def memory(self, a: Descriptor, b: Descriptor) -> str | None:
        (device, own_a, _), (other, own_b, _) = a.place, b.place
        if device != other:
            raise OperandError(
                f"a and b must be on one device, got {device} and {other}: move one of them"
            )
        if own_a or own_b:
            return None
        if device.type == "cpu":
            return "host" if self._names.get(a.dtype) in _ON_HOST else None
        return "gpu" if device.type == "cuda" else None

    def dtype(self, a: Descriptor, b: Descriptor) -> str | None:
        """PyTorch promotes nothing."""
        if a.dtype != b.dtype:
            raise OperandTypeError(
                f"a and b must have one dtype, got {a.dtype} and {b.dtype}: convert one of them"
            )
        return self._names.get(a.dtype)

    def is_direct(self, a: Descriptor) -> bool:
        return bool(a.place[0].type == "cuda")

    def for_kernel(self, array: Any) -> Any:
        """Tensors of the host as arrays of NumPy."""
        if array.is_cuda:
            return array
        return (array.detach() if array.requires_grad else array).numpy()

    def from_kernel(self, array: Any, like: Any) -> Any:
        return self.module.from_numpy(array)

    def strided(self, operand: Descriptor, dtype: str) -> Strided:
        negated = operand.place[2]
        return Strided(tuple(operand.shape), None if negated else tuple(operand.strides))

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        return super().matrices(array.detach() if array.requires_grad else array, factor, dtype)

    def row_major(self, array: Any, dtype: str) -> Any:
        return array.resolve_neg().contiguous()

    def aligned(self, array: Any) -> Any:
        return array if array.data_ptr() % array.element_size() == 0 else array.clone()

    def takes(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...]) -> bool:
        return (
            type(out) is self.module.Tensor
            and out.shape == shape
            and out.dtype is self._dtypes[dtype]
            and out.device == inputs[0].device
            and out.layout is self.module.strided
            and not out.requires_grad
            and out.is_contiguous()
            and not out.is_neg()
            and lies_apart(out, *inputs)
        )

    def store(self, out: Any, result: Any, beta: Any, core: Core) -> Any:
        """As PyTorch, which casts nothing and resizes what is empty."""
        if not isinstance(out, self.module.Tensor):
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
        return out.copy_(result + factor * out if factor != 0 else result)

    def multiply(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """Whatever PyTorch multiplies, with gradients where wanted."""
        if out is not None and self._records(a, b, out):
            return self.module.matmul(a, b, out=out)  # says that there are none then
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

    def _records(self, *arrays: Any) -> bool:
        """True if gradients are wanted of one of them."""
        wanted = any(getattr(each, "requires_grad", False) for each in arrays)
        return wanted and bool(self.module.is_grad_enabled())

    def _product(self, a: Any, b: Any) -> Any:
        stacks = type(a) is type(b) is self.module.Tensor and a.dim() == b.dim() == 3
        # Who records it may have other sizes later.
        plain = stacks and not self.is_watched() and self._is_plain(a) and self._is_plain(b)
        if plain and a.shape[0] == b.shape[0]:
            return self.module.bmm(a, b)  # where `matmul` arrives, some microseconds later
        return self.module.matmul(a, b)


def torch_is_exact(torch: Any, device: str) -> bool:
    """True if PyTorch, as it is set now, multiplies float32 without rounding it.

    Products of 16-bit numbers are summed in float32 by all libraries; partial sums of a divided
    reduction are rounded as PyTorch's own settings say.

    Args:
        torch: the package.
        device: "cuda" or "cpu".
    """
    backends = torch.backends
    products = backends.cuda.matmul if device == "cuda" else backends.mkldnn.matmul
    precision = getattr(products, "fp32_precision", None)
    if precision is None:  # before PyTorch 2.9, which refuses to be asked both ways
        return bool(torch.get_float32_matmul_precision() == "highest")
    if precision == "none":
        precision = backends.fp32_precision
    return precision in _EXACT


def lies_apart(out: Any, *tensors: Any) -> bool:
    """True if a tensor has no storage in common with others."""
    storage = out.untyped_storage().data_ptr()
    return all(tensor.untyped_storage().data_ptr() != storage for tensor in tensors)


def _numpys(dtype: Any) -> np.dtype[Any]:
    """NumPy's element type that takes the same scalars as one of PyTorch."""
    if dtype.is_complex:
        return np.dtype(complex)
    return np.dtype(float if dtype.is_floating_point else str(dtype).removeprefix("torch."))
