"""Timing launches with device events until the median is known well enough.

A sample is the mean of a batch of launches between two events. Batches follow each other without
a pause, so that the device never waits for the host; very short kernels are launched by a CUDA
graph, since the host could not keep up with them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Self

from autotune.core.statistics import median_interval
from autotune.gpu.driver import driver
from autotune.measuring.messages import Series
from autotune.measuring.timing import Poking, Stop

if TYPE_CHECKING:
    from autotune.gpu.interface import Event
    from autotune.operations.poke import Poke

GRAPH_BELOW_S = 200e-6
"""Kernels shorter than this are launched by graphs: a host whose cores all compile takes some tens
of microseconds for a launch."""

GRAPH_LAUNCHES = 20
"""Launches in a graph, at least."""

BATCH_S = 1e-3
"""Time of a batch, at least: events cost some microseconds, which must not count."""

_CHUNK_S = 0.005
_CHUNK_SAMPLES = 32
_BUSY_WAIT_S = 0.002
"""Time for which the host asks after an event without a pause."""

_AHEAD_S = 0.05
"""Work that lies before a device that must not wait: for longer than its counters take to read."""

_LONG_S = 5e-3
"""A launch that takes so long by itself takes as long after another one."""

_FOLLOWING_S = 1e-3
_FOLLOWING = 10
_LOOKS = 3
"""Launches that follow each other in a look at how long they take: about so much time's worth, so
many at most, and so many looks."""

LaunchSet = Callable[[int, Any], None]
"""``launch(number, stream)``: enqueue one multiplication of an operand set; numbers go round."""


class HungError(Exception):
    """A kernel still runs after all the time that it is given."""


def batch_launches(expected_s: float, sets: int) -> int:
    """The number of launches that one sample averages.

    Args:
        expected_s: about how long one takes.
        sets: operand sets; a graph goes through all of them, since it starts with the same one
            every time.
    """
    if expected_s < GRAPH_BELOW_S:
        return sets * math.ceil(GRAPH_LAUNCHES / sets)
    return max(1, math.ceil(BATCH_S / expected_s))


def time_batches(
    sample: Callable[[int], Sequence[float]],
    launches: int,
    expected_s: float,
    stop: Stop,
    *,
    poke: Poke | None = None,
) -> Series:
    """Time batches until it is enough, by the time on the device.

    Args:
        sample: times so many batches: seconds per launch of each.
        launches: launches in a batch.
        expected_s: about how long one launch takes.
        stop: when it is enough; of this series alone.
        poke: what changes operands while the device waits.
    """
    samples: list[float] = []
    spent_s = 0.0
    poking = Poking(poke)
    chunk = max(1, min(_CHUNK_SAMPLES, round(_CHUNK_S / (launches * max(expected_s, 1e-9)))))
    while True:
        poking.begin(len(samples), expected_s)
        fresh = sample(chunk)
        samples += fresh
        spent_s += launches * sum(fresh)
        poking.end(spent_s)
        if stop.done(samples, spent_s):
            break
    return Series(
        median(samples),
        median_interval(samples),
        len(samples) * launches,
        samples=tuple(samples),
    )


class Stopwatch:
    """Times what is enqueued on one stream of the current context.

    Args:
        patience_s: seconds that it waits for anything.

    Attributes:
        stream: the stream.
        busy_at: when the device was last kept busy, by `time.monotonic`.
    """

    def __init__(self, patience_s: float = math.inf) -> None:
        self._patience_s = patience_s
        self.busy_at = -math.inf
        self.stream = driver().stream()

    def once(self, enqueue: Callable[[], None]) -> float:
        """Seconds that what is enqueued takes, with a few microseconds of the events' own.

        Raises:
            HungError: it does not end.
        """
        return self.samples(enqueue, 1, 1)[0]

    def samples(self, enqueue: Callable[[], None], launches: int, count: int) -> list[float]:
        """Time batches back to back: the seconds per launch of each.

        Raises:
            HungError: it does not end.
        """
        events = [self._record()]
        for _ in range(count):
            enqueue()
            events.append(self._record())
        self._await(events[-1])
        return [
            later.time_since(earlier) / 1e3 / launches
            for earlier, later in itertools.pairwise(events)
        ]

    def without_pause(
        self, enqueue: Callable[[], None], launches: int, expected_s: float, seconds: float
    ) -> list[float]:
        """Time batches, of which the device always has some before it: seconds per launch.

        Args:
            enqueue: enqueues a batch.
            launches: launches in it.
            expected_s: about how long one takes.
            seconds: of batches, at least.

        Raises:
            HungError: it does not end.
        """
        ahead = max(2, round(_AHEAD_S / (launches * max(expected_s, 1e-9))))
        events, spent_s = [self._record()], 0.0
        times: list[float] = []
        while len(times) < len(events) - 1 or spent_s < seconds:
            while spent_s < seconds and len(events) <= len(times) + ahead:
                enqueue()
                events.append(self._record())
            earlier, later = events[len(times) : len(times) + 2]
            self._await(later)
            times.append(later.time_since(earlier) / 1e3)
            spent_s += times[-1]
        return [batch_s / launches for batch_s in times]

    def _record(self) -> Event:
        event = driver().event()
        event.record(self.stream)
        return event

    def _await(self, event: Event) -> None:
        start = time.monotonic()
        while not event.query():
            waited_s = time.monotonic() - start
            if waited_s > self._patience_s:
                raise HungError(f"still running after {self._patience_s:g} s")
            if waited_s > _BUSY_WAIT_S:
                time.sleep(2e-4)


def steady_s(launch: LaunchSet, stopwatch: Stopwatch, alone_s: float) -> float:
    """About how long a launch takes where launches follow each other.

    By itself it waits for the host, which prepares it while the device idles, and the first one
    for memory and code as well: a kernel of some microseconds takes a hundred then, is taken for
    one that needs no graph, and its time is the host's from there on.

    Raises:
        HungError: it does not end.
    """
    if alone_s >= _LONG_S:
        return alone_s
    count = max(1, min(_FOLLOWING, round(_FOLLOWING_S / alone_s)))

    def enqueue() -> None:
        for number in range(count):
            launch(number, stopwatch.stream)

    return min(stopwatch.samples(enqueue, count, _LOOKS))


class Batch:
    """Launches over rotating operand sets, enqueued together.

    Args:
        launch: launches one set.
        sets: how many there are.
        launches: launches in the batch.
        stopwatch: times it.
        graph: record the launches once and replay them; the kernel must have run before.

    Attributes:
        launches: launches in the batch.
    """

    def __init__(
        self, launch: LaunchSet, sets: int, launches: int, stopwatch: Stopwatch, *, graph: bool
    ) -> None:
        self.launches = launches
        self._launch = launch
        self._sets = sets
        self._stopwatch = stopwatch
        self._next = 0
        self._graph = driver().record(self._enqueue, stopwatch.stream) if graph else None

    @classmethod
    def of(cls, launch: LaunchSet, sets: int, expected_s: float, stopwatch: Stopwatch) -> Self:
        """The batch that suits launches of about `expected_s` seconds."""
        launches = batch_launches(expected_s, sets)
        return cls(launch, sets, launches, stopwatch, graph=expected_s < GRAPH_BELOW_S)

    @property
    def last(self) -> int:
        """The operand set that was launched last."""
        return (self._next - 1) % self._sets

    @property
    def early(self) -> int:
        """An operand set that the next batch launches right after another one, if it has two."""
        return (self._next + (self.launches > 1)) % self._sets

    def samples(self, count: int) -> list[float]:
        """Seconds per launch of so many batches; see `Stopwatch.samples`."""
        enqueue = self._graph.replay if self._graph is not None else self._enqueue
        return self._stopwatch.samples(enqueue, self.launches, count)

    def series(self, expected_s: float, stop: Stop, poke: Poke | None = None) -> Series:
        """See `time_batches`; where there is to be no pause, the mean of all launches' times."""
        if not stop.pauses:
            enqueue = self._graph.replay if self._graph is not None else self._enqueue
            times = self._stopwatch.without_pause(
                enqueue, self.launches, expected_s, stop.budget_s
            )
            return Series(fmean(times), median_interval(times), len(times) * self.launches)
        return time_batches(self.samples, self.launches, expected_s, stop, poke=poke)

    def close(self) -> None:
        """Free the graph."""
        if self._graph is not None:
            self._graph.close()

    def _enqueue(self) -> None:
        stream = self._stopwatch.stream
        for _ in range(self.launches):
            self._launch(self._next, stream)
            self._next = (self._next + 1) % self._sets
