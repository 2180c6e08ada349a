"""Kernels before operands on the device: launched by themselves, or in batches that are timed."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.gpu.measure.memory import SetMemory
from autotune.gpu.measure.timing import Batch, steady_s, time_batches
from autotune.measuring.timing import Stop
from autotune.operations.poke import Poke
from autotune.operations.verification import Verdict

if TYPE_CHECKING:
    from autotune.gpu.launch.kernel import Launch
    from autotune.gpu.measure.checks import SlabCheck
    from autotune.gpu.measure.timing import Stopwatch
    from autotune.measuring.messages import Series

WARM_UP_S = 0.05
"""Time for which a device that has idled is kept busy before it is timed: clocks rise slowly."""

STEADY_S = 0.002
"""The same for a device that was busy until now."""

IDLE_S = 0.1
"""A device that has done nothing for so long has idled."""

LONG_S = 1.0
"""A first launch that takes so long is no matter of code that had to be loaded."""

_WARM_SHARE = 0.1
"""Of the budget, what goes to timing with one operand set, which stays in the cache."""


class CaseBench:
    """A launch before the operands of a case.

    Args:
        check: the operands, and what C must be.
        launch: launches the kernel for the case's sizes.
        stopwatch: of the stream that it is launched on.
    """

    def __init__(self, check: SlabCheck, launch: Launch, stopwatch: Stopwatch) -> None:
        self.check = check
        self.launch = launch
        self.stopwatch = stopwatch

    def once(self) -> float:
        """Prepare and launch: seconds of the launch."""
        self.check.prepare()
        stream = self.stopwatch.stream
        return self.stopwatch.once(lambda: self.launch(*self.check.arguments, stream=stream))

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result."""
        return self.check.judge(accuracy)


class InPlaceBench(CaseBench):
    """A launch that changes what the next one reads: timed one by one, and restored between.

    Args:
        check: the operands.
        launch: launches the kernel.
        stopwatch: of the stream that it is launched on.
        state: what is recorded of the device beside a time.
    """

    def __init__(
        self,
        check: SlabCheck,
        launch: Launch,
        stopwatch: Stopwatch,
        state: Callable[[], dict[str, float | int | str]],
    ) -> None:
        super().__init__(check, launch, stopwatch)
        self._state = state

    @property
    def contents(self) -> int:
        """The number of contents that the operands have in turns."""
        return self.check.contents

    def turn(self) -> None:
        """Write the next content."""
        self.check.turn()

    def settle(self) -> float:
        """Launch until the clocks have risen; seconds of a launch."""
        until = time.monotonic() + WARM_UP_S
        while True:
            seconds = self.once()
            if time.monotonic() >= until:
                return seconds

    def again(self) -> float:
        """Seconds of another launch."""
        return self.once()

    def series(self, expected_s: float, stop: Stop) -> Series:
        """Time launches, one by one."""

        def sample(count: int) -> list[float]:
            return [self.once() for _ in range(count)]

        return time_batches(sample, 1, expected_s, stop)

    def judge_last(self, accuracy: str) -> Verdict:
        """Judge memory and the result of the last launch."""
        return self.judge(accuracy)

    def observe(self, series: Series, stop: Stop) -> dict[str, float | int | str]:
        """The device's state."""
        return {**self._state(), "operand_sets": 1}

    def close(self) -> None:
        """Nothing is kept."""


class _SetPoke(Poke):
    """Changes elements of whichever operand set the next batch launches early."""

    def __init__(self, bench: ProblemBench, rng: np.random.Generator) -> None:
        check, layout = bench.check, bench.check.slab.layout
        self._bench = bench
        self._set = SetMemory(check.problem.operands, layout, check.slab.base)
        super().__init__(
            check.case, check.problem, self._set, bench.launch_poked, rng, check.change
        )

    def begin(self, expected_s: float) -> None:
        self._set.base = self._bench.choose_poked()
        super().begin(expected_s)


class ProblemBench(CaseBench):
    """A launch before the problem's operands, of which there are so many sets that none is cached.

    Args:
        check: the operands in the first set; its `bases` are those of all.
        launch: launches the kernel.
        stopwatch: of the stream that it is launched on.
        state: what is recorded of the device beside a time.
    """

    def __init__(
        self,
        check: SlabCheck,
        launch: Launch,
        stopwatch: Stopwatch,
        state: Callable[[], dict[str, float | int | str]],
    ) -> None:
        super().__init__(check, launch, stopwatch)
        self._state = state
        self._sets = [check.slab.layout.operands(base) for base in check.bases]
        self._batch: Batch | None = None
        self._first_s: float | None = None
        self._last = check.slab.base
        self._own_is_current = False
        self._poked = 0
        self._rng = np.random.default_rng(0)
        self._poke = _SetPoke(self, self._rng)

    @property
    def contents(self) -> int:
        """The number of contents that the operands have in turns."""
        return self.check.contents

    def turn(self) -> None:
        """Write the next content into all sets."""
        self.check.turn()
        self._own_is_current = False

    def once(self) -> float:
        """Prepare and launch the first set: seconds of the launch."""
        seconds = super().once()
        self._first_s = self._first_s or seconds
        self._last, self._own_is_current = self.check.slab.base, True
        return seconds

    def settle(self) -> float:
        """Launch until the clocks have risen; seconds of a launch."""
        self.check.change(self._rng)  # what is found out now holds up no launches that are timed
        idled = time.monotonic() - self.stopwatch.busy_at > IDLE_S
        until = time.monotonic() + (WARM_UP_S if idled else STEADY_S)
        while True:
            seconds = self._samples()
            if time.monotonic() >= until:
                return seconds

    def again(self) -> float:
        """Seconds of a launch in another batch; the first time, once the clocks have risen."""
        return self.settle() if self._batch is None else self._samples()

    def series(self, expected_s: float, stop: Stop) -> Series:
        """Time batches; see `autotune.gpu.measure.timing.time_batches`."""
        batch = self._batches()
        series = batch.series(expected_s, stop, self._poke)
        self._launched(batch)
        return series

    def choose_poked(self) -> int:
        """Choose the set to change elements of; its address."""
        self._poked = self._batches().early
        return self.check.bases[self._poked]

    def launch_poked(self) -> None:
        """Launch that set."""
        self._launch_set(self._poked, self.stopwatch.stream)

    def judge_last(self, accuracy: str) -> Verdict:
        """Judge memory around the first set, and what was launched last, in whatever set.

        Besides, what single elements came to that were changed between batches.
        """
        if self._poke.flaw:
            return Verdict(math.inf, self._poke.flaw)
        verdict = self.check.judge(accuracy, self._last)
        if verdict.right and self._own_is_current and self._last != self.check.slab.base:
            own = self.check.judge_result(self.check.slab.base, accuracy)
            if not own.right or own.error > verdict.error:
                return own
        return verdict

    def observe(self, series: Series, stop: Stop) -> dict[str, float | int | str]:
        """The device's state, and the median with operands that the cache keeps."""
        details: dict[str, float | int | str] = {
            **self._state(),
            "operand_sets": len(self._sets),
        }
        if self._first_s is not None and self._first_s < stop.budget_s:
            details["warm_s"] = self._warm_s(series.median_s, stop)
        return details

    def close(self) -> None:
        """Free the graph, if there is one."""
        if self._batch is not None:
            self._batch.close()

    def _warm_s(self, expected_s: float, stop: Stop) -> float:
        """The median with one operand set, which the cache keeps as far as it fits."""
        launch_first = functools.partial(self.launch, *self._sets[0])
        batch = Batch.of(
            lambda _, stream: launch_first(stream=stream), 1, expected_s, self.stopwatch
        )
        try:
            batch.samples(1)
            brief = Stop(_WARM_SHARE * stop.budget_s, stop.interval)
            return batch.series(expected_s, brief).median_s
        finally:
            batch.close()

    def _samples(self) -> float:
        batch = self._batches()
        (seconds,) = batch.samples(1)
        self._launched(batch)
        return seconds

    def _launched(self, batch: Batch) -> None:
        self._last = self.check.bases[batch.last]
        self.stopwatch.busy_at = time.monotonic()

    def _batches(self) -> Batch:
        if self._batch is None:
            if self._first_s is None:
                for number in range(2):  # the second one is past loading the code
                    self._first_s = self.stopwatch.once(
                        functools.partial(self._launch_set, number, self.stopwatch.stream)
                    )
                    if self._first_s >= LONG_S:
                        break
            assert self._first_s is not None
            expected_s = steady_s(self._launch_set, self.stopwatch, self._first_s)
            count = len(self._sets)
            self._batch = Batch.of(self._launch_set, count, expected_s, self.stopwatch)
        return self._batch

    def _launch_set(self, number: int, stream: Any) -> None:
        self.launch(*self._sets[number % len(self._sets)], stream=stream)
