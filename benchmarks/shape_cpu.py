"""Kernels of the CPU, NumPy and OpenBLAS on the same shapes, in turns.

Everybody has a process of its own, as in ``cpu_peers.py``, and operands that stay where they are:
small ones stay in the caches.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from cpu_peers import Job, Library, Peer, best_variant, libraries, operands, serve
from numpy.typing import NDArray
from shape_draws import Shape
from shape_rows import Asked, Served

from autotune import Gemm, load
from autotune.operations.accuracy import Tolerance

TURN_S = 0.01
"""Of calls in a turn, about; one call where that takes longer."""

ROUNDS = (3, 15)
"""Rounds, at least and at most."""

PAUSE_S = 0.003
"""Before a turn of several threads: those of the turn before wait on the cores for a moment."""

TRIAL = Shape(512, 512, 512)
"""What the variants of a library are compared at."""

SAMPLED_ROWS = 8

BANDWIDTH_BYTES = 2**29
"""What is read to measure the memory: more than any cache."""

READINGS = 10


@dataclass(frozen=True, slots=True)
class CpuBench:
    """The processes that take turns.

    Attributes:
        ours: multiplies with the package's kernels.
        peers: the libraries, each with its best kernels.
        threads: of everybody.
        order: draws who comes first.
        about: a line for each peer.
    """

    ours: Peer
    peers: Sequence[Peer]
    threads: int
    order: random.Random
    about: Sequence[str]

    @classmethod
    @contextmanager
    def started(cls, asked: Asked, threads: int) -> Iterator[CpuBench]:
        """Everybody's processes, with the variant of each library that is fastest."""
        trial = job_of(TRIAL, asked, threads)
        chosen = [best_variant(each, trial) for each in libraries(asked.cblas)]
        ours = Peer(Library("ours", "nearest"), threads, serve_shapes)
        peers = [Peer(each, threads) for each in chosen if each is not None]
        about = [f"- peer: {peer.library.name} ({peer.ask(trial)})" for peer in peers]
        try:
            yield cls(ours, peers, threads, random.Random(asked.seed), about)
        finally:
            for peer in (ours, *peers):
                peer.close()

    def contest(
        self, job: Job, budget_s: float, tuned: Peer | None = None
    ) -> tuple[dict[str, Served], dict[str, list[float]]]:
        """Multiply in turns.

        Args:
            job: what.
            budget_s: seconds for all rounds, about.
            tuned: one more process with our kernels.

        Returns:
            What served, in "ours" and "tuned"; and the seconds of these and of each peer, by its
            name, in every round.

        Raises:
            Exception: one of our kernels failed.
        """
        everybody = {"ours": self.ours} | ({} if tuned is None else {"tuned": tuned})
        own = tuple(everybody)
        everybody |= {peer.library.name: peer for peer in self.peers}
        answers = {name: peer.ask(job) for name, peer in everybody.items()}
        for name in own:
            if isinstance(answers[name], Exception):
                raise answers[name]
        able = [name for name, answer in answers.items() if not isinstance(answer, Exception)]
        begun = time.monotonic()
        for name in able:
            everybody[name].ask(TURN_S)
        least, most = ROUNDS
        rounds = min(most, max(least, int(budget_s / (time.monotonic() - begun))))
        times: dict[str, list[float]] = {name: [] for name in able}
        for _ in range(rounds):
            self.order.shuffle(able)
            for name in able:
                time.sleep(PAUSE_S if self.threads > 1 else 0.0)
                times[name].append(everybody[name].ask(TURN_S))
        return {name: answers[name] for name in own}, times


def tuned_peer(threads: int, cache: str) -> Peer:
    """One more process with our kernels, which takes records of the shape itself alone.

    Args:
        threads: of it.
        cache: where the records are.
    """
    return Peer(Library("tuned", "exact", path=cache), threads, serve_shapes)


@dataclass(frozen=True)
class ShapeJob(Job):
    """A product that our kernels are asked for, too.

    Attributes:
        cap: of threads, as the problem has it; None where all may be used.
    """

    cap: int | None = None

    @property
    def problem(self) -> Gemm:
        """What our kernels are asked for."""
        return Gemm(self.m, self.n, self.k, dtype=self.dtype, threads=self.cap)


def job_of(shape: Shape, asked: Asked, threads: int) -> ShapeJob:
    """What the processes are asked to multiply.

    Args:
        shape: its sizes.
        asked: of the run.
        threads: of everybody.
    """
    cap = asked.threads or None
    cache = asked.cache or ""
    return ShapeJob(*shape.sizes, asked.dtype, threads, given=True, cache=cache, cap=cap)


def serve_shapes(connection: Any, library: Library) -> None:
    """As `cpu_peers.serve`, in a process with our kernels."""
    serve(connection, library, _our_call)


def _our_call(job: Job, library: Library) -> tuple[Callable[[], object], Served]:
    """The kernel of a job; the library's kind is how well its record must match."""
    assert isinstance(job, ShapeJob)
    a, b, c = operands(job)
    c.fill(np.nan)
    cache = library.path or job.cache or None
    begun = time.perf_counter()
    kernel = load(job.problem, "cpu", match=library.kind, cache=cache, background=False)
    kernel(a, b, c)
    ready_s = time.perf_counter() - begun
    served = Served.of(kernel, ready_s=ready_s, error=_error(a, b, c))
    return functools.partial(kernel, a, b, c), served


def _error(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> float:
    """The largest error among sampled rows, as a share of what is allowed."""
    few = min(len(a), SAMPLED_ROWS - 2)
    some = np.random.default_rng(0).choice(len(a), few, replace=False)
    rows = np.unique(np.concatenate([[0, len(a) - 1], some]))
    wide_a, wide_b = a[rows].astype(np.float64), b.astype(np.float64)
    expected, scale = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    tolerance = Tolerance.of("ieee", c.dtype.name, (*a.shape, b.shape[1]))
    allowed = tolerance.allowed(scale, expected)
    error = float(np.max(np.abs(c[rows] - expected) / np.maximum(allowed, 1e-300)))
    return error if math.isfinite(error) else math.inf


def read_rate(threads: int) -> float:
    """Bytes per second that so many threads read of the memory, a part for each.

    NumPy looks for the largest integer, which of what it does to a whole array is fastest: twice
    as fast as a sum.
    """
    values = np.ones(BANDWIDTH_BYTES // 4, np.int32)
    parts = np.array_split(values, threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(READINGS):
            begun = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - begun)
    return float(values.nbytes / min(seconds))
