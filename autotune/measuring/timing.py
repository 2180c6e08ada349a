"""Timing of calls until the median is known well enough or the time is spent.

A time below a bound that follows from the device says that calls did nothing, or that the clock
is not what it was. Bounds are generous, by a factor of two and more: honest kernels never meet
them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Self

from autotune.core.measurement import Series
from autotune.core.statistics import median_interval
from autotune.operations.accuracy import ACCURACIES
from autotune.operations.problem import multiplies

if TYPE_CHECKING:
    from autotune.operations.poke import Poke
    from autotune.operations.problem import Problem

BATCH_S = 20e-6
"""Calls shorter than this are timed several at a time, so that the clock's resolution and the
loop around them do not count."""

MIN_SPAN_S = 0.01
"""The least time a series spans: neighbouring calls agree more than they would a moment later."""

POKE_SHARE = 0.1
"""Of the time of a series, what goes to changing operands between its samples."""

MIN_CALLS = 5
"""Samples behind any median, unless the deadline comes first."""

Clock = Callable[[], int]
"""Nanoseconds from a fixed point."""


def never(low_s: float) -> bool:
    """No interval says enough: there is no race to lose."""
    return False


def timed(call: Callable[[], object], clock: Clock = time.perf_counter_ns) -> float:
    """Seconds that one call takes."""
    start = clock()
    call()
    return (clock() - start) / 1e9


@dataclass(slots=True)
class Stop:
    """When a series has samples enough.

    That is once the 95% confidence interval of the median is narrower than `interval` times the
    median, or `enough` (both after `MIN_SPAN_S` at the earliest), or after `budget_s` seconds and
    at least `MIN_CALLS` samples, or after `deadline_s` seconds and at least one sample.

    Attributes:
        budget_s: seconds to spend.
        interval: relative width of the confidence interval that is narrow enough.
        deadline_s: seconds after which even `MIN_CALLS` do not matter.
        enough: whether the interval with this lower end, in seconds, says enough.
    """

    budget_s: float
    interval: float
    deadline_s: float = math.inf
    enough: Callable[[float], bool] = never
    _next_look: int = MIN_CALLS + 1  # the fewest samples that can give a 95% interval

    @classmethod
    def after(cls, seconds: float) -> Self:
        """After so many seconds, however well the median is known before."""
        return cls(seconds, -math.inf, seconds)

    @property
    def pauses(self) -> bool:
        """False where calls follow each other for a time, whatever is known of them."""
        return self.interval >= 0

    def done(self, samples: Sequence[float], spent_s: float, growth: float = 1.0) -> bool:
        """True if the series ends after these samples, which took so many seconds.

        Args:
            samples: seconds of a call.
            spent_s: seconds that all of them took.
            growth: how many times the samples of one look at the interval the next one needs.
        """
        if spent_s >= self.deadline_s:
            return True
        if spent_s >= self.budget_s and len(samples) >= MIN_CALLS:
            return True
        if len(samples) < self._next_look or spent_s < min(MIN_SPAN_S, self.budget_s):
            return False
        self._next_look = math.ceil(growth * len(samples))
        low, high = median_interval(samples)
        return high - low <= self.interval * median(samples) or self.enough(low)


class Poking:
    """Pokes before some samples: the first one, and then ever fewer, a tenth of the time at most.

    Args:
        poke: what changes the operands; None changes nothing.
    """

    def __init__(self, poke: Poke | None) -> None:
        self._poke = poke
        self._next = 0
        self._spent_s = 0.0
        self._elapsed_s = math.inf
        self._begun = False

    def begin(self, samples: int, expected_s: float) -> None:
        """Poke, if it is time after so many samples; the next one follows at once."""
        if self._poke is None or samples < self._next:
            return
        if self._spent_s > POKE_SHARE * self._elapsed_s:
            return
        self._next = 3 * samples + 1
        start = time.perf_counter()
        self._poke.begin(expected_s)
        self._spent_s += time.perf_counter() - start
        self._begun = True

    def end(self, elapsed_s: float) -> None:
        """Check the operands after the sample, if there was a poke before it."""
        if self._begun and self._poke is not None:
            self._poke.end()
            self._begun = False
        self._elapsed_s = elapsed_s


def time_calls(
    call: Callable[[], object],
    expected_s: float,
    stop: Stop,
    *,
    poke: Poke | None = None,
    restore: Callable[[], None] | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Series:
    """Time a call that has been warmed up, until it is enough.

    What the clock hardly sees is timed again, twice as often, unless operands are restored.

    Args:
        call: the call.
        expected_s: about how long it takes.
        stop: when it is enough; of this series alone.
        poke: changes operands before some of the samples; its own time does not count in any.
        restore: puts back what a call has changed in place, before every call.
        clock: in nanoseconds.
    """
    batch = 1 if restore else max(1, math.ceil(BATCH_S / max(expected_s, 1e-9)))
    samples: list[float] = []
    start = clock()
    poking = Poking(poke)
    while True:
        poking.begin(len(samples), expected_s)
        if restore is not None:
            restore()
        before = clock()
        for _ in range(batch):
            call()
        now = clock()
        poking.end((now - start) / 1e9)
        span_s = max(now - before, 1) / 1e9
        elapsed_s = (now - start) / 1e9
        if span_s < BATCH_S / 2 and elapsed_s < stop.deadline_s and restore is None:
            # Something held up the call that told what to expect, or the clock is coarse.
            batch *= 2
            samples.clear()
            continue
        samples.append(span_s / batch)
        # To sort at every sample would cost more than short calls do.
        if stop.done(samples, elapsed_s, growth=1.2):
            break
    return Series(
        median(samples),
        median_interval(samples),
        len(samples) * batch,
        samples=tuple(samples),
    )


MARGIN = 1.2
"""Factor by which a device may seem to exceed its ceiling."""

HIGHEST_HZ = 6.2e9
"""No processor has a higher clock, boosts included, which systems often do not tell."""

HIGHEST_GPU_HZ = 3.2e9
"""The same of a GPU."""

_LINE = 64
"""Bytes that a thread of a processor loads or stores at once: two loads and a store in a cycle."""

_TENSOR = {7: 512, 8: 1024, 9: 2048, 10: 4096, 12: 1024}
"""Multiply-adds of 16-bit numbers in a cycle of a multiprocessor, by the major version of the
compute capability: the most of any of its devices, without sparsity."""

_NEWER = 16384
_LANES = 128
"""Those of float32 and of float64 without tensor cores, or of float64 with them."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that a device can do in a second.

    Attributes:
        flops: multiplications and additions of a product.
        bytes: bytes of operands.
        short: multiplications and additions of 16-bit numbers by tensor cores.
    """

    flops: float
    bytes: float
    short: float = 0.0

    def least_s(self, problem: Problem, accuracy: str) -> float:
        """Seconds below which no call takes.

        Of a product they follow from its operations, and from its operands, all of which must be
        read. Of other operations only the output is known to be written whole.

        Args:
            problem: to compute.
            accuracy: the accuracy class that the kernel promises.
        """
        output = next(operand for operand in problem.operands if operand.written)
        operations, moved = 0.0, output.nbytes
        if multiplies(problem.defined):
            operations = problem.flops / ACCURACIES[accuracy].operations
            moved = problem.traffic
        return max(operations / self.rate(accuracy), moved / self.bytes) / MARGIN

    def rate(self, accuracy: str) -> float:
        """The most operations of a class's products in a second, by whichever units are faster."""
        products = ACCURACIES[accuracy].short
        return self.flops if products is None else max(self.flops, self.short / products)

    def told(self, median_s: float, least_s: float, accuracy: str) -> str:
        """Complaint about a time below the least one of a class."""
        return (
            f"{median_s * 1e6:.3g} us a call, where no kernel takes less than "
            f"{least_s * 1e6:.3g} us (at most {self.rate(accuracy) / 1e9:.4g} GFLOP/s and "
            f"{self.bytes / 1e9:.4g} GB/s)"
        )


UNKNOWN = Ceiling(math.inf, math.inf)
"""Of devices of which nothing is known, or which share the work with others."""


def cpu_ceiling(threads: int, vector_bits: int, itemsize: int) -> Ceiling:
    """The ceiling of threads of a processor.

    That is two vectors of multiply-adds in every cycle, four of them where they are of 128 bits,
    and the bandwidth of the level-1 cache.
    """
    lanes = max(512, 2 * vector_bits) // 8 / itemsize
    return Ceiling(threads * 2 * lanes * HIGHEST_HZ, threads * 3 * _LINE * HIGHEST_HZ)


def gpu_ceiling(
    compute_capability: int, multiprocessors: int, itemsize: int, clock_hz: float | None
) -> Ceiling:
    """The ceiling of a GPU: its tensor cores, and the bandwidth of the level-2 cache.

    Args:
        compute_capability: ten times the major version plus the minor one.
        multiprocessors: number of them.
        itemsize: bytes per element.
        clock_hz: the highest clock; None where it is not known.
    """
    tensor = _TENSOR.get(compute_capability // 10, _NEWER)
    # Of float32 by TF32, one to three products of which stand for one: errors alone do not tell
    # three from IEEE.
    lanes = {2: tensor, 4: max(_LANES, tensor // 2)}.get(itemsize, _LANES)
    cycles = multiprocessors * (clock_hz or HIGHEST_GPU_HZ)
    return Ceiling(2 * lanes * cycles, _LINE * cycles, 2 * tensor * cycles)
