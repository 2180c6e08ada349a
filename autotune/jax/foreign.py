"""Functions of Python's as targets of XLA's foreign function interface; nothing is compiled.

XLA calls a handler in C with a call frame: where the buffers are, how large, and on a GPU which
stream the work belongs to. Its layout is XLA's C interface, ``xla/ffi/api/c_api.h``, which only
grows at the end of structures while its major version is 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

_MAJOR = 0
_METADATA = 1
_EXECUTE = 3
_INTERNAL = 13
_DTYPES = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array of XLA's, row-major.

    Attributes:
        address: of its first element.
        shape: elements along every dimension.
        dtype: name of the element type.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str


Function: TypeAlias = Callable[[list[Buffer], list[Buffer], int | None], None]
"""``function(inputs, outputs, stream)``; the stream's handle on a GPU, None on the host."""


def register(name: str, platform: str, function: Function) -> None:
    """Make a function a target that `jax.ffi.ffi_call` can name, for the life of the process.

    What it raises is an error of the call's, with its message.

    Args:
        name: of the target.
        platform: "cpu" or "CUDA".
        function: reads and writes the buffers, or enqueues that on the stream.
    """

    def handle(address: int) -> int | None:
        frame = _Frame.from_address(address)
        try:
            if frame.extension:
                extension = _Extension.from_address(frame.extension)
                if extension.kind == _METADATA:
                    _describe(frame.api.contents, extension)
                    return None
            if frame.stage == _EXECUTE:
                stream = None if platform == "cpu" else _stream(frame)
                function(_buffers(frame.inputs), _buffers(frame.outputs), stream)
        except Exception as error:  # must not reach C
            return _refuse(frame, f"{type(error).__name__}: {error}")
        return None

    handler = _HANDLER(handle)
    _HANDLERS.append(handler)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform=platform)


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_HANDLERS: list[Any] = []
"""Handlers that C calls, which must not be collected."""


def _struct(*fields: tuple[str, Any], extended: bool = True) -> Any:
    """A structure of the interface: its size, in most a pointer to extensions, and fields."""
    head = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p)][: 1 + extended]
    return type("Structure", (ctypes.Structure,), {"_fields_": (*head, *fields)})


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64

# The start of XLA_FFI_Extension_Base, and the pointer that follows it in the one known.
_Extension = _struct(("kind", _INT), ("next", _POINTER), ("metadata", _POINTER), extended=False)
_Version = _struct(("major", _INT), ("minor", _INT))
_Metadata = _struct(("version", _Version), ("traits", ctypes.c_uint32), extended=False)

# XLA_FFI_Api as far as it is used.
_Api = _struct(
    ("version", _Version),
    ("internal", _POINTER),
    ("create_error", _POINTER),
    ("message_of_error", _POINTER),
    ("destroy_error", _POINTER),
    ("register_handler", _POINTER),
    ("get_stream", _POINTER),
)

# XLA_FFI_Buffer; XLA_FFI_Args and XLA_FFI_Rets; XLA_FFI_CallFrame up to its attributes.
_Array = _struct(
    ("dtype", _INT), ("data", _POINTER), ("rank", _LONG), ("sizes", ctypes.POINTER(_LONG))
)
_Arrays = _struct(("count", _LONG), ("kinds", _POINTER), ("arrays", ctypes.POINTER(_POINTER)))
_Frame = _struct(
    ("api", ctypes.POINTER(_Api)),
    ("context", _POINTER),
    ("stage", _INT),
    ("inputs", _Arrays),
    ("outputs", _Arrays),
)

# XLA_FFI_Stream_Get_Args and XLA_FFI_Error_Create_Args.
_StreamQuestion = _struct(("context", _POINTER), ("stream", _POINTER))
_ErrorQuestion = _struct(("message", ctypes.c_char_p), ("code", _INT))

_ASK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def _describe(api: Any, extension: Any) -> None:
    """Tell XLA for which version of the interface this is written: its own, of this major."""
    if api.version.major != _MAJOR:
        raise RuntimeError(
            f"autotune.jax speaks XLA's foreign function interface {_MAJOR}.x, this one is "
            f"{api.version.major}.{api.version.minor}: use another version of jaxlib"
        )
    metadata = _Metadata.from_address(extension.metadata)
    metadata.version = _Version(
        ctypes.sizeof(_Version), None, api.version.major, api.version.minor
    )
    metadata.traits = 0


def _buffers(arrays: Any) -> list[Buffer]:
    found = []
    for place in range(arrays.count):
        array = _Array.from_address(arrays.arrays[place])
        shape = tuple(array.sizes[: array.rank])
        found.append(Buffer(array.data or 0, shape, _DTYPES.get(array.dtype, str(array.dtype))))
    return found


def _stream(frame: Any) -> int:
    question = _StreamQuestion(ctypes.sizeof(_StreamQuestion), None, frame.context, None)
    if _ASK(frame.api.contents.get_stream)(ctypes.addressof(question)):
        raise RuntimeError("XLA does not say which stream the call belongs to")
    return question.stream or 0


def _refuse(frame: Any, message: str) -> int | None:
    """Make an error of XLA's, which it destroys."""
    question = _ErrorQuestion(ctypes.sizeof(_ErrorQuestion), None, message.encode(), _INTERNAL)
    made: int | None = _ASK(frame.api.contents.create_error)(ctypes.addressof(question))
    return made
