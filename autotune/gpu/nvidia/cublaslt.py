"""cuBLASLt: products by the first kernel that its heuristic names, as linear layers call it.

cuBLAS asks the same heuristic and does not always take what it says first. The library is called
directly, as cuBLAS is (`autotune.gpu.nvidia.cublas`). Numbers are those of ``cublasLt.h``.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.gpu.driver import driver
from autotune.gpu.nvidia.cublas import (
    COMPUTE_32F,
    COMPUTE_32F_PEDANTIC,
    WORKSPACE_BYTES,
    CublasError,
    class_of,
    cublas_mode,
    version_text,
    with_scalars,
)

if TYPE_CHECKING:
    from autotune.gpu.interface import Stream
    from autotune.operations.problem import Problem

_COMPUTE_64F = 70
_COMPUTE_32F_FAST_TF32 = 77
_TRANSA, _TRANSB = 3, 4  # cublasLtMatmulDescAttributes_t
_MAX_WORKSPACE_BYTES, _REDUCTION_SCHEMES = 1, 3  # cublasLtMatmulPreferenceAttributes_t
_SUMS_IN_FULL = 3  # in place and in the compute type: partial sums are not shortened


class _Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """Products on one stream of the current context.

    Its attributes are those of `autotune.gpu.vendor.Blas`.

    Args:
        library: the library, loaded.
        problem: what is computed: a product of floating-point matrices.
        stream: where.

    Raises:
        CublasError: the library does not start.
    """

    library = "cuBLASLt"

    def __init__(self, library: Any, problem: Problem, stream: Stream) -> None:
        self._loaded = library
        self._stream = stream  # destroyed when nobody holds it
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = driver().allocate(WORKSPACE_BYTES)
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = version_text(library.cublasLtGetVersion())
        self.accuracy = class_of(problem)
        self.mode = cublas_mode(problem)
        self._operand, self._result = DTYPES[problem.dtype], DTYPES[problem.result_dtype]
        self._sizes = problem.shape
        self._flips = tuple(int(stored == "t") for stored in problem.layout)
        self._planned = functools.cache(self._plan)

    def launch(self, *given: Any) -> None:
        """Enqueue the product; arguments are those of `Launch`, without a stream.

        Raises:
            CublasError: it refuses.
        """
        a, lda, b, ldb, c, ldc, alpha, beta = with_scalars(given, 8)
        scalar = self._operand.accumulated.scalar
        description, (of_b, of_a, of_c), algorithm = self._planned(lda, ldb, ldc)
        out = ctypes.c_void_p(c)
        self._call(
            "cublasLtMatmul",
            *(self._handle, description, ctypes.byref(scalar(alpha))),
            *(ctypes.c_void_p(b), of_b, ctypes.c_void_p(a), of_a),
            *(ctypes.byref(scalar(beta)), out, of_c, out, of_c),
            ctypes.byref(algorithm),
            *(ctypes.c_void_p(int(self._workspace)), ctypes.c_size_t(WORKSPACE_BYTES)),
            ctypes.c_void_p(self._stream.handle),
        )

    def close(self) -> None:
        """Give back what the library holds; it must not be called any more."""
        self._call("cublasLtDestroy", self._handle)
        self._workspace.free()

    def _plan(self, lda: int, ldb: int, ldc: int) -> tuple[Any, tuple[Any, Any, Any], Any]:
        """Descriptions of the product and its operands, and the kernel to take.

        Matrices are column-major there: what is stored row-major is the transpose, and
        C' = B' A'.
        """
        m, n, k = self._sizes
        flip_a, flip_b = self._flips
        description = ctypes.c_void_p()
        scales = self._operand.accumulated.cublas
        self._call(
            "cublasLtMatmulDescCreate", ctypes.byref(description), self._compute_type(), scales
        )
        for attribute, flip in ((_TRANSA, flip_b), (_TRANSB, flip_a)):
            self._set("MatmulDesc", description, attribute, ctypes.c_int32(flip))
        number = self._operand.cublas
        of_b = self._layout(number, *((n, k) if flip_b else (k, n)), ldb)
        of_a = self._layout(number, *((m, n) if flip_a else (n, m)), lda)
        of_c = self._layout(self._result.cublas, k, m, ldc)
        preference = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        self._set("MatmulPreference", preference, _MAX_WORKSPACE_BYTES, limit)
        schemes = ctypes.c_uint32(_SUMS_IN_FULL)
        self._set("MatmulPreference", preference, _REDUCTION_SCHEMES, schemes)
        found, count = _Heuristic(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, description, of_b, of_a, of_c, of_c, preference),
            *(1, ctypes.byref(found), ctypes.byref(count)),
        )
        if count.value < 1 or found.state:
            raise CublasError("cuBLASLt's heuristic has no kernel for this product")
        return description, (of_b, of_a, of_c), found.algorithm

    def _compute_type(self) -> int:
        if self._operand.accumulation == "float64":
            return _COMPUTE_64F
        if self.accuracy == "tf32":
            return _COMPUTE_32F_FAST_TF32
        exact = self._operand.blas or self.accuracy == "native"
        return COMPUTE_32F if exact else COMPUTE_32F_PEDANTIC

    def _layout(self, number: int, rows: int, columns: int, stride: int) -> Any:
        layout = ctypes.c_void_p()
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride))
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), number, *sizes)
        return layout

    def _set(self, kind: str, place: Any, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(f"cublasLt{kind}SetAttribute", place, attribute, ctypes.byref(value), size)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._loaded, name)(*arguments)
        if status != 0:
            raise CublasError(f"{name} failed with status {status}")
