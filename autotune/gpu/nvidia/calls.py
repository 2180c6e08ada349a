"""Calls of NVIDIA's driver: handles that are given back, binaries, and their launches."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.gpu.interface import STATIC_SHARED_BYTES, DriverError
from autotune.gpu.nvidia.device import load_driver
from autotune.serving.recorded import DriverFunctions, RecordedStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.families.gpu.launch import LaunchStep

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_END, _POINTER, _SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_...


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver.

    Raises:
        DriverError: it fails.
    """
    status, *values = getattr(load_driver(), name)(*arguments)
    if int(status) != 0:
        raise DriverError(f"{status.name}: {name} failed")
    return values[0] if len(values) == 1 else values


@session.cached()
def function(name: str) -> Any:
    """The driver's own function: those of the bindings make objects of everything."""
    return getattr(ctypes.CDLL("libcuda.so.1"), name)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """See `Driver.relaxed`.

    A capture in PyTorch's mode forbids, in every thread of the process, what might wait for the
    GPU: loading a module, allocating, asking after an event. The driver lets the engine's own work
    of that kind pass in a thread whose mode is relaxed.
    """
    driver = load_driver()
    mode = driver.CUstreamCaptureMode(_RELAXED)
    _, before = driver.cuThreadExchangeStreamCaptureMode(mode)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def handle(stream: Any) -> int:
    """The driver's own of a stream; None is the default one."""
    if stream is None:
        return 0
    return int(stream) if isinstance(stream, int) else int(stream.handle)


class Owned:
    """Something with a handle, given back with the object, in the context that was current.

    Args:
        handle: the driver's own.
        release: the driver's function that gives it back.
    """

    def __init__(self, handle: int, release: str) -> None:
        self._handle = handle
        context = int(call("cuCtxGetCurrent"))
        self._release = weakref.finalize(self, _give_back, context, release, handle)
        # At exit the driver takes everything back itself.
        self._release.atexit = False

    def __int__(self) -> int:
        return self._handle

    def free(self) -> None:
        """Give it back now."""
        self._release()


def _give_back(context: int, release: str, handle: int) -> None:
    """Release, whatever this thread does: in another context, or in one that is recorded."""
    driver = load_driver()
    with relaxed():
        if int(driver.cuCtxPushCurrent(context)[0]) == 0:
            getattr(driver, release)(handle)
            driver.cuCtxPopCurrent()


class _LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute`` with a flag for its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_byte * 60),
    )


class _LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("extents", ctypes.c_uint * 7),  # of the grid and of a block, and shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


_EARLY_SINCE = 12030
"""The driver's version from which on captures take launches that begin early."""


@session.cached()
def _begins_early() -> bool:
    """True if the driver lets kernels begin before those before them have ended."""
    return bool(call("cuDriverGetVersion") >= _EARLY_SINCE)


_DEPENDENT = _LaunchAttribute(6, 0, 1)
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: see `LaunchStep.dependent`."""

_COOPERATIVE = _LaunchAttribute(2, 0, 1)
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE: see `LaunchStep.cooperative`."""


def _asked(step: LaunchStep) -> list[_LaunchAttribute]:
    """Attributes that a kernel is launched with."""
    cooperative = [_COOPERATIVE] if step.cooperative else []
    return cooperative + ([_DEPENDENT] if step.dependent and _begins_early() else [])


def _extents(step: LaunchStep) -> tuple[int, ...]:
    """Of the grid and of a block, and shared memory."""
    return *step.grid, *step.block, step.shared_bytes


_LAUNCHING = (
    "cuLaunchKernelEx",
    "cuTensorMapReplaceAddress",
    "cuStreamIsCapturing",
    "cuMemsetD32Async",
)
"""See `DriverFunctions`."""


class LoadedModule:
    """See `autotune.gpu.interface.Module`. Launches on streams of any library.

    It is unloaded by `unload` alone: graphs launch what they captured for as long as they live.

    Raises:
        DriverError: the driver refuses the binary.
    """

    def __init__(self, cubin: bytes) -> None:
        self._module = call("cuModuleLoadData", cubin)
        self._functions: dict[str, int] = {}
        self._shared_bytes: dict[str, int] = {}

    def runner(self, steps: Sequence[LaunchStep], places: Sequence[int] = ()) -> Runner:
        """See `Module.runner`.

        Raises:
            DriverError: there is no such kernel, or it may not have that much shared memory.
        """
        return Runner([(self._function(step), step) for step in steps], places)

    def recorded(
        self, steps: Sequence[LaunchStep]
    ) -> tuple[DriverFunctions, tuple[RecordedStep, ...]]:
        """See `Module.recorded`."""
        found = (ctypes.cast(function(name), ctypes.c_void_p).value or 0 for name in _LAUNCHING)
        return DriverFunctions(*found), tuple(
            RecordedStep(self._function(step), _extents(step), tuple(map(bytes, _asked(step))))
            for step in steps
        )

    def unload(self) -> None:
        """See `Module.unload`."""
        load_driver().cuModuleUnload(self._module)

    def _function(self, step: LaunchStep) -> int:
        """A kernel that may have as much shared memory; the driver is asked once for each."""
        name = step.kernel
        if name not in self._functions:
            self._functions[name] = int(call("cuModuleGetFunction", self._module, name.encode()))
        if step.shared_bytes > self._shared_bytes.get(name, STATIC_SHARED_BYTES):
            attributes = load_driver().CUfunction_attribute
            attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", self._functions[name], attribute, step.shared_bytes)
            self._shared_bytes[name] = step.shared_bytes
        return self._functions[name]


class Runner:
    """See `autotune.gpu.interface.Run`.

    The call is all that a user's call of a kernel costs beyond looking at the operands, so the
    driver is called with objects of ctypes that were made before: the bindings, and a
    description of the argument types as well, would convert thirteen arguments every time.

    Args:
        kernels: functions, and what they are launched with.
        places: see `Module.runner`.
    """

    def __init__(
        self, kernels: Sequence[tuple[int, LaunchStep]], places: Sequence[int] = ()
    ) -> None:
        self._lock = threading.Lock()
        self._arguments = ctypes.create_string_buffer(4096)
        self._size = ctypes.c_size_t()
        self._stream = ctypes.c_void_p()
        base = ctypes.addressof(self._arguments)
        self._extra = (ctypes.c_void_p * 5)(
            _POINTER, base, _SIZE, ctypes.addressof(self._size), _END
        )
        apart = (ctypes.c_void_p * len(places))(*(base + place for place in places))
        how = (apart, ctypes.c_void_p()) if places else (ctypes.c_void_p(), self._extra)
        self._configs: list[_LaunchConfig] = []
        self._calls = [self._call(ctypes.c_void_p(kernel), step, how) for kernel, step in kernels]

    def __call__(self, arguments: bytes, stream: Any) -> None:
        """Enqueue the kernels.

        Raises:
            DriverError: the driver refuses a launch.
        """
        if stream.__class__ is not int:
            stream = handle(stream)
        with self._lock:  # the driver has copied the arguments when it returns
            self._arguments.raw = arguments
            self._size.value = len(arguments)
            self._stream.value = stream
            for config in self._configs:
                config.stream = stream
            for launch, call_ in self._calls:
                status = launch(*call_)
                if status:
                    name = load_driver().CUresult(status).name
                    raise DriverError(f"{name}: {launch.__name__} failed")

    def _call(self, kernel: ctypes.c_void_p, step: LaunchStep, how: tuple[Any, Any]) -> Any:
        """The driver's function that launches a step, and its arguments."""
        asked = _asked(step)
        if not asked:
            shape = map(ctypes.c_uint, _extents(step))
            return function("cuLaunchKernel"), (kernel, *shape, self._stream, *how)
        config = _LaunchConfig(
            _extents(step),
            None,
            (_LaunchAttribute * len(asked))(*asked),
            len(asked),
        )
        self._configs.append(config)
        return function("cuLaunchKernelEx"), (ctypes.byref(config), kernel, *how)
