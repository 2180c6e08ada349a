"""Arrays that say they lie on a GPU, in the ways that libraries say it."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from numpy.typing import NDArray


class InterfaceArray:
    """Speaks ``__cuda_array_interface__``, as Numba's and PyCUDA's arrays do."""

    def __init__(
        self, array: NDArray[Any], stream: int | None = None, *, plain: bool = True
    ) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "strides": None if array.flags.c_contiguous and plain else array.strides,
            "data": (array.ctypes.data, not array.flags.writeable),
            "typestr": array.dtype.str,
            "stream": stream,
            "version": 3,
        }


class DlpackArray:
    """Speaks DLPack; NumPy makes the capsules, with or without a version."""

    def __init__(self, array: NDArray[Any], device: int = 0, *, versioned: bool = True) -> None:
        self.array = array
        self.device = device
        self.versioned = versioned
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int, **options: Any) -> object:
        if not self.versioned and options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        return self.array.__dlpack__(**options)


class FakeTensor:
    """What of PyTorch's tensors is used."""

    def __init__(self, array: NDArray[Any], device: int = 0) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = f"torch.{array.dtype.name}"
        self.device = device
        self.is_cuda = device >= 0
        self.requires_grad = False
        self.lent: list[int] = []

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def get_device(self) -> int:
        return self.device

    def record_stream(self, stream: Any) -> None:
        self.lent.append(stream.cuda_stream)


def fake_torch(current: dict[int, int]) -> types.ModuleType:
    """A module that stands for PyTorch; `current` has the current streams by device."""
    torch: Any = types.ModuleType("torch")
    torch.Tensor, torch.__version__ = FakeTensor, "2.9"
    torch.nn = types.SimpleNamespace(Parameter=FakeTensor)
    for name in ("float32", "float64", "float16", "bfloat16"):
        # As in PyTorch, one object per type.
        setattr(torch, name, f"torch.{name}")

    class ExternalStream:
        def __init__(self, handle: int, device: int) -> None:
            self.cuda_stream, self.device = handle, device

        def __enter__(self) -> None:
            self.before = current[self.device]
            current[self.device] = self.cuda_stream

        def __exit__(self, *_: object) -> None:
            current[self.device] = self.before

    def empty(shape: tuple[int, int], *, dtype: str, device: int) -> FakeTensor:
        made = FakeTensor(np.zeros(shape, dtype.removeprefix("torch.")), device)
        made.lent.append(-current[device])  # the stream it was allocated on
        return made

    torch.empty = empty
    torch.is_grad_enabled = lambda: True
    torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=current.__getitem__)
    torch.cuda = types.SimpleNamespace(ExternalStream=ExternalStream, stream=lambda each: each)
    return torch


class FakeCupyArray:
    """What of CuPy's arrays is used."""

    def __init__(self, array: NDArray[Any], device: int = 0) -> None:
        self.array = array
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.data = types.SimpleNamespace(ptr=array.ctypes.data, device_id=device)


def fake_cupy(current: dict[int, int]) -> types.ModuleType:
    """A module that stands for CuPy; `current` has the current streams by device."""
    cupy: Any = types.ModuleType("cupy")
    cupy.ndarray, cupy.__version__ = FakeCupyArray, "14.0"
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda device: types.SimpleNamespace(ptr=current[device]),
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
    )
    cupy.empty = lambda shape, dtype: FakeCupyArray(np.zeros(shape, dtype))
    return cupy
