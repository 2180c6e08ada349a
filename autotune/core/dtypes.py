"""Element types: one row each, and everything that is particular to one stands in its row.

A floating type is one row. One of integers is its row and the row of the type that its products
are summed in; operands, poison and tolerance follow from the kind. What the vendor's library calls
a type stands in `autotune.gpu.nvidia.cublas` where that takes more than the row says.

`DTYPES` are the types of matrix products, `ELEMENTS` those of any operand.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.errors import MissingDependencyError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Word:
    """An unsigned integer that holds an element's bits.

    Attributes:
        c_type: its name in C.
        letter: what `struct` calls it.
        poison: the content of guard zones, padding and an unwritten C: a quiet NaN of every
            floating type of this size, with a payload of its own; of integers a large one, far
            from any result of operands as they are drawn.
    """

    c_type: str
    letter: str
    poison: int


WORDS: Mapping[int, Word] = {
    1: Word("unsigned char", "B", 0xA5),  # integers alone: too short to tell a NaN by
    2: Word("unsigned short", "H", 0x7FE5),  # of float16 and of bfloat16 alike
    4: Word("unsigned int", "I", 0x7FC5A5A5),
    8: Word("unsigned long long", "Q", 0x7FFCA5A5A5A5A5A5),
}
"""By bytes per element."""


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type.

    Attributes:
        name: of the type here, and in PyTorch and NumPy.
        aliases: other names, in lower case.
        itemsize: bytes per element.
        accuracy: the accuracy class where none is named.
        accumulation: name of the type that products of such elements are summed in; scalars
            (alpha, beta) are passed in it.
        c_type: its name in CUDA C++.
        typestrs: its spellings in ``__array_interface__`` and ``__cuda_array_interface__``.
        dlpack: DLPack's code of its kind.
        nccl: the number of NCCL's ``ncclDataType_t``.
        cublas: the number of cuBLAS's ``cudaDataType_t``.
        tensor_map: the number of the CUDA driver's ``CUtensorMapDataType``.
        kind: "floating", "integer", "boolean" or "complex".
        unit_roundoff: largest relative error of rounding a number to it; integers are exact.
        smallest: its smallest positive number, a subnormal one where it is floating.
        c_header: the header that declares `c_type`; empty where the language has it.
        letter: its letter in `struct`; empty where no scalar is passed in it.
        scalar: its type in `ctypes`, as `letter`.
        blas: the letter of its functions in BLAS (SGEMM); empty where those have none.
        numpy_module: the module whose attribute `name` is its NumPy type.
        mpi: the attribute of ``mpi4py.MPI`` that is its datatype; empty where MPI has none.
        usual: whether families that declare no dtypes have it.
    """

    name: str
    aliases: tuple[str, ...]
    itemsize: int
    accuracy: str
    accumulation: str
    c_type: str
    typestrs: tuple[str, ...]
    dlpack: int
    nccl: int
    cublas: int
    tensor_map: int
    kind: str = "floating"
    unit_roundoff: float = 0.0
    smallest: float = 1.0
    c_header: str = ""
    letter: str = ""
    scalar: Any = None
    blas: str = ""
    numpy_module: str = "numpy"
    mpi: str = ""
    usual: bool = False

    @property
    def word(self) -> Word:
        """The integer of its size; of 16 bytes, that of either half."""
        return WORDS[min(self.itemsize, 8)]

    @property
    def accumulated(self) -> Dtype:
        """The type that its products are summed in."""
        return ELEMENTS[self.accumulation]

    @property
    def result(self) -> str:
        """Name of the type of results where none is named: integers are not cut off."""
        return self.accumulation if self.kind == "integer" else self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """As a NumPy dtype. NumPy itself has no bfloat16: that one is imported when needed.

        Raises:
            MissingDependencyError: the module that has it is missing.
        """
        return _numpy_dtype(self.numpy_module, self.name)


@functools.cache  # results are allocated at every call of a kernel that is given none
def _numpy_dtype(module: str, name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module(module), name))
    except ImportError as error:
        raise MissingDependencyError(
            f"{name} arrays need {module}: pip install {module}"
        ) from error
    return found


_FLOAT, _BFLOAT = 2, 4
"""DLPack's kDLFloat and kDLBfloat."""

DTYPES: Mapping[str, Dtype] = {
    row.name: row
    for row in (
        Dtype(
            name="float32",
            aliases=("f32", "fp32", "single"),
            itemsize=4,
            accuracy="ieee",
            accumulation="float32",
            unit_roundoff=2.0**-24,
            smallest=2.0**-149,
            c_type="float",
            letter="f",
            scalar=ctypes.c_float,
            blas="S",
            typestrs=("<f4",),
            dlpack=_FLOAT,
            mpi="FLOAT",
            nccl=7,
            cublas=0,
            tensor_map=7,
            usual=True,
        ),
        Dtype(
            name="float64",
            aliases=("f64", "fp64", "double"),
            itemsize=8,
            accuracy="ieee",
            accumulation="float64",
            unit_roundoff=2.0**-53,
            smallest=2.0**-1074,
            c_type="double",
            letter="d",
            scalar=ctypes.c_double,
            blas="D",
            typestrs=("<f8",),
            dlpack=_FLOAT,
            mpi="DOUBLE",
            nccl=8,
            cublas=1,
            tensor_map=8,
            usual=True,
        ),
        Dtype(
            name="float16",
            aliases=("f16", "fp16", "half"),
            itemsize=2,
            accuracy="native",
            accumulation="float32",
            unit_roundoff=2.0**-11,
            smallest=2.0**-24,
            c_type="__half",
            c_header="cuda_fp16.h",
            typestrs=("<f2",),
            dlpack=_FLOAT,
            nccl=6,
            cublas=2,
            tensor_map=6,
        ),
        Dtype(
            name="bfloat16",
            aliases=("bf16",),
            itemsize=2,
            accuracy="native",
            accumulation="float32",
            unit_roundoff=2.0**-8,
            smallest=2.0**-133,
            c_type="__nv_bfloat16",
            c_header="cuda_bf16.h",
            numpy_module="ml_dtypes",
            typestrs=("<V2",),  # what PyTorch and ml_dtypes say
            dlpack=_BFLOAT,
            nccl=9,
            cublas=14,
            tensor_map=9,
        ),
    )
}
"""Every element type of matrix products, by name."""


_KINDS = {"i": ("integer", 0), "u": ("integer", 1), "c": ("complex", 5), "b": ("boolean", 6)}
"""By NumPy's letters: the kind, and DLPack's kDLInt, kDLUInt, kDLComplex and kDLBool."""


def _row(name: str, c_type: str, typestr: str, scalar: Any, tensor_map: int = -1) -> Dtype:
    """A type of operands alone; of cuBLAS and NCCL it has no number.

    Scalars beside complex operands are real.
    """
    (kind, dlpack), itemsize = _KINDS[typestr[1]], int(typestr[2:])
    real = {8: DTYPES["float32"], 16: DTYPES["float64"]}[itemsize] if kind == "complex" else None
    return Dtype(
        name=name,
        aliases=(),
        itemsize=itemsize,
        accuracy="ieee",
        accumulation=name if real is None else real.name,
        c_type=c_type,
        c_header="" if real is None else "cuComplex.h",
        typestrs=(typestr,),
        dlpack=dlpack,
        nccl=-1,
        cublas=-1,
        tensor_map=tensor_map,
        kind=kind,
        unit_roundoff=0.0 if real is None else real.unit_roundoff,
        smallest=1.0 if real is None else real.smallest,
        letter="" if scalar is None else scalar._type_,
        scalar=scalar,
    )


ELEMENTS: Mapping[str, Dtype] = ChainMap(
    DTYPES,  # type: ignore[arg-type]
    {
        row.name: row
        for row in (
            _row("int8", "signed char", "|i1", ctypes.c_byte),
            _row("int16", "short", "<i2", ctypes.c_short),
            _row("int32", "int", "<i4", ctypes.c_int),
            _row("int64", "long long", "<i8", ctypes.c_longlong),
            _row("uint8", "unsigned char", "|u1", ctypes.c_ubyte, tensor_map=0),
            _row("uint16", "unsigned short", "<u2", ctypes.c_ushort),
            _row("uint32", "unsigned int", "<u4", ctypes.c_uint),
            _row("uint64", "unsigned long long", "<u8", ctypes.c_ulonglong),
            _row("bool", "bool", "|b1", ctypes.c_bool),
            _row("complex64", "cuFloatComplex", "<c8", None),
            _row("complex128", "cuDoubleComplex", "<c16", None),
        )
    },
)
"""Every element type that an operand may have, by name."""

DEFAULT_DTYPE = "float32"
"""The element type where none is named."""

USUAL_DTYPES = tuple(row.name for row in DTYPES.values() if row.usual)
"""Those of a family that declares none."""

_NAMES = {alias: row.name for row in DTYPES.values() for alias in row.aliases}
_TYPESTRS = {spelling: row.name for row in ELEMENTS.values() for spelling in row.typestrs}
_DLPACK = {(row.dlpack, 8 * row.itemsize): row.name for row in ELEMENTS.values()}


def dtype_name(text: str) -> str:
    """The name that a dtype has here: "float32" for "fp32" or "Single"; others as they are."""
    lower = text.strip().lower()
    return _NAMES.get(lower, lower)


def from_typestr(typestr: str) -> str:
    """The name of what ``__cuda_array_interface__`` calls `typestr`; others as they are."""
    return _TYPESTRS.get(typestr, typestr)


def from_dlpack(kind: int, bits: int, lanes: int) -> str:
    """The name of a type of DLPack; others are described."""
    name = _DLPACK.get((kind, bits), f"kind {kind} of {bits}")
    return name if lanes == 1 else f"{name} x {lanes}"
