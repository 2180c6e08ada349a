"""PyCUDA's view of a GPU's primary context, which CuPy, PyTorch and Numba share."""

from __future__ import annotations

import atexit
import contextlib
import functools
from typing import TYPE_CHECKING, Any

from autotune.errors import MissingDependencyError
from autotune.evaluators.cuda.identity import load_driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that every kernel may have; for more, the driver is asked first."""


@functools.cache
def pycuda_driver() -> Any:
    """PyCUDA's driver module, initialised.

    Raises:
        MissingDependencyError: PyCUDA is missing, or does not work with this driver.
    """
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise MissingDependencyError(
            f"running CUDA kernels needs PyCUDA ({error}): pip install 'autotune-kernels[cuda]', "
            "which builds it with an installed CUDA toolkit"
        ) from error
    load_driver()  # says clearly what is wrong where there is no driver
    driver.init()
    return driver


@functools.cache
def primary_context(ordinal: int) -> Any:
    """The primary context of a device, retained for the life of this process."""
    context = pycuda_driver().Device(ordinal).retain_primary_context()
    # PyCUDA releases a primary context when told to. Its destructor takes it for one of its own,
    # and the driver refuses to destroy that.
    atexit.register(context.detach)
    return context


@contextlib.contextmanager
def activated(ordinal: int) -> Iterator[None]:
    """Make the primary context of a device current in this thread, as PyCUDA sees it."""
    context = primary_context(ordinal)
    context.push()
    try:
        yield
    finally:
        pycuda_driver().Context.pop()


def is_current(ordinal: int) -> bool:
    """Whether a device's primary context is current in this thread, whoever made it so."""
    status, current = load_driver().cuCtxGetCurrent()
    return int(status) == 0 and int(current) == primary_context(ordinal).handle


class ForeignError(Exception):
    """An error of the driver that PyCUDA was not in between of; its text is the error's name."""


def driver_errors() -> tuple[type[Exception], ...]:
    """What a call of the driver may raise."""
    return pycuda_driver().Error, ForeignError


def describe(error: Exception) -> str:
    """A driver's error in one line, with its name: "CUDA_ERROR_ILLEGAL_ADDRESS: ..."."""
    text = " ".join(str(error).split())
    if isinstance(error, ForeignError):
        return text
    # PyCUDA writes "cuMemAlloc failed: out of memory", perhaps with " - " and a log after it.
    told = text.removesuffix(" -").partition(" failed: ")[2].partition(" - ")[0]
    name = _names_by_text().get(told, type(error).__name__)
    return f"{name}: {text.removesuffix(' -')}"[:300]


@functools.cache
def _names_by_text() -> Mapping[str, str]:
    driver = load_driver()
    names: dict[str, str] = {}
    for result in driver.CUresult:
        status, text = driver.cuGetErrorString(result)
        if int(status) == 0 and text is not None:
            names[text.decode()] = result.name
    return names
