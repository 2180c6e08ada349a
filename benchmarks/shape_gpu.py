"""Kernels and cuBLAS before the same operands in the memory of a GPU, in turns.

Operands lie as a program's would: contiguous, one after the other. There are so many copies of
them that none is in the level-2 cache when its turn comes. What is short is captured in a graph.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.gpu.driver import driver
from autotune.gpu.launch.kernel import GpuKernel
from autotune.gpu.measure.bench import WARM_UP_S
from autotune.gpu.measure.memory import rotation_sets
from autotune.gpu.measure.timing import Batch, Stopwatch, steady_s
from autotune.gpu.nvidia.cublas import Cublas, CublasError, find_cublas, function_of
from autotune.operations.accuracy import Tolerance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.core.device import Device
    from autotune.gpu.launch.program import GpuProgram
    from autotune.operations.problem import Gemm

Launch = Callable[..., None]
"""``launch(a, lda, b, ldb, c, ldc, stream=stream)``: addresses, and elements between rows."""

ALIGNMENT = 256
"""Bytes: where allocations begin."""

POOL = 4_194_301
"""Random elements that operands are made of; a prime, so that no two rows are the same."""

TURN_S = 2e-3
"""What a turn takes, at least."""

BUDGET_S = 0.25
"""Of timed launches of a shape, all together."""

ROUNDS = (7, 25)
"""Rounds, at least and at most."""

SAMPLED_ROWS = 8
SAMPLED_COLUMNS = 1024
"""Of C: rows that are verified, and columns of them where B is large."""

WHOLE_B = 2**23
"""Elements of B up to which all columns are verified."""

PATIENCE_S = 30.0


class Operands:
    """Copies of A, B and C in the memory of the device.

    Args:
        problem: what is multiplied.
        pool: address and values of the random elements.
        l2_bytes: of the device.
    """

    def __init__(self, problem: Gemm, pool: Pool, l2_bytes: int) -> None:
        self._problem, self._pool = problem, pool
        m, n, k = problem.shape
        self._item = problem.itemsize
        sizes = [rows * columns * self._item for rows, columns in ((m, n), (n, k), (m, k))]
        self._starts = (0, _aligned(sizes[0]), _aligned(sizes[0]) + _aligned(sizes[1]))
        one = self._starts[2] + _aligned(sizes[2])
        self.count = rotation_sets(problem.traffic, l2_bytes, driver().free_bytes())
        self._memory = driver().allocate(one * self.count)
        self._bases = [int(self._memory) + number * one for number in range(self.count)]
        base = self._bases[0]
        for start, size, shift in zip(self._starts[:2], sizes, (0, POOL // 2), strict=False):
            pool.fill(base + start, size // self._item, shift)
        for other in self._bases[1:]:
            driver().duplicate(other, base, self._starts[2])

    def arguments(self, number: int) -> tuple[int, ...]:
        """Address and leading dimension of A, B and C of a set; numbers go round."""
        base = self._bases[number % self.count]
        _, n, k = self._problem.shape
        a, b, c = (base + start for start in self._starts)
        return a, n, b, k, c, k

    def clear(self) -> None:
        """Set the first C to zero, which is right nowhere."""
        m, _, k = self._problem.shape
        driver().clear(self._bases[0] + self._starts[2], -(-m * k * self._item // 4))

    def error(self, rng: np.random.Generator) -> float:
        """The largest error among sampled rows of the first C, as a share of what is allowed."""
        m, n, k = self._problem.shape
        few = min(m, SAMPLED_ROWS - 2)
        rows = np.unique(np.concatenate([[0, m - 1], rng.choice(m, few, replace=False)]))
        columns = np.arange(k)
        if n * k > WHOLE_B and k > SAMPLED_COLUMNS:
            some = rng.choice(k, SAMPLED_COLUMNS // 2, replace=False)
            edges = np.arange(SAMPLED_COLUMNS // 4)
            columns = np.unique(np.concatenate([edges, k - 1 - edges, some]))
        a = self._pool.values(rows[:, None] * n + np.arange(n), 0)
        expected = np.zeros((len(rows), len(columns)))
        scale = np.zeros_like(expected)
        step = max(1, WHOLE_B // len(columns))
        for start in range(0, n, step):
            part = slice(start, min(n, start + step))
            index = np.arange(n)[part, None] * k + columns
            b = self._pool.values(index, POOL // 2)
            expected += a[:, part] @ b
            scale += np.abs(a[:, part]) @ np.abs(b)
        found = np.empty((len(rows), k), DTYPES[self._problem.dtype].numpy)
        for place, row in enumerate(rows):
            at = self._bases[0] + self._starts[2] + int(row) * k * self._item
            driver().download(found[place], at)
        problem = self._problem
        tolerance = Tolerance.of(problem.accuracy, problem.dtype, problem.shape)
        allowed = tolerance.allowed(scale, expected)
        errors = np.abs(found[:, columns].astype(np.float64) - expected)
        errors /= np.maximum(allowed, 1e-300)
        return float(np.max(errors)) if np.all(np.isfinite(errors)) else float("inf")

    def close(self) -> None:
        """Give the memory back."""
        self._memory.free()


class Pool:
    """Random elements in the memory of the host and of the device."""

    def __init__(self, dtype: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._values: NDArray[Any] = rng.uniform(-1, 1, POOL).astype(DTYPES[dtype].numpy)
        self._memory = driver().allocate(self._values.nbytes)
        driver().upload(int(self._memory), self._values)

    def values(self, index: NDArray[np.int64], shift: int) -> NDArray[np.float64]:
        """Elements of a matrix by their places in it, in float64."""
        return self._values[(index + shift) % POOL].astype(np.float64)

    def fill(self, address: int, count: int, shift: int) -> None:
        """Write the first elements of a matrix."""
        item = self._values.itemsize
        done, begin = 0, shift % POOL
        while done < count:
            some = min(count - done, POOL - begin)
            driver().duplicate(
                address + done * item, int(self._memory) + begin * item, some * item
            )
            done, begin = done + some, 0


class GpuBench:
    """The GPU of this process: what kernels are timed on.

    Args:
        device: as the target reads it.
        dtype: of all operands.
        seed: of operands and of the order of turns.
    """

    def __init__(self, device: Device, dtype: str, seed: int) -> None:
        self.device = device
        self.ordinal = int(device.state["ordinal"])
        driver().enter(self.ordinal)
        self._stopwatch = Stopwatch(PATIENCE_S)
        self._pool = Pool(dtype, seed)
        self._rng = np.random.default_rng(seed)
        self._order = random.Random(seed)
        self._l2_bytes = int(device.limits.names()["l2_bytes"])

    @contextlib.contextmanager
    def contest(self, problem: Gemm) -> Iterator[Contest]:
        """A contest about one problem, with cuBLAS in it."""
        operands = Operands(problem, self._pool, self._l2_bytes)
        contest = Contest(problem, operands, self._stopwatch, self._order, self._rng, self.ordinal)
        try:
            contest.enter_cublas()
            yield contest
        finally:
            contest.close()
            operands.close()
            gc.collect()

    def copy_rate(self, size: int = 2**30, times: int = 20) -> float:
        """Bytes read and written per second where the driver copies within the device's memory."""
        memory = [driver().allocate(size) for _ in range(2)]
        target, source = ((int(each), size) for each in memory)
        stream = self._stopwatch.stream
        copy = functools.partial(driver().copy_rows, target, source, size, 1, stream)
        copy()
        seconds = median(self._stopwatch.samples(copy, 1, times))
        for each in memory:
            each.free()
        return 2 * size / seconds

    def close(self) -> None:
        """Leave the device."""
        driver().leave()


class Contest:
    """Kernels and cuBLAS before the operands of one problem."""

    def __init__(
        self,
        problem: Gemm,
        operands: Operands,
        stopwatch: Stopwatch,
        order: random.Random,
        rng: np.random.Generator,
        ordinal: int,
    ) -> None:
        self._problem = problem
        self._operands = operands
        self._stopwatch = stopwatch
        self._order, self._rng, self._ordinal = order, rng, ordinal
        self._batches: dict[str, tuple[Batch, float]] = {}
        self._kernels: list[GpuKernel] = []
        self._cublas: Cublas | None = None

    def enter_cublas(self) -> None:
        """Let cuBLAS take part.

        Raises:
            CublasError: there is none.
            ArithmeticError: its result is wrong.
        """
        library, function = find_cublas(), function_of(self._problem)
        if library is None or function is None:
            raise CublasError("there is no cuBLAS: pip install nvidia-cublas")
        self._cublas = Cublas(library, function, self._problem, self._stopwatch.stream)
        self.peer = f"cuBLAS {self._cublas.version}"
        launch = self._cublas.launch
        self.peer_error = self._enter(self.peer, lambda *arguments, stream: launch(*arguments))
        if not self.peer_error <= 1:
            raise ArithmeticError(
                f"cuBLAS is wrong: its error is {self.peer_error:.3g} of what is allowed"
            )

    def enter(self, name: str, program: GpuProgram) -> float:
        """Let a program take part: the error of its result, as a share of what is allowed.

        It is loaded with memory of its own: what the kernels of a process share may move between
        calls, and graphs keep addresses.
        """
        kernel = GpuKernel(program, self._ordinal)
        self._kernels.append(kernel)
        return self._enter(name, kernel.launch)

    def times(self, budget_s: float = BUDGET_S) -> Mapping[str, Sequence[float]]:
        """Seconds per launch of everybody in every round; who comes first is drawn."""
        names = list(self._batches)
        begun, warm, round_s = time.monotonic(), 0, 0.0
        while warm < 2 or time.monotonic() - begun < WARM_UP_S:
            before = time.monotonic()
            for name in names:
                self._turn(name)
            warm, round_s = warm + 1, time.monotonic() - before
        least, most = ROUNDS
        rounds = min(most, max(least, round(budget_s / round_s)))
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            self._order.shuffle(names)
            for name in names:
                times[name].append(self._turn(name))
        return times

    def sustain(self, name: str, seconds: float) -> tuple[int, float]:
        """Launch for about so long without a pause: how many launches, and their mean seconds."""
        batch, expected_s = self._batches[name]
        batches = max(1, round(seconds / (batch.launches * expected_s)))
        times = batch.samples(batches)
        return batches * batch.launches, fmean(times)

    def close(self) -> None:
        """Free graphs, kernels and the library's handle."""
        for batch, _ in self._batches.values():
            batch.close()
        for kernel in self._kernels:
            kernel.close()
        if self._cublas is not None:
            self._cublas.close()

    def _enter(self, name: str, launch: Launch) -> float:
        def launch_set(number: int, stream: Any) -> None:
            launch(*self._operands.arguments(number), stream=stream)

        self._operands.clear()
        stream = self._stopwatch.stream
        first = functools.partial(launch_set, 0, stream)
        self._stopwatch.once(first)
        error = self._operands.error(self._rng)
        expected_s = steady_s(launch_set, self._stopwatch, self._stopwatch.once(first))
        batch = Batch.of(launch_set, self._operands.count, expected_s, self._stopwatch)
        self._batches[name] = batch, expected_s
        return error

    def _turn(self, name: str) -> float:
        """Seconds per launch; the first of short batches waits for the host, and is left out."""
        batch, expected_s = self._batches[name]
        batch_s = batch.launches * expected_s
        count = max(1, round(TURN_S / batch_s))
        late = batch_s < 2 * TURN_S
        samples = batch.samples(count + late)[late:]
        return sum(samples) / len(samples)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
