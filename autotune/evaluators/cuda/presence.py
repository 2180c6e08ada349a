"""Whether CUDA kernels can run here, asked without importing what would run them."""

from __future__ import annotations

import ctypes
import functools
import importlib.util


@functools.cache
def can_run() -> bool:
    """Whether there are a driver, a GPU, PyCUDA and the driver's bindings."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0 and _installed("pycuda") and _installed("cuda.bindings")


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it would be in is missing
        return False
