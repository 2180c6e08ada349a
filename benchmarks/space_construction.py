"""What building a search space costs: ``python benchmarks/space_construction.py --data DIR``.

Builds every space in a folder from its text, again and again, with autotune, Kernel Tuner and
pyATF (``pip install '.[bench]'``) taking turns in one process, and compares the
processor time. All must agree on the number of valid configurations. Then it counts and samples
two spaces that are too large to list, each in a process of its own. Prints Markdown, or JSON with
``--json``.

A file is JSON with `name`, `parameters` (lists of values by name), `restrictions` (Python text)
and `cartesian`. Kernel Tuner adds a limit of 1024 on the product of the block sizes by itself;
everybody gets it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import importlib.metadata
import io
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environment import describe, describe_files

from autotune.space import SearchSpace

LEAST_S = 0.01
"""A sample is the mean over so much processor time, or over one run if that takes longer."""

MAX_THREADS = 1024

BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")

LARGE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Space:
    """A space as text; no contestant has seen it."""

    name: str
    parameters: Mapping[str, list[Any]]
    restrictions: list[str]


@dataclass(frozen=True)
class Times:
    """Processor time of one contestant on one space, in milliseconds."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:,.2f} ({self.least:,.2f} to {self.most:,.2f})"


LARGE = (
    Space(
        "tiles, one group of 11 parameters",
        {
            "block_x": [16, 32, 64, 128, 256, 512],
            "block_y": [1, 2, 4, 8, 16, 32],
            "tile_x": list(range(1, 17)),
            "tile_y": list(range(1, 17)),
            "tile_k": [4, 8, 16, 32],
            "stages": [1, 2, 3, 4],
            "vector": [1, 2, 4, 8],
            "pad": [0, 1, 2, 4],
            "unroll": [1, 2, 4, 8, 16],
            "blocks": [0, 1, 2, 3, 4],
            "layout": ["row", "column"],
        },
        [
            "64 <= block_x * block_y <= 1024",
            "stages * tile_k * (block_x * tile_x + block_y * tile_y + pad) * 4 <= 131072",
            "tile_k % unroll == 0 or unroll == 1",
            "(block_x * tile_x) % vector == 0",
            "layout == 'row' or pad % 2 == 0",
            "blocks == 0 or blocks * block_x * block_y <= 2048",
            "not (stages > 2 and pad == 4)",
        ],
    ),
    Space(
        "stencils, four groups of 3 parameters",
        {f"{name}{i}": list(range(1, 9)) for i in range(4) for name in ("tile", "step", "unroll")},
        [
            f"tile{i} * step{i} <= 24 and step{i} % unroll{i} == 0 and tile{i} >= unroll{i}"
            for i in range(4)
        ],
    ),
)


def read(path: Path) -> Space:
    """The space in a file, with Kernel Tuner's own limit written out."""
    data = json.loads(path.read_text(encoding="utf-8"))
    sizes = [name for name in BLOCK_SIZES if name in data["parameters"]]
    limit = [f"{' * '.join(sizes)} <= {MAX_THREADS}"] if sizes else []
    return Space(data["name"], data["parameters"], data["restrictions"] + limit)


def autotune_count(space: Space) -> Callable[[], int]:
    """Ours, from text to the number of configurations."""
    return lambda: SearchSpace(space.parameters, space.restrictions).size


def autotune_list(space: Space) -> Callable[[], int]:
    """Ours, from text to a column of values for every parameter."""

    def build() -> int:
        columns = SearchSpace(space.parameters, space.restrictions).columns
        return len(next(iter(columns.values())))

    return build


def kernel_tuner(space: Space) -> Callable[[], int]:
    """Kernel Tuner's default, which lists all configurations."""
    from kernel_tuner.searchspace import Searchspace

    def build() -> int:
        restrictions = list(space.restrictions)
        return int(Searchspace(dict(space.parameters), restrictions, MAX_THREADS).size)

    return build


def pyatf(space: Space) -> Callable[[], int]:
    """pyATF's tree, which counts; from functions, as its users write them, not from text.

    A parameter with one value is a constant in them, or it would connect all that it occurs with.
    """
    from pyatf import TP, Set
    from pyatf.search_space import SearchSpace as Tree

    fixed = {name: values[0] for name, values in space.parameters.items() if len(values) == 1}
    order = {name: position for position, name in enumerate(space.parameters)}
    constraints: dict[str, list[tuple[str, set[str]]]] = {}
    for restriction in space.restrictions:
        for part in conjuncts(ast.parse(restriction, mode="eval").body):
            names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
            names -= fixed.keys()
            if names:
                last = max(names, key=order.__getitem__)
                constraints.setdefault(last, []).append((ast.unparse(part), names))
            elif not eval(ast.unparse(part), fixed):
                return lambda: 0
    functions = {}
    for name, parts in constraints.items():
        used = sorted(set().union(*(names for _, names in parts)), key=order.__getitem__)
        body = " and ".join(f"({text})" for text, _ in parts)
        functions[name] = eval(f"lambda {', '.join(used)}: {body}", dict(fixed))

    def build() -> int:
        parameters = [
            TP(name, Set(*values), functions.get(name))
            for name, values in space.parameters.items()
        ]
        return int(Tree(*parameters, verbosity=0).constrained_size)

    return build


def conjuncts(tree: ast.expr) -> list[ast.expr]:
    """The operands of the ``and`` at the top, however nested."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [part for value in tree.values for part in conjuncts(value)]
    return [tree]


CONTESTANTS: Mapping[str, Callable[[Space], Callable[[], int]]] = {
    "autotune count": autotune_count,
    "autotune list": autotune_list,
    "Kernel Tuner": kernel_tuner,
    "pyATF": pyatf,
}


def spent(run: Callable[[], int], repeats: int) -> float:
    """Processor seconds of one of several runs."""
    gc.collect()
    started = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - started) / repeats


def race(space: Space, rounds: int) -> tuple[int, dict[str, Times]]:
    """The number of configurations, and what counting or listing them cost everybody.

    Raises:
        SystemExit: they do not agree on the number.
    """
    runs = {name: prepare(space) for name, prepare in CONTESTANTS.items()}
    counts = {name: run() for name, run in runs.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"{space.name}: the numbers of configurations differ: {counts}")
    repeats = {
        name: max(1, round(LEAST_S / max(spent(run, 1), 1e-6))) for name, run in runs.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(spent(run, repeats[name]) * 1e3)
    times = {
        name: Times(statistics.median(each), min(each), max(each))
        for name, each in samples.items()
    }
    return counts["autotune count"], times


def large_autotune(number: int) -> None:
    """Count and sample a large space, in a process of its own."""
    import numpy as np

    imported = peak_mib()
    started = time.perf_counter()
    space = SearchSpace(LARGE[number].parameters, LARGE[number].restrictions)
    size = space.size
    counted = time.perf_counter()
    rows = space.sample(10_000, np.random.default_rng(0))
    codes = space.codes(rows)
    ended = time.perf_counter()
    assert codes.shape == (10_000, len(space.parameters))
    assert all(space.index(space[int(row)]) == row for row in rows[:100])
    report(
        size=size,
        cartesian=space.cartesian,
        count_s=counted - started,
        sample_s=ended - counted,
        imported_mib=imported,
        peak_mib=peak_mib(),
    )


def large_pyatf(number: int) -> None:
    """Count a large space with pyATF, in a process of its own."""
    run = pyatf(LARGE[number])
    imported = peak_mib()
    started = time.perf_counter()
    size = run()
    count_s = time.perf_counter() - started
    report(size=size, count_s=count_s, imported_mib=imported, peak_mib=peak_mib())


def peak_mib() -> float:
    """The process' largest resident size so far, in MiB.

    Read from the kernel: what `getrusage` says includes the process that started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def report(**figures: float) -> None:
    """Hand figures to the process that started this one."""
    print(json.dumps(figures))


def apart(task: str, number: int) -> dict[str, float] | None:
    """What a task reports from its own process; None when it takes too long."""
    command = [sys.executable, __file__, "--task", task, str(number)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=LARGE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


TASKS = {"autotune": large_autotune, "pyatf": large_pyatf}


def versions() -> str:
    """The software that takes part."""
    packages = ("numpy", "kernel_tuner", "python-constraint2", "pyatf")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def print_race(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of milliseconds, and one of ratios."""
    print(
        "| space | cartesian | valid | " + " | ".join(f"{name}, ms" for name in CONTESTANTS) + " |"
    )
    print("|---" * (3 + len(CONTESTANTS)) + "|")
    for row in rows:
        times = " | ".join(str(row["times"][name]) for name in CONTESTANTS)
        print(f"| {row['name']} | {row['cartesian']:,} | {row['valid']:,} | {times} |")
    print("\nHow many times as long, by the medians:\n")
    print(
        "| space | Kernel Tuner / autotune count | Kernel Tuner / autotune list "
        "| pyATF / autotune count |"
    )
    print("|---|---|---|---|")
    for row in rows:
        ours = row["times"]["autotune count"].median, row["times"]["autotune list"].median
        tuner, tree = row["times"]["Kernel Tuner"].median, row["times"]["pyATF"].median
        print(
            f"| {row['name']} | {tuner / ours[0]:,.1f} | {tuner / ours[1]:,.1f} "
            f"| {tree / ours[0]:,.1f} |"
        )


def print_large(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of seconds and memory."""
    counting = ["space", "cartesian", "valid", "autotune count", "10,000 samples", "peak"]
    heads = [*counting, "pyATF count", "peak"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for row in rows:
        ours, tree = row["autotune"], row["pyatf"]
        cells = [
            row["name"],
            f"{ours['cartesian']:,}",
            f"{ours['size']:,}",
            f"{ours['count_s']:.3f} s",
            f"{ours['sample_s']:.3f} s",
            f"{ours['peak_mib']:.0f} MiB",
            f"{tree['count_s']:.3f} s" if tree else f"not within {LARGE_TIMEOUT_S} s",
            f"{tree['peak_mib']:.0f} MiB" if tree else "",
        ]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of space files")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        TASKS[args.task[0]](int(args.task[1]))
        return
    files = sorted(args.data.glob("*.json")) if args.data else []
    if args.data and not files:
        parser.error(f"--data {args.data}: no space files (*.json) there")
    races = []
    for path in files:
        space = read(path)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the code that Kernel Tuner writes
            valid, times = race(copy.deepcopy(space), args.rounds)
        cartesian = json.loads(path.read_text(encoding="utf-8"))["cartesian"]
        races.append({"name": space.name, "cartesian": cartesian, "valid": valid, "times": times})
        print(f"{space.name}: {valid:,} valid", file=sys.stderr)
    races.sort(key=lambda row: row["times"]["Kernel Tuner"].median)
    large = []
    for number, space in enumerate(LARGE):
        figures = {task: apart(task, number) for task in TASKS}
        if len({each["size"] for each in figures.values() if each}) != 1:
            raise SystemExit(f"{space.name}: the numbers of configurations differ: {figures}")
        large.append({"name": space.name, **figures})
    if args.json:
        plain = [
            row | {"times": {name: asdict(each) for name, each in row["times"].items()}}
            for row in races
        ]
        environment = [*describe().splitlines(), f"- versions: {versions()}"]
        print(json.dumps({"environment": environment, "spaces": plain, "large": large}, indent=2))
        return
    print(describe())
    if files:
        print(describe_files(files))
    print(f"- versions: {versions()}")
    print(
        f"- processor time, median of {args.rounds} interleaved rounds (least to most), from "
        f"scratch; everybody's product of block sizes is at most {MAX_THREADS}, which Kernel "
        "Tuner adds by itself\n"
        "- autotune and Kernel Tuner start from text, pyATF from compiled Python functions; "
        "autotune's count and pyATF's tree list no configurations, the others all\n"
    )
    if races:
        print_race(races)
        print()
    print("Spaces too large to list, wall time and peak resident size in fresh processes:\n")
    print_large(large)


if __name__ == "__main__":
    main()
