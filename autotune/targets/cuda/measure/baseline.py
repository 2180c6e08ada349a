"""cuBLAS: what GPU kernels are compared with.

The library comes with CuPy, PyTorch, nvmath or the CUDA toolkit. It is called directly, so that it
is timed like everything else: on the same stream and operands, in graphs where kernels are short.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.targets.cuda.driver.interface import driver

if TYPE_CHECKING:
    from autotune.targets.cuda.driver.interface import Stream

_PACKAGES = ("cupy_backends.cuda.libs.cublas", "nvmath.bindings.cublas", "torch")
"""Modules that load the library when they are imported."""

_NAMES = ("libcublas.so.13", "libcublas.so.12")
_COMPUTE_32F = 68  # products of 16-bit numbers, on tensor cores, summed in float32
_DEFAULT_ALGORITHM = -1
_DEFAULT_MATH = 0  # products in the operands' own precision: no TF32
_SUMS_IN_FULL = 16  # nor partial sums in the type of the result, where that is shorter
_WORKSPACE_BYTES = 32 * 2**20  # what NVIDIA recommends for the largest devices


class CublasError(Exception):
    """cuBLAS refuses a call."""


def find_cublas() -> Any:
    """The library, loaded; None where there is none."""
    # Finds what wheels and toolkits have installed; comes with cuda-bindings.
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except (ImportError, OSError):
            continue
        for name in _NAMES:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(name)
    return None


class Cublas:
    """Matrix products on one stream of the current context.

    Args:
        library: as `find_cublas` gives it.
        sizes: m, n, k.
        dtype: element type of A and B.
        layout: which of A and B is stored transposed.
        stream: one of the driver's.
        out_dtype: element type of C; None means `dtype`.

    Raises:
        CublasError: the library does not start.

    Attributes:
        version: "13.1.0".
    """

    def __init__(
        self,
        library: Any,
        sizes: tuple[int, int, int],
        dtype: str,
        layout: str,
        stream: Stream,
        out_dtype: str | None = None,
    ) -> None:
        self._library = library
        self._stream = stream  # destroyed when nobody holds it
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        # Setting the stream takes the workspace away, so it comes first.
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream.handle))
        self._workspace = driver().allocate(_WORKSPACE_BYTES)
        self._call(
            "cublasSetWorkspace_v2",
            self._handle,
            ctypes.c_void_p(int(self._workspace)),
            ctypes.c_size_t(_WORKSPACE_BYTES),
        )
        self._operand, self._result = DTYPES[dtype], DTYPES[out_dtype or dtype]
        math = _DEFAULT_MATH if self._operand.blas else _SUMS_IN_FULL
        self._call("cublasSetMathMode", self._handle, math)
        number = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
        self.version = version_text(number.value)
        self._scalar = self._operand.accumulated.scalar
        self._sizes = sizes
        self._flips = tuple(int(stored == "t") for stored in layout)

    def launch(
        self,
        a: int,
        lda: int,
        b: int,
        ldb: int,
        c: int,
        ldc: int,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Enqueue C = alpha A B + beta C; addresses and leading dimensions as `Launch` takes them.

        Raises:
            CublasError: the library refuses.
        """
        m, n, k = self._sizes
        flip_a, flip_b = self._flips
        # Matrices are column-major there: what is stored row-major is the transpose, and
        # C' = B' A'.
        scalars = [ctypes.byref(self._scalar(each)) for each in (alpha, beta)]
        addresses = [ctypes.c_void_p(each) for each in (b, a, c)]
        common = (self._handle, flip_b, flip_a, k, m, n, scalars[0])
        operand, result = self._operand, self._result
        if operand.blas and result is operand:
            places = (addresses[0], ldb, addresses[1], lda, scalars[1], addresses[2], ldc)
            self._call(f"cublas{operand.blas}gemm_v2", *common, *places)
            return
        self._call(
            "cublasGemmEx",
            *common,
            *(addresses[0], operand.cublas, ldb),
            *(addresses[1], operand.cublas, lda),
            scalars[1],
            *(addresses[2], result.cublas, ldc),
            _COMPUTE_32F,
            _DEFAULT_ALGORITHM,
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CublasError(f"{name} failed with status {status}")


def cublas_mode(dtype: str) -> str:
    """How products of a type are computed, for people."""
    row = DTYPES[dtype]
    return f"{dtype}, TF32 off" if row.blas else f"{dtype}, sums in {row.accumulation}"


def version_text(number: int) -> str:
    """130100 as "13.1.0"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
