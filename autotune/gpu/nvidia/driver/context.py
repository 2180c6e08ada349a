"""A GPU's primary context, which CuPy, PyTorch and Numba share, and the errors of its driver."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.capture import relaxed
from autotune.gpu.nvidia.driver.interface import DriverError, driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def activated(ordinal: int) -> Iterator[None]:
    """Make the primary context of a device current in this thread.

    What is done there is the engine's own: it is no part of a graph that is being captured
    meanwhile, here or in another thread, and does not disturb it.
    """
    here = driver()
    with relaxed():
        here.enter(ordinal)
        try:
            yield
        finally:
            here.leave()


def is_current(ordinal: int) -> bool:
    """Whether a device's primary context is current in this thread, whoever made it so."""
    status, current = load_driver().cuCtxGetCurrent()
    return int(status) == 0 and int(current) == driver().context(ordinal)


def driver_errors() -> tuple[type[Exception], ...]:
    """What a call of the driver may raise."""
    return driver().errors


def describe(error: Exception) -> str:
    """A driver's error in one line, with its name: "CUDA_ERROR_ILLEGAL_ADDRESS: ..."."""
    text = " ".join(str(error).split())
    if isinstance(error, DriverError):
        return text
    # PyCUDA writes "cuMemAlloc failed: out of memory", perhaps with " - " and a log after it.
    told = text.removesuffix(" -").partition(" failed: ")[2].partition(" - ")[0]
    name = _names_by_text().get(told, type(error).__name__)
    return f"{name}: {text.removesuffix(' -')}"[:300]


@functools.cache
def _names_by_text() -> Mapping[str, str]:
    library = load_driver()
    names: dict[str, str] = {}
    for result in library.CUresult:
        status, text = library.cuGetErrorString(result)
        if int(status) == 0 and text is not None:
            names[text.decode()] = result.name
    return names
