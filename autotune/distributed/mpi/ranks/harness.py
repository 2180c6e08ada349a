"""Programs that all ranks run and time together, before operands that rank 0 draws and judges."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import threadpoolctl

from autotune.core.errors import AutotuneError, CompileError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.statistics import median_interval
from autotune.cpu.baseline import numpy_blas, numpy_vendor
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.loading import MakePlan, load_product, load_program
from autotune.distributed.mpi.messages import MpiProgram, Network, Setup
from autotune.distributed.mpi.ranks.meeting import load_on_all
from autotune.distributed.mpi.ranks.operands import PlacedCheck
from autotune.families.program_cache import ProgramCache
from autotune.measuring.harness import (
    OTHER_CONTENTS,
    RANK_PRODUCTS,
    ClockedBench,
    FirstRuns,
    affordable,
)
from autotune.measuring.messages import Evaluated, Program, Series, Vendor
from autotune.measuring.timing import UNKNOWN, Stop
from autotune.operations.cases import Case
from autotune.operations.problem import Gemm
from autotune.operations.verification import ProductCheck, Verdict

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LENGTHS = (8, 1 << 22)
"""Bytes of the messages timed: the shortest gives the latency, both together the bandwidth."""

ROUNDS = (400, 25)
"""Number of times that they are sent."""


def timed_together(comm: Intracomm, call: Callable[[], object]) -> float:
    """Seconds from when the first rank begins a call until the last has made it, on every rank.

    A barrier comes first. Where there are more ranks than cores, some leave it only when others
    have finished: a rank's own time would miss that. Nodes have clocks of their own; on several,
    it is the time of the rank that takes longest.
    """
    from mpi4py import MPI

    node = zlib.crc32(MPI.Get_processor_name().encode())
    comm.Barrier()
    start = time.perf_counter()
    call()
    end = time.perf_counter()
    mine = np.array([end - start, end, -start, node, -node], "float64")
    most = np.empty_like(mine)
    comm.Allreduce(mine, most, MPI.MAX)
    longest, last, first, one, same = map(float, most)
    # A coarse clock may have seen nothing; nothing takes less than its unit.
    return max(last + first if one == -same else longest, 1e-9)


def time_together(comm: Intracomm, call: Callable[[], object], stop: Stop) -> Series:
    """Time a call that has been warmed up, until it is enough.

    That follows from the times alone, which all ranks have alike: none needs to be told.
    """
    samples: list[float] = []
    while True:
        samples.append(timed_together(comm, call))
        if stop.done(samples, sum(samples)):
            break
    return Series(median(samples), median_interval(samples), len(samples), samples=tuple(samples))


def measure_network(comm: Intracomm) -> Network:
    """Send messages to and fro between ranks 0 and 1; called by all ranks.

    The model is that of Hockney, "The communication challenge for MPP", Parallel Computing 20,
    1994: time = latency + length / bandwidth. With one rank there are no messages, and they cost
    nothing.
    """
    if comm.size == 1:
        return Network(0.0, 0.0)
    short_s, long_s = (
        _one_way_s(comm, length, rounds) for length, rounds in zip(LENGTHS, ROUNDS, strict=True)
    )
    per_byte = max(0.0, long_s - short_s) / (LENGTHS[1] - LENGTHS[0])
    return Network(short_s, per_byte)


def _one_way_s(comm: Intracomm, length: int, rounds: int) -> float:
    """Half the shortest time of a message there and back, on every rank.

    The shortest: the others were held up by something else.
    """
    message = np.zeros(length, "uint8")
    samples = []
    comm.Barrier()
    for _ in range(rounds):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(message, 1)
            comm.Recv(message, 1)
        elif comm.rank == 1:
            comm.Recv(message, 0)
            comm.Send(message, 0)
        samples.append((time.perf_counter() - start) / 2)
    seconds: float = comm.bcast(min(samples), 0)
    return seconds


_Resource = TypeVar("_Resource", "MakePlan", "GpuRank")

CASES = affordable(Gemm(1, 1, 1), RANK_PRODUCTS, padded=False)


class NotLoadedError(CompileError):
    """A program cannot be loaded, on some rank: all of them say so together."""


class MpiHarness:
    """One problem: its operands, on rank 0; see `autotune.measuring.harness.Harness`.

    Every rank has one and does the same with it, so all grounds of decisions must be alike on
    all: times and verdicts are exchanged.

    Args:
        comm: the ranks.
        setup: the task.
    """

    # Processes are held up by others more often than one is, and the first run also opens
    # connections.
    first_runs = FirstRuns(runs=5)
    ceiling = UNKNOWN

    def __init__(self, comm: Intracomm, setup: Setup) -> None:
        self.comm = comm
        self.setup = setup
        self._programs = ProgramCache(setup.programs)
        self.problem = problem = setup.problem
        self.large = Case(problem.m, problem.n, problem.k)
        self.checks: dict[Case, ProductCheck] = {}
        if comm.rank == 0:
            rng = np.random.default_rng(setup.seed)
            for case in CASES:
                self.checks[case] = ProductCheck(case, problem, rng)
            self.checks[self.large] = ProductCheck(
                self.large, problem, rng, others=OTHER_CONTENTS, sealed=True
            )
        self._seed = setup.seed

    def now(self) -> float:
        """Seconds from a fixed point: rank 0's, on every rank."""
        seconds: float = self.comm.bcast(time.monotonic(), 0)
        return seconds

    @contextlib.contextmanager
    def load(self, program: Program, *, keep: bool) -> Iterator[_Loaded]:
        """Load a program on every rank.

        Raises:
            NotLoadedError: it cannot be loaded, on any of them.
        """
        assert isinstance(program, MpiProgram)
        make_plan = self._on_all(lambda: load_program(program, self._programs, self.comm))
        yield _Loaded(self, make_plan)
        make_plan.close()  # not after an error, as below

    @contextlib.contextmanager
    def vendor(self, vendor: Vendor) -> Iterator[ClockedBench]:
        """The baseline on rank 0; the other ranks, once they have their GPUs, go back to sleep."""
        alone = self.setup.alone
        check = self.checks.get(self.large)
        if alone is not None:
            gpu = self._on_all(lambda: load_product(alone, self._programs, self.comm))
            yield _QuietBench() if check is None else ClockedBench(check, _on_gpu(gpu, check))
            gpu.close()
            return
        if check is None:
            yield _QuietBench()
            return
        call = functools.partial(np.matmul, check.a, check.b, out=check.c)
        with threadpoolctl.threadpool_limits(limits=vendor.threads, user_api="blas"):
            yield ClockedBench(check, call)

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        if seed != self._seed:
            rng = np.random.default_rng(seed)
            for check in self.checks.values():
                check.redraw(rng)
        self._seed = seed

    def vendors(self) -> tuple[Vendor, ...]:
        """NumPy's product on rank 0, with one thread or one per core.

        For small products one is faster. For ranks with GPUs it is the local kernel on one GPU,
        operands in its memory.
        """
        if self.setup.alone is not None:
            name = f"one {self.setup.gpu}, the same local kernel"
            return (Vendor(name, 1, {"gpu": self.setup.gpu}),)
        counts = dict.fromkeys((1, self.setup.cores))
        return tuple(numpy_vendor(numpy_blas(), threads) for threads in counts)

    def failure(self, error: Exception) -> Evaluated | None:
        """A failure of all ranks to load; after other errors they are not in step any more."""
        if isinstance(error, NotLoadedError):
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=str(error)))
        return None

    def _on_all(self, load: Callable[[], _Resource]) -> _Resource:
        """Load something on every rank, or raise NotLoadedError on all of them."""
        try:
            return load_on_all(self.comm, load)
        except AutotuneError as error:
            raise NotLoadedError(str(error) or type(error).__name__) from None


def _on_gpu(gpu: GpuRank, check: ProductCheck) -> Callable[[], object]:
    """The whole product on one GPU, operands in its memory."""
    a, b, c = map(gpu.upload, (check.a, check.b, check.c))

    def multiply() -> None:
        gpu(a, b, c)
        gpu.synchronize()

    multiply()
    return multiply


class _Loaded:
    """A program before the operands of a harness."""

    def __init__(self, harness: MpiHarness, make_plan: MakePlan) -> None:
        self._harness = harness
        self._make_plan = make_plan

    @property
    def cases(self) -> Sequence[Case]:
        return CASES

    @contextlib.contextmanager
    def place(self, case: Case) -> Iterator[RankBench]:
        harness, setup = self._harness, self._harness.setup
        plan = self._make_plan(harness.comm, *case.sizes)
        check, dtype, gpu = harness.checks.get(case), setup.problem.dtype, self._make_plan.gpu
        placed = PlacedCheck(harness.comm, case, check, plan, setup.distributed, dtype, gpu)
        with np.errstate(all="ignore"):  # of NaN and infinity, which NumPy would tell users of
            yield RankBench(harness.comm, placed)
        plan.free()  # not after an error: what fails on one rank is not met by the others

    def problem(self) -> contextlib.AbstractContextManager[RankBench]:
        return self.place(self._harness.large)

    def probe(self, best_s: float | None) -> None:
        """None: what messages cost does not shrink with the sizes."""


class RankBench(ClockedBench):
    """Calls that all ranks make together, and whose seconds all of them have alike.

    What a rank does next follows from such times: one that took its own would be out of step.

    Args:
        comm: the ranks.
        placed: the operands, wherever they are.
    """

    def __init__(self, comm: Intracomm, placed: PlacedCheck) -> None:
        super().__init__(placed, placed.call)
        self._comm = comm

    def once(self) -> float:
        """Hand the operands out, then call."""
        self._operands.prepare()
        return self.again()

    def settle(self) -> float:
        """The same."""
        return self.once()

    def again(self) -> float:
        """Seconds of one more call, from the first rank's begin to the last one's end."""
        return timed_together(self._comm, self._call)

    def series(self, expected_s: float, stop: Stop) -> Series:
        """Time calls; see `time_together`."""
        return time_together(self._comm, self._call, stop)


class _QuietBench(ClockedBench):
    """Does nothing, while rank 0 is at work alone."""

    def __init__(self) -> None:
        pass  # there are no operands, and no calls

    def turn(self) -> None:
        pass

    def settle(self) -> float:
        return math.nan

    def series(self, expected_s: float, stop: Stop) -> Series:
        return Series(math.nan, (math.nan, math.nan), 0)

    def judge_last(self, accuracy: str) -> Verdict:
        return Verdict(0.0)
