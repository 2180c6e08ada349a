"""Tuned CPU kernels beside every BLAS there is: ``python benchmarks/cpu_peers.py --small``.

Each library has a process of its own, with the environment that makes it fastest, and all of
them take turns on the same operands, so that other work on the machine meets them all alike. A
ratio is the median over the rounds of the library's time divided by ours, in brackets the middle
half of the rounds. Problems without a record in ``--cache`` are tuned first. Prints Markdown.

Peers are found where they are installed: NumPy, the wheels scipy-openblas32, mkl and aoclda (the
BLIS of the processor's maker), and any other library with CBLAS calls by ``--cblas NAME=PATH``.
Every variant of a library's kernels is tried beforehand; the best one takes part.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import os
import site
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

SQUARES = (512, 768, 1000, 1024, 2048, 4096)
SHAPES = ("16x4096x4096", "4096x16x4096", "4096x4096x16", "127x513x1025", "33x77x1001")
SMALL = (8, 12, 16, 24, 32, 48, 64, 96, 128)
OPENBLAS = ("Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids")
BLIS = ("", "zen5", "zen4", "zen3", "zen2", "skx", "haswell")
TRIAL = (768, 768, 768)

SETTLE_S = 0.015
"""Threads of a library go on spinning for a while after a call."""


LONG_TURNS = 10
"""A call that takes so many turns' time is called once."""


@dataclass(frozen=True)
class Library:
    """A way to multiply, and the environment that it is loaded in."""

    name: str
    kind: str  # "ours", "numpy" or "cblas"
    path: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One product: sizes, dtype, threads, whether C is given, and where our records are."""

    m: int
    n: int
    k: int
    dtype: str
    threads: int
    given: bool
    cache: str

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


# --- in the libraries' own processes ---


Make: TypeAlias = "Callable[[Job, Library], tuple[Callable[[], object], object]]"
"""What multiplies, and a description of it."""


def serve(connection: Any, library: Library, make: Make | None = None) -> None:
    """Answer jobs with a description of the kernel, and budgets in seconds with times.

    Args:
        connection: to who asks.
        library: what multiplies here.
        make: makes the calls; None takes what the library's kind has.
    """
    kinds = {"ours": our_call, "numpy": numpy_call, "cblas": cblas_call}
    make = make or kinds[library.kind]
    call: Callable[[], object] = int
    settle_s = 0.0
    while (message := connection.recv()) is not None:
        try:
            if isinstance(message, Job):
                call, description = make(message, library)
                settle_s = SETTLE_S if message.threads > 1 else 0.0
                connection.send(description)
            else:
                connection.send(turn(call, message, settle_s))
        except Exception as error:
            connection.send(error)


def turn(call: Callable[[], object], budget_s: float, settle_s: float) -> float:
    """Median seconds of a call, after others' threads have been given time to settle."""
    time.sleep(settle_s)
    start = time.perf_counter()
    call()
    if (first_s := time.perf_counter() - start) > LONG_TURNS * budget_s:
        return first_s  # caches fill in no time beside it
    start = time.perf_counter()
    call()
    batch = max(1, math.ceil(50e-6 / (time.perf_counter() - start)))
    times = []
    end = time.perf_counter() + budget_s
    while not times or time.perf_counter() < end:
        before = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - before) / batch)
    return statistics.median(times)


def operands(job: Job) -> tuple[Any, Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (job.m, job.n)).astype(job.dtype)
    b = rng.uniform(-1, 1, (job.n, job.k)).astype(job.dtype)
    return a, b, np.zeros((job.m, job.k), job.dtype)


def checked(call: Callable[[], object], result: Any, expected: Any) -> Callable[[], object]:
    import numpy as np

    product = call()
    tolerance = 1e-3 if expected.dtype == "float32" else 1e-9
    np.testing.assert_allclose(
        product if result is None else result, expected, rtol=tolerance, atol=tolerance * 10
    )
    return call


def our_call(job: Job, library: Library) -> tuple[Callable[[], object], str]:
    from autotune import load

    kernel = load(problem_of(job), "cpu", cache=job.cache)
    a, b, c = operands(job)
    call = functools.partial(kernel, a, b, **({"out": c} if job.given else {}))
    checked(call, c if job.given else None, a @ b)
    return call, str(kernel.candidate)


def numpy_call(job: Job, library: Library) -> tuple[Callable[[], object], str]:
    import numpy as np
    import threadpoolctl

    a, b, c = operands(job)
    threadpoolctl.threadpool_limits(job.threads, "blas")
    blas = threadpoolctl.threadpool_info()[0]
    description = f"{np.__version__}, {blas['internal_api']} {blas['version']}"
    description += f", {blas.get('architecture', 'unknown')}"
    # The least that each of the two ways of writing it costs.
    call = functools.partial(np.matmul, a, b, out=c) if job.given else lambda: a @ b
    return call, description


def cblas_call(job: Job, library: Library) -> tuple[Callable[[], object], str]:
    """Through cffi with arguments made beforehand: less than any wrapper of arrays costs."""
    import cffi

    real = {"float32": "float", "float64": "double"}[job.dtype]
    prefix = "scipy_" if "scipy_openblas" in library.path else ""
    name = f"{prefix}cblas_{real[0].replace('f', 's')}gemm"
    ffi = cffi.FFI()
    ffi.cdef(
        f"void {name}(int, int, int, int, int, int, {real}, {real} *, int, {real} *, int, {real}, "
        f"{real} *, int);"
    )
    function = getattr(ffi.dlopen(library.path), name)
    a, b, c = operands(job)
    at_a, at_b, at_c = (ffi.from_buffer(f"{real}[]", each) for each in (a, b, c))
    m, n, k = job.m, job.n, job.k
    row_major, as_stored = 101, 111
    call = functools.partial(
        function, row_major, as_stored, as_stored, m, k, n, 1.0, at_a, n, at_b, k, 0.0, at_c, k
    )
    checked(call, c, a @ b)
    chosen = [
        f"{name}={value}" for name, value in library.environment.items() if "LIB" not in name
    ]
    return call, ", ".join(chosen) or "as installed"


# --- in this process ---


class Peer:
    """A library's process."""

    def __init__(
        self,
        library: Library,
        threads: int,
        entry: Callable[[Any, Library], None] = serve,
    ) -> None:
        self.library = library
        self._threads = threads
        # Not those of a pool that is never called here: its own threads would only be in the way.
        counts = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
            str(threads),
        )
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=entry, args=(theirs, library), daemon=True)
        # Nor may idle threads hold a core in somebody else's turn: these sleep after 2**20 cycles.
        counts["OPENBLAS_THREAD_TIMEOUT"] = "20"
        with environment({**counts, **library.environment}):
            self._process.start()
        theirs.close()

    def ask(self, message: Job | float) -> Any:
        """The answer, which may be an error; EOFError where the process has died."""
        self._connection.send(message)
        if not self._connection.poll(300):
            raise EOFError(f"{self.library.name} does not answer")
        return self._connection.recv()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def libraries(more: Sequence[str]) -> list[list[Library]]:
    """Every library that is installed, as the variants of its kernels."""
    found = [[Library("NumPy", "numpy")]]
    cores = [{"OPENBLAS_CORETYPE": core} for core in OPENBLAS]
    forced = [Library("OpenBLAS", "numpy", environment=core) for core in cores]
    packages = [Path(folder) for folder in site.getsitepackages()]
    for path in [each for at in packages for each in at.glob("scipy_openblas32/lib/lib*.so")]:
        forced += [Library("OpenBLAS", "cblas", str(path), core) for core in ({}, *cores)]
    found.append(forced)
    blis = dict(each.split("=", 1) for each in more)
    for path in [each for at in packages for each in at.glob("aoclda.libs/libblis*.so*")]:
        blis["BLIS (AOCL)"] = str(path)
    for name, path in blis.items():
        beside = {"LD_LIBRARY_PATH": str(Path(path).parent)}
        variants = [{"BLIS_ARCH_TYPE": arch} if arch else {} for arch in BLIS]
        found.append([Library(name, "cblas", path, {**beside, **each}) for each in variants])
    for path in list(Path(sys.prefix).glob("lib/libmkl_rt.so*"))[:1]:
        found.append([Library("MKL", "cblas", str(path), {"LD_LIBRARY_PATH": str(path.parent)})])
    return found


def best_variant(variants: Sequence[Library], job: Job) -> Library | None:
    """The variant that is fastest at one size; None where none works."""
    times: dict[int, float] = {}
    for position, library in enumerate(variants):
        peer = Peer(library, job.threads)
        try:
            answer = peer.ask(job)
            if isinstance(answer, Exception):
                print(f"{library.name} {dict(library.environment)}: {answer}", file=sys.stderr)
            else:
                times[position] = statistics.median(peer.ask(0.05) for _ in range(3))
        except EOFError:  # kernels that this processor cannot run end the process
            pass
        finally:
            peer.close()
    return variants[min(times, key=times.__getitem__)] if times else None


def problem_of(job: Job) -> Any:
    from autotune import Gemm

    return Gemm(job.m, job.n, job.k, dtype=job.dtype, threads=job.threads)


def tune_missing(jobs: Sequence[Job], timeout: float) -> None:
    from autotune import NotTunedError, tune
    from autotune.cpu.target import CpuTarget
    from autotune.serving.lookup import look_up

    for job in jobs:
        try:
            look_up(problem_of(job), CpuTarget(), match="exact", cache=job.cache)
        except NotTunedError:
            print(f"tuning {problem_of(job).label}", file=sys.stderr, flush=True)
            tune(problem_of(job), target="cpu", trials=1000, timeout=timeout, cache=job.cache)


def compare(peers: Sequence[Peer], job: Job, rounds: int, budget_s: float) -> list[list[float]]:
    """Times of every peer by round; NaN for one that cannot."""
    answers = [peer.ask(job) for peer in peers]
    if isinstance(answers[0], Exception):
        raise answers[0]
    times: list[list[float]] = [[] for _ in peers]
    for turn_number in range(rounds):
        # Whoever comes first in a round is not always the same.
        order = [(position + turn_number) % len(peers) for position in range(len(peers))]
        for position in order:
            failed = isinstance(answers[position], Exception)
            times[position].append(math.nan if failed else peers[position].ask(budget_s))
    return times


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Median and middle half of the rounds' ratios."""
    ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    if any(map(math.isnan, ratios)):
        return (math.nan,) * 3
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def cell(value: tuple[float, float, float]) -> str:
    if math.isnan(value[0]):
        return "-"
    return f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"


def group(title: str, jobs: Sequence[Job], peers: Sequence[Peer], args: Any) -> None:
    """Measure jobs of one dtype and number of threads, and print their table."""
    names = [peer.library.name for peer in peers[1:]]
    print(f"\n### {title}\n")
    print(f"| shape | ours | µs | GFLOP/s | {' | '.join(names)} | the best peer |")
    print("|---" * (5 + len(names)) + "|")
    logs: list[list[float]] = [[] for _ in range(len(names) + 1)]
    for job in jobs:
        ours, *theirs = compare(peers, job, args.rounds, args.turn)
        kernel = peers[0].ask(job)
        ratios = [ratio(each, ours) for each in theirs]
        # The peer that is fastest by the median, not whichever was lucky in a round.
        ratios.append(min(each for each in ratios if not math.isnan(each[0])))
        for log, value in zip(logs, ratios, strict=True):
            log.append(math.log(value[0]))
        seconds = statistics.median(ours)
        print(
            f"| {job.m}x{job.n}x{job.k} | {kernel} | {seconds * 1e6:.2f} "
            f"| {job.flops / seconds / 1e9:.1f} | {' | '.join(map(cell, ratios[:-1]))} "
            f"| **{cell(ratios[-1])}** |",
            flush=True,
        )
    means = [math.exp(statistics.fmean(log)) for log in logs]
    print(
        f"| geometric mean | | | | {' | '.join(f'{mean:.2f}' for mean in means[:-1])} "
        f"| **{means[-1]:.2f}** |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="+", default=["1"], help="numbers, or all")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SQUARES))
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), help="MxNxK")
    parser.add_argument("--small", action="store_true", help="8 to 128, cost of the call included")
    parser.add_argument("--cblas", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--cache", required=True, help="where tuning records are, or go")
    parser.add_argument("--timeout", type=float, default=18.0, help="seconds of search each")
    parser.add_argument("--tune-only", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.02, help="seconds of a turn, or one call")
    args = parser.parse_args()

    from environment import describe

    from autotune.cpu.identity import read_cpu
    from autotune.operations.problem import GEMM

    usable = read_cpu().limits.names()["max_threads"]
    print(describe())
    shapes = [(size,) * 3 for size in args.sizes] + [
        GEMM.parse_shape(text) for text in args.shapes
    ]
    for threads in [usable if text == "all" else int(text) for text in args.threads]:
        for dtype in args.dtypes:
            common = {"dtype": dtype, "threads": threads, "cache": args.cache}
            large = [Job(*sizes, given=True, **common) for sizes in shapes]
            small = [Job(n, n, n, given=True, **common) for n in SMALL] if args.small else []
            tune_missing([*large, *small], args.timeout)
            if args.tune_only:
                continue
            trial = Job(*TRIAL, given=True, **common)
            chosen = [best_variant(each, trial) for each in libraries(args.cblas)]
            peers = [
                Peer(each, threads) for each in (Library("ours", "ours"), *filter(None, chosen))
            ]
            plural = "" if threads == 1 else "s"
            print(f"\n## {dtype}, {threads} thread{plural}\n")
            for peer in peers[1:]:
                where = f", {Path(peer.library.path).name}" if peer.library.path else ""
                print(f"- {peer.library.name}: {peer.ask(trial)}{where}")
            try:
                if large:
                    group("C given", large, peers, args)
                if small:
                    group("Small, C given", small, peers, args)
                    alloc = [replace(job, given=False) for job in small]
                    arrays = [peer for peer in peers if peer.library.kind != "cblas"]
                    group("Small, C allocated: `kernel(a, b)` and `a @ b`", alloc, arrays, args)
            finally:
                for peer in peers:
                    peer.close()


if __name__ == "__main__":
    main()
