"""The baseline of products of several GPUs: cuBLAS on one, or cuBLASXt from the host."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.core.dtypes import DTYPES
from autotune.gpu.driver import activated, driver
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.measure.memory import GuardedMatrix
from autotune.gpu.nvidia.cublas import Cublas, CublasError, find_cublas
from autotune.operations.problem import Gemm
from autotune.operations.references import Matrix
from autotune.operations.verification import ProductCheck

_BLOCK = 4096


class CublasXt:
    """Products of host arrays by cuBLASXt, which cuts them into tiles for all GPUs.

    Args:
        dtype: float32 or float64.
        devices: number of GPUs, the driver's first ones.
        block: rows and columns of a tile.

    Raises:
        CublasError: there is no cuBLASXt, or it does not start.
    """

    def __init__(self, dtype: str, devices: int, block: int = _BLOCK) -> None:
        self._library = find_cublas()
        if self._library is None or not hasattr(self._library, "cublasXtCreate"):
            raise CublasError("there is no cuBLASXt")
        row = DTYPES[dtype]
        self._function, self._scalar = f"cublasXt{row.blas}gemm", row.scalar
        self._handle = ctypes.c_void_p()
        self._call("cublasXtCreate", ctypes.byref(self._handle))
        numbers = (ctypes.c_int * devices)(*range(devices))
        self._call("cublasXtDeviceSelect", self._handle, devices, numbers)
        self._call("cublasXtSetBlockDim", self._handle, block)
        plural = "" if devices == 1 else "s"
        self.name = f"cuBLASXt on {devices} GPU{plural} ({dtype}, tiles of {block})"

    def multiply(
        self, a: Matrix, b: Matrix, c: Matrix, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """``c = alpha a b + beta c`` on host arrays whose rows are contiguous; waits for it."""
        m, n = a.shape
        k = b.shape[1]
        strides = [matrix.strides[0] // matrix.itemsize for matrix in (a, b, c)]
        # Column-major there: what is stored row-major is the transpose, and C' = B' A'.
        self._call(
            self._function,
            *(self._handle, 0, 0),
            *map(ctypes.c_size_t, (k, m, n)),
            ctypes.byref(self._scalar(alpha)),
            ctypes.c_void_p(b.ctypes.data),
            ctypes.c_size_t(strides[1]),
            ctypes.c_void_p(a.ctypes.data),
            ctypes.c_size_t(strides[0]),
            ctypes.byref(self._scalar(beta)),
            ctypes.c_void_p(c.ctypes.data),
            ctypes.c_size_t(strides[2]),
        )

    def close(self) -> None:
        """Free what it holds on the GPUs."""
        self._call("cublasXtDestroy", self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CublasError(f"{name} failed with status {status}")


class OneGpu:
    """Products by cuBLAS on the first GPU, of float32 or float64 matrices in its memory.

    Raises:
        CublasError: there is no cuBLAS, or it does not start.
    """

    def __init__(self, m: int, n: int, k: int, dtype: str) -> None:
        library = find_cublas()
        if library is None:
            raise CublasError("there is no cuBLAS")
        with activated(0):
            self._stream = driver().stream()
            self._cublas = Cublas(library, "cublas.gemm", Gemm(m, n, k, dtype), self._stream)
        self.name = f"cuBLAS {self._cublas.version} on one GPU ({dtype}, TF32 off)"

    def multiply(self, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> None:
        """``c = a b``; waits for it."""
        with activated(0):
            self._cublas.launch(a.address, a.stride, b.address, b.stride, c.address, c.stride)
            self._stream.synchronize()


@dataclass(frozen=True, slots=True)
class Library:
    """A library to compare programs with.

    Attributes:
        name: library, version and GPUs, for people.
        call: one product of the operands that it was opened for.
    """

    name: str
    call: Callable[[], object]


def open_library(check: ProductCheck, dtype: str, operands: str, devices: int) -> Library:
    """The library for operands that are where a program takes them, seen to be right.

    Args:
        check: the operands on the host, and what C must be.
        dtype: float32 or float64.
        operands: "host" has it use all GPUs; else all operands are on the first.
        devices: GPUs to use at most.

    Raises:
        CublasError: there is none, or it is wrong.
    """
    check.prepare()
    whole = check.a, check.b, check.c
    m, n, k = check.case.sizes
    if operands == "host":
        vendor = CublasXt(dtype, devices)
        made = Library(vendor.name, functools.partial(vendor.multiply, *whole))
        made.call()
    else:
        one = OneGpu(m, n, k, dtype)
        guarded = [guarded_matrix(matrix, dtype) for matrix in whole]
        # Memory is given back with the matrices, which the library therefore holds.
        made = Library(one.name, lambda: one.multiply(*(block.matrix for block in guarded)))
        made.call()
        check.c[...], _ = guarded[2].read()
    if not check.judge("ieee").right:
        raise CublasError(f"{made.name} is wrong here")
    return made


def guarded_matrix(values: Matrix, dtype: str) -> GuardedMatrix:
    """A copy of a matrix on the first GPU."""
    made = GuardedMatrix(0, values.shape, dtype, 0)
    made.write(values)
    return made
