"""What grows in long use, in CPU time and memory: ``python benchmarks/growth.py``; Markdown."""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, median

from environment import describe
from plot_style import QUIET, canvas, foot_of, save

from autotune import Gemm, load, tune
from autotune.cpu.compiling import Compiled, compile_worker
from autotune.cpu.kernel import write_program
from autotune.families.program_cache import ProgramCache
from autotune.measuring.processes import WorkerProcess
from autotune.search import Searcher
from autotune.space import SearchSpace
from autotune.store import TuningCache, TuningRecord, export_records, superseded
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

PROBLEM = Gemm(256, 256, 256)
clock = time.process_time  # the machine may be busy
TILES = {name: [8, 16, 32, 64, 128, 256] for name in ("sm", "sn", "sk")}
THREADS = {"tx": [1, 2, 4, 8, 16], "ty": [1, 2, 4, 8, 16], "unroll": [1, 2, 4, 8]}
RULES = ["sm % ty == 0", "sk % tx == 0", "sm * sn + sn * sk <= 16384"]
Points = Iterator[tuple[str, int, float]]  # series, how much there is, seconds or bytes


def pruning(made: TuningRecord, folder: Path) -> Points:
    for count in (100, 200, 400, 800, 1600):
        cache, records, times = TuningCache(folder / "prune.sqlite"), [made], []
        for number in range(1, count):  # each won in turns against the one before, half are stale
            own = {"beat": (records[-1].id,), "gflops": made.gflops + number}
            records.append(replace(made, family_digest=f"{number % 2:016}", **own))
        for _ in range(3):
            cache.add(*records)
            start = clock()
            old = superseded(cache.records(), lambda record: record.family_digest[-1] == "1")
            cache.delete(record.id for record in old)
            times.append(clock() - start)
        yield "read, compare and delete", count, median(times)


def loading(made: TuningRecord, folder: Path) -> Points:
    load(PROBLEM, "cpu", cache=folder)  # its program is in this process from here on
    for count in (1_000, 4_000, 16_000, 60_000):
        problems = [replace(PROBLEM, m=count + number) for number in range(count)]
        records = [replace(made, problem=problem.key()) for problem in problems]
        export_records(records, folder / "layer.jsonl")
        TuningCache(folder / f"{count}.sqlite").add(*records)
        del records
        for name, path in (("file", "layer.jsonl"), ("database", f"{count}.sqlite")):
            os.environ["AUTOTUNE_RECORDS"] = str(folder / path)
            times = [clock()]
            for problem in problems[:8]:
                load(problem, "cpu", cache=folder)
                times.append(clock())
            first, *later = (end - start for start, end in pairwise(times))
            yield from ((f"{name}, first", count, first), (f"{name}, next", count, median(later)))


def proposing(made: TuningRecord, folder: Path) -> Points:
    space = SearchSpace(TILES | THREADS, RULES)
    searcher, rows = Searcher(space, "auto"), random.Random(1).sample(range(len(space)), 8_000)
    told, times = set(), []
    for count in (250, 500, 1_000, 2_000, 3_500):
        while len(told) < count + 10:  # 20 proposals around each count
            start, proposed = clock(), len(told) >= count - 10
            point = searcher.ask() if proposed else space[rows.pop()]
            times += [clock() - start] if proposed else []
            if point not in told:
                told.add(point)
                searcher.tell(point, 1 + sum((math.log2(x) - 4) ** 2 for x in point.values()))
        yield "median of 20", count, median(times[-20:])
        yield "slowest: model fitted anew", count, max(times[-20:])


def compiling(made: TuningRecord, folder: Path) -> Points:
    family, limits = load_families(target="cpu")["simd"], make_target("cpu").device(PROBLEM).limits
    space, programs = family.space(PROBLEM, limits), ProgramCache(folder / "compiled")
    paths = dict.fromkeys(write_program(family, each, PROBLEM, programs).path for each in space)
    worker = WorkerProcess(compile_worker, replies=Compiled, renewed=True)
    for count, path in zip(range(1, 41), paths, strict=False):
        assert not worker.insist(path, 120).error
        if count in (1, 2, 5, 10, 20, 30, 40):
            pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1])
            yield "resident", count, pages * os.sysconf("SC_PAGE_SIZE")
    worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE", help="PNG or SVG")
    path, about = parser.parse_args().plot, describe()
    print(f"{about}\n- order: the power of the size that a series grows with, by least squares\n")
    print("| what | series | of | sizes | values | order |\n|---|---|---|---|---|---|")
    told = (
        "CPU time or memory, by how much there is. Grey line: in proportion (slope one). First: "
        "the layer was not read before; next: then other problems."
    )
    foot = foot_of(about.splitlines()[:2])
    figure, axes = canvas("What grows in long use, and how fast", told, foot, 4, 15.0)
    with tempfile.TemporaryDirectory() as name:
        tune(PROBLEM, target="cpu", trials=4, cache=name)
        [made, *_] = TuningCache(Path(name) / "tuning.sqlite").records()
        for at, (part, what, of, unit) in zip(axes, PARTS, strict=True):
            series: dict[str, list[tuple[int, float]]] = {}
            for label, count, value in part(made, Path(name)):
                series.setdefault(label, []).append((count, round(value * unit, 1)))
            for label, points in series.items():
                sizes, values = zip(*points, strict=True)
                order = linear_regression(*(list(map(math.log, each)) for each in (sizes, values)))
                shown = " | ".join(", ".join(map(str, each)) for each in (sizes, values))
                print(f"| {what} | {label} | {of} | {shown} | {order.slope:.2f} |", flush=True)
                at.plot(sizes, values, "o-", label=label)
            start = next(iter(series.values()))[0][1]  # the first series'
            at.plot(sizes, [start * x / sizes[0] for x in sizes], color=QUIET, linewidth=0.8)
            at.set(title=what, xlabel=of, xscale="log", yscale="log")
            at.minorticks_off()
            at.set_xticks(sizes, list(map(str, sizes)))
            at.locator_params(axis="y", subs=(1, 3))
            at.yaxis.set_major_formatter("{x:g}")
            at.grid(visible=True)
            at.legend(loc="best")
    save(figure, path)


PARTS = (
    (pruning, "Pruning one problem's records, ms", "records", 1e3),
    (loading, "Loading with a layer of records, ms", "records in the layer", 1e3),
    (proposing, "Proposing a configuration, ms", "trials told", 1e3),
    (compiling, "Memory of a compile worker, MiB", "compiles", 2**-20),
)

if __name__ == "__main__":
    main()
