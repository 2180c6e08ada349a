"""Binaries loaded by the driver's bindings, and launched by ctypes on streams of any library."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.interface import STATIC_SHARED_BYTES, DriverError
from autotune.gpu.nvidia.driver.owned import call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.families.gpu.launch import LaunchStep

_END, _POINTER, _SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_...


def handle(stream: Any) -> int:
    """The driver's own of a stream; None is the default one."""
    if stream is None:
        return 0
    return int(stream) if isinstance(stream, int) else int(stream.handle)


class LoadedModule:
    """See `autotune.gpu.nvidia.driver.interface.Module`. Launches on streams of any library.

    It is unloaded by `unload` alone: graphs launch what they captured for as long as they live.

    Args:
        cubin: the binary.

    Raises:
        DriverError: the driver refuses it.
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
    """See `autotune.gpu.nvidia.driver.interface.Run`.

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
        self._launch = _launch_function()
        self._lock = threading.Lock()
        self._arguments = ctypes.create_string_buffer(4096)
        self._size = ctypes.c_size_t()
        self._stream = ctypes.c_void_p()
        self._extra = (ctypes.c_void_p * 5)(
            _POINTER,
            ctypes.addressof(self._arguments),
            _SIZE,
            ctypes.addressof(self._size),
            _END,
        )
        base = ctypes.addressof(self._arguments)
        apart = (ctypes.c_void_p * len(places))(*(base + each for each in places))
        how = (apart, ctypes.c_void_p()) if places else (ctypes.c_void_p(), self._extra)
        self._calls = [
            (
                ctypes.c_void_p(function),
                *map(ctypes.c_uint, (*step.grid, *step.block, step.shared_bytes)),
                self._stream,
                *how,
            )
            for function, step in kernels
        ]

    def __call__(self, arguments: bytes, stream: Any) -> None:
        """Enqueue the kernels.

        Raises:
            DriverError: the driver refuses a launch.
        """
        if stream.__class__ is not int:
            stream = handle(stream)
        launch = self._launch
        with self._lock:  # the driver has copied the arguments when it returns
            self._arguments.raw = arguments
            self._size.value = len(arguments)
            self._stream.value = stream
            for call_ in self._calls:
                status = launch(*call_)
                if status:
                    name = load_driver().CUresult(status).name
                    raise DriverError(f"{name}: cuLaunchKernel failed")


@session.cached()
def _launch_function() -> Callable[..., int]:
    function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    return function
