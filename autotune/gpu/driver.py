"""The driver of this process's vendor of GPUs, and what is built on the interface alone."""

from __future__ import annotations

import contextlib
import pkgutil
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import InputError, LaunchError
from autotune.gpu.interface import DriverError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.gpu.interface import Driver, Event
    from autotune.gpu.vendor import Vendor

NVIDIA = "autotune.gpu.nvidia.vendor:NVIDIA"

_names: list[str] = []


def use(name: str) -> None:
    """Let this process have GPUs of a vendor, from before the first call of a driver on.

    Raises:
        InputError: it has GPUs of another one.
    """
    if _names and _names[0] != name:
        raise InputError(f"a process has GPUs of one vendor, {_names[0]}, and was given {name}")
    if not _names:
        _names.append(name)


def vendor() -> Vendor:
    """This process's vendor; NVIDIA where nobody has said which."""
    return find_vendor(used())


def used() -> str:
    """Its name."""
    return _names[0] if _names else NVIDIA


@session.cached()
def find_vendor(name: str) -> Vendor:
    """The vendor of a name, ``module:object``."""
    found: Any = pkgutil.resolve_name(name)
    return found  # type: ignore[no-any-return]


@session.cached()
def driver() -> Driver:
    """The driver of this process's vendor.

    Raises:
        MissingDependencyError: the driver, or a package that calls it, is missing.
    """
    return vendor().driver()


def driver_errors() -> tuple[type[Exception], ...]:
    """Types of the errors that a call of the driver raises."""
    return driver().errors


def describe(error: Exception) -> str:
    """A driver's error in one line, with its name: "CUDA_ERROR_ILLEGAL_ADDRESS: ..."."""
    return driver().describe(error)


@contextlib.contextmanager
def activated(ordinal: int) -> Iterator[None]:
    """Make the context of a device current in this thread.

    What is done there is the engine's own: it is no part of a graph that is being captured
    meanwhile, here or in another thread, and does not disturb it.
    """
    here = driver()
    with here.relaxed():
        here.enter(ordinal)
        try:
            yield
        finally:
            here.leave()


def device_of(address: int) -> int | None:
    """The driver's number of the device that an address belongs to; None for host memory."""
    return driver().device_of(address)


def wait(ordinal: int, stream: int, other: int) -> None:
    """Let what is enqueued on a stream from now on wait for what is on another one now.

    A graph waits for nothing outside of it: where one of the streams is being captured, and the
    other not, or for another graph, this does nothing.

    Args:
        ordinal: the driver's number of the device.
        stream: handle of the stream that waits.
        other: handle of the stream that it waits for.

    Raises:
        LaunchError: the driver refuses one of the streams.
    """
    here = driver()
    with activated(ordinal), _streams_there():
        if here.capture_of(stream) == here.capture_of(other):
            here.wait_for(stream, here.mark(other))


def finish(ordinal: int, stream: int) -> None:
    """Wait, on the host, for all that is on a stream now, given by its handle.

    Raises:
        LaunchError: the driver refuses the stream, or what was on it has failed.
    """
    with activated(ordinal), _streams_there():
        driver().finish(stream)


@contextlib.contextmanager
def _streams_there() -> Iterator[None]:
    try:
        yield
    except DriverError as error:
        raise LaunchError(f"{error}: is the stream still there?") from error


class Retained:
    """Objects kept alive until what was enqueued on a stream when they came is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Event, object]] = deque()

    def hold(self, ordinal: int, stream: int, objects: object) -> None:
        """Keep `objects`; let go of those that came before and are done with.

        What a graph works on while it is replayed is its owner's to keep: a call that is captured
        holds nothing.

        Raises:
            LaunchError: the driver refuses the stream.
        """
        here = driver()
        with self._lock, activated(ordinal), _streams_there():
            if here.is_capturing(stream):
                return
            self._held.append((here.mark(stream), objects))
            for _ in range(len(self._held)):
                pending = self._held.popleft()
                if not _is_over(pending[0]):
                    self._held.append(pending)


def _is_over(event: Event) -> bool:
    try:
        return event.query()
    except DriverError:  # what was on the stream has failed, and is over
        return True
