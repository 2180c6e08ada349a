"""What is particular to the libraries of device arrays: reading fast, allocating, streams."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError
from autotune.gpu.arrays.operands import DeviceArray, describe, refuse_host

if TYPE_CHECKING:
    from collections.abc import Callable

Place: TypeAlias = tuple[int, int, int]
"""Address, leading dimension in elements, and the driver's number of the device."""

Reader: TypeAlias = "Callable[[Any], Place | None]"
"""Where a plain operand lies, at once; None for a look at the details."""


class Library(Protocol):
    """One library of device arrays."""

    ordered: ClassVar[bool]
    """Whether the library itself works on its current stream, and hands out memory in its order;
    otherwise an array says which stream works on it, and is kept until the kernel is done."""

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        """What reads operands of one shape and dtype; every call of a kernel does it thrice."""
        ...

    def describe(self, name: str, array: Any, stream: int) -> DeviceArray:
        """All about an operand; see `autotune.gpu.arrays.operands`."""
        ...

    def current_stream(self, array: Any) -> int:
        """Handle of the stream that work on an array goes to by default.

        Raises:
            OperandError: the library records its own work there, and would miss a kernel's.
        """
        ...

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None) -> Any:
        """A new array on the device of another one, to be written on a stream.

        None is the current one.
        """
        ...

    def lend(self, array: Any, stream: int) -> None:
        """Tell the library that its memory is used on a stream that is not its current one."""
        ...


class Torch:
    """PyTorch."""

    ordered: ClassVar[bool] = True

    def __init__(self) -> None:
        from autotune.serving.watching import check_unrecorded  # it imports PyTorch

        self._check_unrecorded = check_unrecorded
        self._torch = sys.modules["torch"]
        self._empty = self._torch.empty
        self._dtypes = {name: getattr(self._torch, name) for name in DTYPES}
        # What PyTorch's own compiler calls: the public way makes an object of the stream first.
        raw = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)
        self._current: Callable[[int], int] = raw or self._public_stream

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        """See `Library.reader`."""
        wanted = self._dtypes[dtype]
        columns = shape[1]

        def read(array: Any) -> Place | None:
            if array.dtype is not wanted or array.shape != shape:
                return None
            leading = columns
            if not array.is_contiguous():
                leading, step = array.stride()
                if step != 1 or leading < columns:
                    return None
            device, address = array.get_device(), array.data_ptr()
            return (address, leading, device) if device >= 0 and address else None

        return read

    def describe(self, name: str, array: Any, stream: int) -> DeviceArray:
        """See `Library.describe`."""
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
        """See `Library.current_stream`."""
        self._check_unrecorded()
        device = array.get_device()
        return self._current(device) if device >= 0 else 0

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None) -> Any:
        """See `Library.empty`."""
        made = self._dtypes[dtype]
        if stream is None:
            return self._empty(shape, dtype=made, device=like.device)
        # The memory of a tensor belongs to the stream that it was allocated on.
        with self._working_on(like, stream):
            return self._empty(shape, dtype=made, device=like.device)

    def lend(self, array: Any, stream: int) -> None:
        """See `Library.lend`."""
        array.record_stream(self._torch.cuda.ExternalStream(stream, device=array.device))

    def _working_on(self, like: Any, stream: int) -> contextlib.AbstractContextManager[Any]:
        cuda = self._torch.cuda
        context: contextlib.AbstractContextManager[Any] = cuda.stream(
            cuda.ExternalStream(stream, device=like.device)
        )
        return context

    def _public_stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)


class Cupy:
    """CuPy."""

    ordered: ClassVar[bool] = True

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]
        self._current = self._cupy.cuda.get_current_stream

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        """See `Library.reader`."""
        wanted = DTYPES[dtype].numpy
        itemsize = wanted.itemsize
        row_bytes = shape[1] * itemsize

        def read(array: Any) -> Place | None:
            if array.shape != shape or array.dtype != wanted:
                return None
            row, step = array.strides
            if step != itemsize or row < row_bytes or row % itemsize:
                return None
            data = array.data
            return data.ptr, row // itemsize, data.device_id

        return read

    def describe(self, name: str, array: Any, stream: int) -> DeviceArray:
        """See `Library.describe`."""
        itemsize = array.dtype.itemsize
        if any(stride % itemsize for stride in array.strides):
            raise OperandError(
                f"{name} must have strides in whole elements, got {array.strides} bytes"
            )
        return DeviceArray(
            address=array.data.ptr,
            shape=array.shape,
            strides=tuple(stride // itemsize for stride in array.strides),
            dtype=array.dtype.name if array.dtype.isnative else array.dtype.str,
            device=array.data.device_id,
        )

    def current_stream(self, array: Any) -> int:
        """See `Library.current_stream`."""
        return int(self._current(array.data.device_id).ptr)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None) -> Any:
        """See `Library.empty`."""
        cuda = self._cupy.cuda
        with contextlib.ExitStack() as stack:
            if cuda.runtime.getDevice() != like.data.device_id:
                stack.enter_context(cuda.Device(like.data.device_id))
            if stream is not None:  # every stream has a pool of its own
                stack.enter_context(cuda.ExternalStream(stream, like.data.device_id))
            return self._cupy.empty(shape, DTYPES[dtype].numpy)

    def lend(self, array: Any, stream: int) -> None:
        """Nothing: CuPy leaves that to whoever uses several streams."""


class Other:
    """Any library that speaks DLPack or ``__cuda_array_interface__``."""

    ordered: ClassVar[bool] = False

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        """See `Library.reader`."""
        return _look_closer

    def describe(self, name: str, array: Any, stream: int) -> DeviceArray:
        """See `Library.describe`."""
        from autotune.gpu.nvidia.driver.streams import device_of

        return describe(name, array, stream, device_of)

    def current_stream(self, array: Any) -> int:
        """See `Library.current_stream`."""
        interface = getattr(array, "__cuda_array_interface__", None)
        stream = interface.get("stream") if isinstance(interface, dict) else None
        return int(stream or 0)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None) -> Any:
        """See `Library.empty`."""
        root = type(like).__module__.partition(".")[0]
        if root == "numba":
            return sys.modules["numba"].cuda.device_array(shape, DTYPES[dtype].numpy)
        if root == "pycuda":
            return type(like)(shape, DTYPES[dtype].numpy)
        raise OperandError(
            f"arrays of {root} are not allocated here: pass out=, an array of PyTorch, CuPy, "
            "Numba or PyCUDA, say"
        )

    def lend(self, array: Any, stream: int) -> None:
        """Nothing: these arrays are kept until the kernel is done."""


def _look_closer(array: Any) -> Place | None:
    """The `Reader` where nothing can be said at once."""
    return None


_BY_TYPE: dict[type, Library] = {}
_OTHER = Other()


def library_of(array: object) -> Library:
    """The library that an array belongs to."""
    kind = array.__class__
    library = _BY_TYPE.get(kind)
    if library is None:
        library = _BY_TYPE.setdefault(kind, _recognise(kind))
    return library


def in_device_memory(array: object) -> bool:
    """Whether an operand lies in the memory of a GPU; asks for no more than its device."""
    library = library_of(array)
    if isinstance(library, Torch):
        return bool(getattr(array, "is_cuda", False))
    if isinstance(library, Cupy) or hasattr(array, "__cuda_array_interface__"):
        return True
    place = getattr(array, "__dlpack_device__", None)
    return place is not None and int(place()[0]) not in (1,)


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of any library.

    Args:
        stream: the handle itself; a stream of PyTorch, CuPy, Numba or PyCUDA; or anything with
            ``__cuda_stream__``.

    Raises:
        OperandError: it is no stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for attribute in ("cuda_stream", "ptr", "__cuda_stream__", "handle"):
        found = getattr(stream, attribute, None)
        if found is None:
            continue
        if attribute == "__cuda_stream__":
            _, found = found() if callable(found) else found
        with contextlib.suppress(TypeError, ValueError):
            return int(getattr(found, "value", found) or 0)
    raise OperandError(
        "stream must be a handle (int), a stream of PyTorch, CuPy, Numba or PyCUDA, or have "
        f"__cuda_stream__; got {stream!r:.80}"
    )


def _recognise(kind: type) -> Library:
    for package, name, make in (("torch", "Tensor", Torch), ("cupy", "ndarray", Cupy)):
        module = sys.modules.get(package)
        if module is not None and issubclass(kind, getattr(module, name, ())):
            for known in _BY_TYPE.values():
                if isinstance(known, make):
                    return known
            return make()
    return _OTHER
