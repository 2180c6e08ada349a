"""GPUs that are none: memory, streams and events in NumPy, as much out of order as is allowed.

What is enqueued on a stream is done when somebody waits for it, or at random before; streams that
no event orders overtake each other. A program that forgets an event computes from memory that is
not there yet, which holds NaNs.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Matrix:
    """A matrix in the memory of a GPU."""

    array: NDArray[Any]
    device: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.array.shape
        return rows, columns

    def __getitem__(self, where: Any) -> Matrix:
        return Matrix(self.array[where], self.device)


@dataclass(eq=False)
class Event:
    call: int
    done: bool = False


@dataclass(eq=False)
class Stream:
    device: int
    weight: float
    queue: deque[Callable[[], None] | Event] = field(default_factory=deque)


class NumpyMachine:
    """See `autotune.distributed.hybrid.machine.Machine`.

    Args:
        devices: GPUs.
        dtype: of all matrices.
        seed: decides which streams are slow, and whose turn it is.
        reach: whether GPUs can read each other's memory.
    """

    def __init__(
        self, devices: int, dtype: str = "float64", seed: int = 0, *, reach: bool = True
    ) -> None:
        self.devices = devices
        self.products: list[tuple[int, int, int, int]] = []
        self.live: list[object] = []
        self._dtype = dtype
        self._rng = np.random.default_rng(seed)
        self._reach = reach
        self._lock = threading.RLock()
        self._streams: list[Stream] = []
        self._locked: list[NDArray[Any]] = []
        self._call = 0
        self._here = threading.local()

    @contextlib.contextmanager
    def here(self, device: int) -> Iterator[None]:
        self._here.device = device
        yield
        self._here.device = None

    def stream(self, device: int) -> Stream:
        stream = Stream(device, self._rng.exponential() ** 4)
        self._streams.append(stream)
        self.live.append(stream)
        return stream

    def memory(self, device: int, rows: int, columns: int) -> Matrix:
        with self._lock:
            made = Matrix(np.full((rows, columns), np.nan, self._dtype), device)
            self.live.append(made)
            return made

    def pinned(self, count: int) -> NDArray[Any]:
        with self._lock:
            made = np.full(count, np.nan, self._dtype)
            self.live.append(made)
            self._locked.append(made)
            return made

    def lock(self, array: NDArray[Any]) -> NDArray[Any]:
        with self._lock:
            self._locked.append(array)
            return array

    def unlock(self, locked: NDArray[Any]) -> None:
        with self._lock:
            self._locked = [each for each in self._locked if each is not locked]

    def is_locked(self, array: NDArray[Any]) -> bool:
        with self._lock:
            return any(np.may_share_memory(array, each) for each in self._locked)

    def copy(self, target: Any, source: Any, stream: Stream) -> None:
        assert target.shape == source.shape, "copies keep the shape"
        places = [each.device for each in (target, source)]
        assert stream.device in places, f"a stream of GPU {stream.device} copies {places}"
        to, come = (x.array if isinstance(x, Matrix) else x for x in (target, source))
        self._enqueue(stream, lambda: np.copyto(to, come))

    def multiply(
        self, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float, stream: Stream
    ) -> None:
        assert {x.device for x in (a, b, c)} == {stream.device}
        assert (*a.shape, b.shape[1]) == (c.shape[0], *b.shape)
        assert min(*a.shape, *b.shape) > 0, "kernels take no empty operands"

        def product() -> None:
            result = alpha * (a.array @ b.array)
            c.array[...] = result + beta * c.array if beta else result

        with self._lock:
            self.products.append((stream.device, a.shape[0], a.shape[1], b.shape[1]))
        self._enqueue(stream, product)

    def kernel(self, source: str, name: str) -> Callable[[Matrix, Matrix, Stream], None]:
        assert f"void {name}(" in source

        def add(target: Matrix, part: Matrix, stream: Stream) -> None:
            assert target.device == stream.device
            assert part.device == stream.device or self._reach, "GPUs do not reach each other"
            assert target.shape == part.shape
            self._enqueue(stream, lambda: np.add(target.array, part.array, out=target.array))

        return add

    def record(self, stream: Stream) -> Event:
        event = Event(self._call)

        def pass_on() -> None:
            event.done = True

        self._enqueue(stream, pass_on)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        assert event.call == self._call, "an event of an earlier call"
        with self._lock:
            stream.queue.append(event)

    def finish(self, what: Stream | Event) -> None:
        with self._lock:
            while what.queue if isinstance(what, Stream) else not what.done:
                self._step()

    def reuse_events(self) -> None:
        with self._lock:
            assert not any(stream.queue for stream in self._streams), "a call ends with its work"
            self._call += 1

    def free(self, what: object) -> None:
        before = len(self.live)
        self.live = [each for each in self.live if each is not what]
        assert len(self.live) == before - 1, "freed twice, or never made"

    def _enqueue(self, stream: Stream, work: Callable[[], None]) -> None:
        assert getattr(self._here, "device", None) == stream.device, "another GPU is current"
        with self._lock:
            stream.queue.append(work)
            if self._rng.random() < 0.2:
                self._step()

    def _step(self) -> None:
        """Do the next thing of one of the streams that can go on."""
        ready = []
        for stream in self._streams:
            while stream.queue and isinstance(stream.queue[0], Event) and stream.queue[0].done:
                stream.queue.popleft()
            if stream.queue and not isinstance(stream.queue[0], Event):
                ready.append(stream)
        if not ready:
            assert not any(stream.queue for stream in self._streams), "streams wait for each other"
            return
        weights = np.array([stream.weight for stream in ready])
        chosen = ready[self._rng.choice(len(ready), p=weights / weights.sum())]
        work = chosen.queue.popleft()
        assert not isinstance(work, Event)
        work()
