"""Binaries loaded past PyCUDA, for streams of other libraries, of which it cannot make its own."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

from autotune.evaluators.cuda.context import STATIC_SHARED_BYTES, ForeignError
from autotune.evaluators.cuda.identity import load_driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.evaluators.cuda.program import LaunchStep

_END, _POINTER, _SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_...


class ForeignModule:
    """A binary, loaded into the current context.

    Args:
        cubin: the binary.

    Raises:
        ForeignError: the driver refuses it.
    """

    def __init__(self, cubin: bytes) -> None:
        self._driver = load_driver()
        self._module = self._check(self._driver.cuModuleLoadData(cubin))

    def runner(self, steps: Sequence[LaunchStep]) -> ForeignRunner:
        """What launches kernels of this binary, one after the other.

        Raises:
            ForeignError: there is no such kernel, or it may not have that much shared memory.
        """
        return ForeignRunner([(int(self._function(step)), step) for step in steps])

    def unload(self) -> None:
        """Free the code."""
        self._driver.cuModuleUnload(self._module)

    def _function(self, step: LaunchStep) -> Any:
        function = self._check(
            self._driver.cuModuleGetFunction(self._module, step.kernel.encode())
        )
        if step.shared_bytes > STATIC_SHARED_BYTES:
            attributes = self._driver.CUfunction_attribute
            attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(self._driver.cuFuncSetAttribute(function, attribute, step.shared_bytes))
        return function

    @staticmethod
    def _check(result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status) != 0:
            raise ForeignError(status.name)
        return values[0] if values else None


class ForeignRunner:
    """``run(arguments, stream)``: launches kernels with packed arguments on a stream's handle.

    The call is all that a user's call of a kernel costs beyond looking at the operands, so the
    driver is called with objects of ctypes that were made before: the bindings, and a
    description of the argument types as well, would convert thirteen arguments every time.
    """

    def __init__(self, kernels: Sequence[tuple[int, LaunchStep]]) -> None:
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
        self._calls = [
            (
                ctypes.c_void_p(function),
                *map(ctypes.c_uint, (*step.grid, *step.block, step.shared_bytes)),
                self._stream,
                ctypes.c_void_p(),  # no array of pointers to arguments
                self._extra,
            )
            for function, step in kernels
        ]

    def __call__(self, arguments: bytes, stream: int) -> None:
        """Enqueue the kernels.

        Raises:
            ForeignError: the driver refuses a launch.
        """
        launch = self._launch
        with self._lock:  # the driver has copied the arguments when it returns
            self._arguments.raw = arguments
            self._size.value = len(arguments)
            self._stream.value = stream
            for call in self._calls:
                status = launch(*call)
                if status:
                    raise ForeignError(load_driver().CUresult(status).name)


@functools.cache
def _launch_function() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernel
