"""cuBLAS: what GPU kernels are compared with.

The library comes with CuPy, PyTorch, nvmath or the CUDA toolkit. It is called directly, so that it
is timed like everything else: on the same stream and operands, in graphs where kernels are short.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import ELEMENTS
from autotune.gpu.driver import driver
from autotune.gpu.vendor import BlasError
from autotune.operations.operation import baseline_of

if TYPE_CHECKING:
    from autotune.gpu.interface import Stream
    from autotune.operations.problem import Problem

_PACKAGES = ("cupy_backends.cuda.libs.cublas", "nvmath.bindings.cublas", "torch")
"""Modules that load the library when they are imported."""

_VERSIONS = (13, 12)
COMPUTE_32F = 68  # products of 16-bit numbers, on tensor cores, summed in float32
COMPUTE_32F_PEDANTIC = 69  # the same without tensor cores
_DEFAULT_ALGORITHM = -1
_DEFAULT_MATH = 0  # products in the operands' own precision: no TF32
_TF32_MATH = 3  # float32 rounded to TF32
_SUMS_IN_FULL = 16  # nor partial sums in the type of the result, where that is shorter
WORKSPACE_BYTES = 32 * 2**20  # what NVIDIA recommends for the largest devices


FUNCTIONS: Mapping[str, str] = {
    "cublas.gemm": "_gemm",
    "cublas.gemm_strided_batched": "_gemm_strided_batched",
    "cublas.gemv": "_gemv",
}
"""Baselines that operations name, and the method that calls each. Operands come in the order of
BLAS: A, B, C, or A, x, y."""


class CublasError(BlasError):
    """cuBLAS refuses a call."""


def find_cublas(name: str = "cublas") -> Any:
    """The library, or "cublasLt" beside it, loaded; None where there is none."""
    # Finds what wheels and toolkits have installed; comes with cuda-bindings.
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except (ImportError, OSError):
            continue
        for version in _VERSIONS:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(f"lib{name}.so.{version}")
    return None


class Cublas:
    """One of the library's functions on one stream of the current context.

    Raises:
        CublasError: the library does not start.

    Its attributes are those of `autotune.gpu.vendor.Blas`.
    """

    library = "cuBLAS"

    def __init__(self, library: Any, function: str, problem: Problem, stream: Stream) -> None:
        self._loaded = library
        self._stream = stream  # destroyed when nobody holds it
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        # Setting the stream takes the workspace away, so it comes first.
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream.handle))
        self._workspace = driver().allocate(WORKSPACE_BYTES)
        self._call(
            "cublasSetWorkspace_v2",
            self._handle,
            ctypes.c_void_p(int(self._workspace)),
            ctypes.c_size_t(WORKSPACE_BYTES),
        )
        self._operand, self._result = ELEMENTS[problem.dtype], ELEMENTS[problem.result_dtype]
        self.accuracy = class_of(problem)
        self.mode = cublas_mode(problem)
        math = _DEFAULT_MATH if self._operand.blas else _SUMS_IN_FULL
        if self.accuracy == "tf32":
            math = _TF32_MATH
        self._call("cublasSetMathMode", self._handle, math)
        number = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
        self.version = version_text(number.value)
        self._scalar = self._operand.accumulated.scalar
        self._sizes = problem.shape
        self._flips = tuple(int(stored == "t") for stored in problem.layout)
        self.launch: Callable[..., None] = getattr(self, FUNCTIONS[function])
        """Enqueues the function; its arguments are those of `Launch`, without a stream. Raises
        CublasError."""

    def close(self) -> None:
        """Give back what the library holds; it must not be called any more."""
        self._call("cublasDestroy_v2", self._handle)
        self._workspace.free()

    # Matrices are column-major there: what is stored row-major is the transpose, and C' = B' A'.

    def _gemm(self, *given: Any) -> None:
        a, lda, b, ldb, c, ldc, alpha, beta = with_scalars(given, 8)
        m, n, k = self._sizes
        flip_a, flip_b = self._flips
        operand, result = self._operand, self._result
        sizes = (flip_b, flip_a, k, m, n)
        if operand.blas and result is operand:
            places = (self._at(b), ldb, self._at(a), lda, self._by(beta), self._at(c), ldc)
            self._compute("gemm_v2", *sizes, self._by(alpha), *places)
            return
        self._call(
            "cublasGemmEx",
            self._handle,
            *sizes,
            self._by(alpha),
            *(self._at(b), operand.cublas, ldb),
            *(self._at(a), operand.cublas, lda),
            self._by(beta),
            *(self._at(c), result.cublas, ldc),
            COMPUTE_32F if self.accuracy == "native" else COMPUTE_32F_PEDANTIC,
            _DEFAULT_ALGORITHM,
        )

    def _gemm_strided_batched(self, *given: Any) -> None:
        a, a_stride, lda, b, b_stride, ldb, c, c_stride, ldc, alpha, beta = with_scalars(given, 11)
        count, m, n, k = self._sizes
        flip_a, flip_b = self._flips
        operand, result = self._operand, self._result
        far = ctypes.c_longlong
        sizes = (flip_b, flip_a, k, m, n)
        if operand.blas and result is operand:
            operands = (self._at(b), ldb, far(b_stride), self._at(a), lda, far(a_stride))
            of_c = (self._by(beta), self._at(c), ldc, far(c_stride))
            self._compute("gemmStridedBatched", *sizes, self._by(alpha), *operands, *of_c, count)
            return
        self._call(
            "cublasGemmStridedBatchedEx",
            self._handle,
            *sizes,
            self._by(alpha),
            *(self._at(b), operand.cublas, ldb, far(b_stride)),
            *(self._at(a), operand.cublas, lda, far(a_stride)),
            self._by(beta),
            *(self._at(c), result.cublas, ldc, far(c_stride)),
            count,
            COMPUTE_32F if self.accuracy == "native" else COMPUTE_32F_PEDANTIC,
            _DEFAULT_ALGORITHM,
        )

    def _gemv(self, *given: Any) -> None:
        a, lda, x, y, alpha, beta = with_scalars(given, 6)
        m, n = self._sizes
        result = (self._by(beta), self._at(y), 1)
        factors = (self._at(a), lda, self._at(x), 1)
        self._compute("gemv_v2", 1, n, m, self._by(alpha), *factors, *result)

    def _at(self, address: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(address)

    def _by(self, scalar: float) -> Any:
        return ctypes.byref(self._scalar(scalar))

    def _compute(self, name: str, *arguments: Any) -> None:
        self._call(f"cublas{self._operand.blas}{name}", self._handle, *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._loaded, name)(*arguments)
        if status != 0:
            raise CublasError(f"{name} failed with status {status}")


def with_scalars(given: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The arguments of a launch, alpha = 1 and beta = 0 where they are left out."""
    return given + (1.0, 0.0)[len(given) - count + 2 :]


def function_of(problem: Problem) -> str | None:
    """The library's function that an operation names for CUDA; None where there is none."""
    function = baseline_of(problem.defined, "cuda")
    if function is None or function not in FUNCTIONS:
        return None
    if function == "cublas.gemv" and not (ELEMENTS[problem.dtype].blas and not problem.out_dtype):
        return None
    return function


def class_of(problem: Problem) -> str:
    """The accuracy class in which the library computes a problem: never a looser one."""
    able = ("tf32",) if problem.dtype == "float32" else ("native",)
    return problem.accuracy if problem.accuracy in able else "ieee"


def cublas_mode(problem: Problem) -> str:
    """The arithmetic of a problem's products, for people."""
    row, accuracy = ELEMENTS[problem.dtype], class_of(problem)
    if row.blas:
        return f"{row.name}, TF32 {'on' if accuracy == 'tf32' else 'off'}"
    cores = "" if accuracy == "native" else ", no tensor cores"
    return f"{row.name}, sums in {row.accumulation}{cores}"


def version_text(number: int) -> str:
    """130100 as "13.1.0"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
