"""What belongs to the driver and is given back with the object that holds it."""

from __future__ import annotations

import weakref
from typing import Any

from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.capture import relaxed
from autotune.gpu.nvidia.driver.interface import DriverError


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver.

    Raises:
        DriverError: it fails.
    """
    status, *values = getattr(load_driver(), name)(*arguments)
    if int(status) != 0:
        raise DriverError(f"{status.name}: {name} failed")
    return values[0] if len(values) == 1 else values


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
    """Whatever the thread does: it may be in another context, or in one that is being recorded."""
    driver = load_driver()
    with relaxed():
        if int(driver.cuCtxPushCurrent(context)[0]) == 0:
            getattr(driver, release)(handle)
            driver.cuCtxPopCurrent()
