"""Products divided among host threads and GPUs: ``python benchmarks/hybrid_gemm.py``.

Three tables, each of contestants that take turns: operands in blocks on the GPUs, with the rate of
each GPU relative to a single one that has the whole problem; operands of the host, beside cuBLASXt
and beside what copying them takes; and rows against the reduction with 1, 2, 4 and 8 threads, the
latter also with partial sums added under a lock of the host. Every contestant is verified before
the turns, the vendor's too, on a C that holds no result of another. Prints Markdown.
"""

from __future__ import annotations

import argparse
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from gpu_environment import GpuWatch, describe_gpu
from numpy.typing import NDArray

from autotune import Gemm
from autotune.core.configuration import Configuration
from autotune.core.paths import CacheLocations
from autotune.core.statistics import median_interval
from autotune.distributed.hybrid.baseline import CublasXt, OneGpu
from autotune.distributed.hybrid.kernel import choose_local
from autotune.distributed.hybrid.machine import HybridProgram, Plan, machine_with, make_plan
from autotune.distributed.hybrid.target import read_gpus
from autotune.distributed.machine import GpuMachine, LocalKernel
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.nvidia.cublas import CublasError
from autotune.operations.accuracy import Tolerance
from autotune.targets.families import load_families

FAMILIES = load_families(target="hybrid")
DTYPE = "float32"
SAMPLED_ROWS = 16
MOST_ROUNDS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--gpus", type=int, nargs="+", help="how many GPUs, in turn (default all)")
    parser.add_argument("--host-sizes", type=int, nargs="+", default=[16384])
    parser.add_argument(
        "--thread-sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192]
    )
    parser.add_argument("--tables", nargs="+", default=["blocks", "host", "threads"])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant, at least")
    parser.add_argument("--seconds", type=float, default=3.0, help="for the turns of one group")
    args = parser.parse_args()

    gpu, count, reach = read_gpus(None)
    print(describe_gpu(gpu))
    print(f"- GPUs: {count}, {'each reaches' if reach else 'none reaches'} the others' memory")
    counts = [each for each in args.gpus or (1, 2, 4, 8) if each <= count]
    with GpuWatch(gpu) as watch:
        links(counts)
        if "blocks" in args.tables:
            for size in args.sizes:
                table_of_blocks(size, counts, args)
        if "host" in args.tables:
            for size in args.host_sizes:
                table_of_host(size, counts, args)
        if "threads" in args.tables:
            table_of_threads(count, args)
    print(f"\nGPU 0 {watch.summary().removeprefix('- ')}")


@dataclass
class Contestant:
    """What is timed: whole calls, each to the end of all that it enqueued."""

    name: str
    call: Callable[[], object]
    samples: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        low, high = median_interval(self.samples)
        return f"{1e3 * self.median_s:.3f} [{1e3 * low:.3f}, {1e3 * high:.3f}]"

    @property
    def median_s(self) -> float:
        return median(self.samples)


def race(contestants: list[Contestant], args: argparse.Namespace) -> None:
    """Everybody takes a turn, then another."""
    until = time.monotonic() + args.seconds
    rounds = 0
    while rounds < args.rounds or (time.monotonic() < until and rounds < MOST_ROUNDS):
        rounds += 1
        for each in contestants:
            start = time.perf_counter()
            each.call()
            each.samples.append(time.perf_counter() - start)


@contextmanager
def machine_for(problem: Gemm, devices: int) -> Iterator[tuple[GpuMachine, Any]]:
    """A machine with the tuned kernel for a problem, and what makes plans on it."""
    programs = ProgramCache(CacheLocations.at(None).programs)
    local = choose_local(problem, programs)
    with machine_with(local, devices, programs) as machine:
        yield machine, functools.partial(plan_of, machine, local, programs)


def plan_of(
    machine: GpuMachine,
    local: LocalKernel,
    programs: ProgramCache,
    sizes: tuple[int, int, int],
    family: str,
    **values: Any,
) -> Plan:
    source = render(FAMILIES[family], Configuration(values), dtype=local.dtype)
    return make_plan(HybridProgram(source, family, local), machine, programs, *sizes)


def draw(*shape: int) -> NDArray[np.float32]:
    values = np.random.default_rng(shape[0]).random(shape, np.float32)
    values -= 0.5
    return values


class Reference:
    """Some rows of a product in float64, to compare others with.

    One of every sixteenth of C, so that every block has some.
    """

    def __init__(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        size = a.shape[0]
        self.rows = [(2 * each + 1) * size // (2 * SAMPLED_ROWS) for each in range(SAMPLED_ROWS)]
        picked = a[self.rows].astype(np.float64)
        self._want = np.zeros((len(self.rows), b.shape[1]))
        self._scale = np.zeros_like(self._want)
        for first in range(0, b.shape[0], 1024):
            part = b[first : first + 1024].astype(np.float64)
            columns = picked[:, first : first + 1024]
            self._want += columns @ part
            self._scale += np.abs(columns) @ np.abs(part)
        self._limit = Tolerance.of("ieee", DTYPE, (size, a.shape[1], b.shape[1])).factor

    def check(self, row: Callable[[int], NDArray[Any]], name: str) -> None:
        """Check what `row` gives for each of the rows."""
        got = np.stack([row(each) for each in self.rows])
        error = float((np.abs(got - self._want) / self._scale).max()) / self._limit
        assert error < 1, f"{name} is wrong: {error:.3g} times what is allowed"


def moved(machine: GpuMachine, target: Any, source: Any) -> None:
    """Copy, and wait for it."""
    matrix = target if isinstance(target, DeviceMatrix) else source
    with machine.here(matrix.device):
        stream = machine.stream(matrix.device)
        machine.copy(target, source, stream)
        machine.finish(stream)
        machine.free(stream)


# --- links ---


def links(counts: list[int]) -> None:
    """Print what copies cost: between GPUs, and from and to page-locked memory of the host."""
    rates = link_rates(counts[-1])
    print(f"- copies: {', '.join(f'{name} {rate:.1f} GB/s' for name, rate in rates.items())}")


@functools.cache
def link_rates(count: int) -> dict[str, float]:
    """GB/s of copies of 256 MiB by every GPU at once; between GPUs each from the next one."""
    rates: dict[str, float] = {}
    rows, columns = 8192, 8192
    with machine_for(Gemm(512, 512, 512, DTYPE), count) as (machine, _):
        matrices = [machine.memory(each, rows, columns) for each in range(count)]
        others = [machine.memory(each, rows, columns) for each in range(count)]
        host = [machine.pinned(rows * columns).reshape(rows, columns) for _ in range(count)]
        for array in host:
            array[...] = 0
        streams = [machine.stream(each) for each in range(count)]
        plans: dict[str, list[tuple[int, Any, Any]]] = {
            "host to GPU": [(0, matrices[0], host[0])],
            "GPU to host": [(0, host[0], matrices[0])],
        }
        if count > 1:
            plans["GPU to GPU"] = [(0, matrices[0], others[1])]
            everyone = range(count)
            plans[f"host to {count} GPUs"] = [(i, matrices[i], host[i]) for i in everyone]
            plans[f"{count} GPUs to host"] = [(i, host[i], matrices[i]) for i in everyone]
            plans[f"{count} GPUs in a ring"] = [
                (i, matrices[i], others[(i + 1) % count]) for i in everyone
            ]
        for name, copies in plans.items():
            samples = []
            for _ in range(6):
                start = time.perf_counter()
                for device, target, source in copies:
                    with machine.here(device):
                        machine.copy(target, source, streams[device])
                for stream in streams:
                    machine.finish(stream)
                samples.append(time.perf_counter() - start)
            rates[name] = len(copies) * 4e-9 * rows * columns / median(samples[1:])
        for stream in streams:
            machine.free(stream)
    return rates


# --- operands in blocks on the GPUs ---


def table_of_blocks(size: int, counts: list[int], args: argparse.Namespace) -> None:
    problem = Gemm(size, size, size, DTYPE)
    a, b = draw(size, size), draw(size, size)
    reference = Reference(a, b)
    print(f"\n### {problem.label}, operands in blocks on the GPUs\n")
    with machine_for(problem, counts[-1]) as (machine, make):
        contestants: list[tuple[Contestant, int]] = []
        frees: list[Callable[[], None]] = []
        for gpus in sorted({1, *counts}):  # one is what the others' rates are relative to
            placed: tuple[list[DeviceMatrix], ...] | None = None
            for threads, panels in host_threads(gpus):
                plan = make(
                    (size, size, size),
                    "rows",
                    devices=gpus,
                    threads=threads,
                    pieces=1,
                    panels=panels,
                    exchange="host",
                    staging="direct",
                )
                spans = plan.blocks()
                if placed is None:
                    placed = place_blocks(machine, a, b, spans)
                call = functools.partial(plan.on_blocks, *placed, 1.0, 0.0)
                spoil(machine, placed[2])
                call()
                plural = "" if gpus == 1 else "s"
                name = f"{gpus} GPU{plural}, threads={threads} panels={panels}"
                reference.check(functools.partial(fetched, machine, placed[2], spans), name)
                contestants.append((Contestant(name, call), gpus))
                frees.append(plan.free)
            assert placed is not None
            if gpus == 1:
                one = OneGpu(size, size, size, DTYPE)
                vendor = functools.partial(one.multiply, *(each[0] for each in placed))
                spoil(machine, placed[2])
                vendor()
                reference.check(functools.partial(fetched, machine, placed[2], spans), one.name)
                contestants.append((Contestant(one.name, vendor), 1))
        race([each for each, _ in contestants], args)
        single = contestants[0][0].median_s
        print("| | ms [95 %] | TFLOP/s | rate per GPU, of one GPU's |")
        print("|---|---|---|---|")
        for each, gpus in contestants:
            print(
                f"| {each.name} | {each} | {problem.flops / each.median_s / 1e12:.1f} "
                f"| {100 * single / (gpus * each.median_s):.1f} % |",
                flush=True,
            )
        for free in frees:
            free()


def host_threads(gpus: int) -> list[tuple[int, int]]:
    """Threads and panels of the configurations that are measured."""
    if gpus == 1:
        return [(1, 1)]
    return [(gpus, 1), (gpus, 2), (gpus, 4), (2 * gpus, 1)]


def spoil(machine: GpuMachine, blocks: list[DeviceMatrix]) -> None:
    """Fill C with what no product is, so that the result before does not pass for the next."""
    for block in blocks:
        moved(machine, block, np.full(block.shape, np.nan, DTYPE))


def fetched(
    machine: GpuMachine, blocks: list[DeviceMatrix], spans: list[Any], row: int
) -> NDArray[np.float32]:
    """A row of C from the GPU that has it."""
    for block, ((first, last), _) in zip(blocks, spans, strict=True):
        if first <= row < last:
            out = np.empty((1, block.shape[1]), DTYPE)
            moved(machine, out, block[row - first : row - first + 1])
            return out[0]
    raise AssertionError(f"row {row} is in no block")


def place_blocks(
    machine: GpuMachine, a: NDArray[Any], b: NDArray[Any], spans: list[Any]
) -> tuple[list[DeviceMatrix], ...]:
    placed: tuple[list[DeviceMatrix], ...] = ([], [], [])
    for device, (rows, rows_of_b) in enumerate(spans):
        for blocks, whole, span in ((placed[0], a, rows), (placed[1], b, rows_of_b)):
            blocks.append(machine.memory(device, span[1] - span[0], whole.shape[1]))
            moved(machine, blocks[-1], whole[slice(*span)])
        placed[2].append(machine.memory(device, rows[1] - rows[0], b.shape[1]))
    return placed


# --- operands of the host ---


def table_of_host(size: int, counts: list[int], args: argparse.Namespace) -> None:
    problem = Gemm(size, size, size, DTYPE)
    a, b, c = draw(size, size), draw(size, size), np.empty((size, size), DTYPE)
    reference = Reference(a, b)
    print(f"\n### {problem.label}, operands of the host\n")
    with machine_for(problem, counts[-1]) as (machine, make):
        single_s = time_in_place(machine, make, a, b)
        locked = [machine.pinned(size * size).reshape(size, size) for _ in range(3)]
        locked[0][...], locked[1][...] = a, b
        print("| | memory | ms [95 %] | TFLOP/s | bound / time |")
        print("|---|---|---|---|---|")
        for gpus in counts:
            contestants: list[tuple[Contestant, str]] = []
            frees: list[Callable[[], None]] = []
            for memory, operands in (("pageable", (a, b, c)), ("page-locked", tuple(locked))):
                for block in (2048, 4096, 8192):
                    xt = vendor_xt(gpus, block, operands, reference)
                    if xt is not None:
                        contestants.append((xt, memory))
                for values in host_programs(gpus, memory):
                    plan = make((size, size, size), "rows", devices=gpus, **values)
                    call = functools.partial(plan.from_host, *operands, 1.0, 0.0)
                    operands[2][...] = np.nan
                    call()
                    text = " ".join(f"{name}={value}" for name, value in values.items())
                    reference.check(operands[2].__getitem__, text)
                    contestants.append((Contestant(f"rows {text}", call), memory))
                    frees.append(plan.free)
            race([each for each, _ in contestants], args)
            copies_s = copy_bound(problem, gpus)
            bound = max(copies_s, single_s / gpus)
            for each, memory in sorted(contestants, key=lambda pair: pair[0].median_s):
                print(
                    f"| {gpus} GPU{'s' if gpus > 1 else ''}: {each.name} | {memory} | {each} "
                    f"| {problem.flops / each.median_s / 1e12:.1f} "
                    f"| {100 * bound / each.median_s:.0f} % |",
                    flush=True,
                )
            for free in frees:
                free()
            print(
                f"| {gpus} GPU{'s' if gpus > 1 else ''}: bound | | {1e3 * bound:.3f} (copies "
                f"{1e3 * copies_s:.3f}, products {1e3 * single_s / gpus:.3f}) | | |"
            )


def time_in_place(machine: GpuMachine, make: Any, a: NDArray[Any], b: NDArray[Any]) -> float:
    """Seconds of the product on one GPU that holds the operands."""
    sizes = a.shape[0], a.shape[1], b.shape[1]
    plan = make(
        sizes,
        "rows",
        devices=1,
        threads=1,
        pieces=1,
        panels=1,
        exchange="host",
        staging="direct",
    )
    placed = [machine.memory(0, *shape) for shape in (a.shape, b.shape, (sizes[0], sizes[2]))]
    moved(machine, placed[0], a)
    moved(machine, placed[1], b)
    contestant = Contestant("", functools.partial(plan.from_device, *placed, 1.0, 0.0))
    for _ in range(6):
        start = time.perf_counter()
        contestant.call()
        contestant.samples.append(time.perf_counter() - start)
    plan.free()
    for each in placed:
        machine.free(each)
    return median(contestant.samples[1:])


def vendor_xt(
    gpus: int, block: int, operands: tuple[NDArray[Any], ...], reference: Reference
) -> Contestant | None:
    operands[2][...] = np.nan
    try:
        xt = CublasXt(DTYPE, gpus, block)
        xt.multiply(*operands)
    except CublasError as error:
        print(f"| {gpus}: cuBLASXt, tiles of {block} | | {error} | | |")
        return None
    reference.check(operands[2].__getitem__, xt.name)
    return Contestant(xt.name, functools.partial(xt.multiply, *operands))


def host_programs(gpus: int, memory: str) -> Iterator[dict[str, Any]]:
    """Configurations that are worth a look; tuning tries all."""
    shared = {"panels": max(1, 4 // gpus), "exchange": "peer" if gpus > 1 else "host"}
    if memory == "page-locked":
        for threads in (gpus, 2 * gpus):
            for pieces in (4, 8):
                yield {"threads": threads, "pieces": pieces, "staging": "direct", **shared}
        return
    for threads, staging in (
        (8, "direct"),
        (16, "direct"),
        (16, "pinned"),
        (8, "pinned"),
        (4, "pinned"),
        (gpus, "locked"),
    ):
        yield {"threads": threads, "pieces": 4, "staging": staging, **shared}


def copy_bound(problem: Gemm, gpus: int) -> float:
    """Seconds that copying A and B in, or C out, takes at least, each over all links at once."""
    rates = link_rates(gpus)
    up = rates[f"host to {gpus} GPUs" if gpus > 1 else "host to GPU"]
    down = rates[f"{gpus} GPUs to host" if gpus > 1 else "GPU to host"]
    m, n, k = problem.m, problem.n, problem.k
    return max(4e-9 * (m * n + n * k) / up, 4e-9 * m * k / down)


# --- rows against the reduction, by threads ---


def table_of_threads(count: int, args: argparse.Namespace) -> None:
    print("\n### Rows against the reduction, operands of the host (pageable)\n")
    print("| size | GPUs | threads | rows, ms | reduction, ms | reduction under a lock, ms |")
    print("|---|---|---|---|---|---|")
    for size in args.thread_sizes:
        problem = Gemm(size, size, size, DTYPE)
        a, b, c = draw(size, size), draw(size, size), np.empty((size, size), DTYPE)
        reference = Reference(a, b)
        for gpus in sorted({1, count}):
            with machine_for(problem, gpus) as (machine, make):
                for threads in (1, 2, 4, 8):
                    used = min(gpus, threads)
                    if gpus > 1 and threads < gpus:
                        continue
                    shared = {"devices": used, "threads": threads, "staging": "pinned"}
                    exchange = "peer" if used > 1 else "host"
                    rows = make(
                        (size,) * 3, "rows", pieces=2, panels=2, exchange=exchange, **shared
                    )
                    parts = make((size,) * 3, "reduction", pieces=2, sum="copy", **shared)
                    critical = Critical(machine, parts, threads, size)
                    calls = [rows.from_host, parts.from_host, critical.from_host]
                    contestants = []
                    for call in calls:
                        c[...] = np.nan
                        call(a, b, c, 1.0, 0.0)
                        reference.check(c.__getitem__, f"{size}, {threads} threads")
                        contestants.append(
                            Contestant("", functools.partial(call, a, b, c, 1.0, 0.0))
                        )
                    race(contestants, args)
                    print(
                        f"| {size} | {used} | {threads} | "
                        + " | ".join(map(str, contestants))
                        + " |",
                        flush=True,
                    )
                    for plan in (rows, parts, critical):
                        plan.free()


class Critical:
    """The textbook's reduction: every thread a C of its own, added under a lock of the host.

    In the lock C travels to the GPU, the thread's part is added there, and C travels back. All
    else is as in the emitted program: memory is kept, and the product is the same.
    """

    def __init__(self, machine: GpuMachine, program: Any, threads: int, size: int) -> None:
        self._machine = machine
        self._add = program.add
        self._gpus = machine.devices
        self._threads = threads
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads)
        self._streams = [machine.stream(each % self._gpus) for each in range(threads)]
        depth = -(-size // threads)
        self._memory = [
            (
                machine.memory(each % self._gpus, size, depth),
                machine.memory(each % self._gpus, depth, size),
                machine.memory(each % self._gpus, size, size),
                machine.memory(each % self._gpus, size, size),
            )
            for each in range(threads)
        ]

    def from_host(
        self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], alpha: float, beta: float
    ) -> None:
        c[...] = 0
        tasks = [self._pool.submit(self._work, each, a, b, c) for each in range(self._threads)]
        for task in tasks:
            task.result()
        self._machine.reuse_events()

    def free(self) -> None:
        self._pool.shutdown()
        for matrices in self._memory:
            for matrix in matrices:
                self._machine.free(matrix)
        for stream in self._streams:
            self._machine.free(stream)

    def _work(self, thread: int, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> None:
        machine, stream = self._machine, self._streams[thread]
        here_a, here_b, part, whole = self._memory[thread]
        first, last = (a.shape[1] * each // self._threads for each in (thread, thread + 1))
        with machine.here(thread % self._gpus):
            here_a, here_b = here_a[:, : last - first], here_b[: last - first]
            machine.copy(here_a, a[:, first:last], stream)
            machine.copy(here_b, b[first:last], stream)
            machine.multiply(here_a, here_b, part, 1.0, 0.0, stream)
            machine.finish(stream)
            with self._lock:
                machine.copy(whole, c, stream)
                self._add(whole, part, stream)
                machine.copy(c, whole, stream)
                machine.finish(stream)


if __name__ == "__main__":
    main()
