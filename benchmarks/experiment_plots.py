"""Pictures of what ``experiments.py`` printed: ``python benchmarks/experiment_plots.py TXT PNG``.

Reads the tables that are kept in ``docs/results/data``: a picture is drawn anew without measuring.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plot_style import COLOURS, QUIET, Bar, bars, canvas, foot_of, legend, save

_ROW = re.compile(
    r"\| (\d+) \| (.+?) \| (\S+) \| ([\d.]+) \[([\d.]+), ([\d.]+)\] "
    r"\| ([\d.]+) \| [\d.]+ \| (.*?) ?\|"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of an experiment's table, with times in ms."""

    size: int
    line: str
    x: str
    ms: Bar
    gflops: float
    note: str

    @property
    def rate(self) -> Bar:
        """GFLOP/s, and its interval."""
        work = self.gflops * self.ms.value
        return Bar(self.gflops, work / self.ms.high, work / self.ms.low)

    def against(self, ms: float) -> Bar:
        """Its speed relative to a call of so many ms, and the interval of that."""
        return Bar(ms / self.ms.value, ms / self.ms.high, ms / self.ms.low)


def read(text: str) -> list[list[Taken]]:
    """The rows of each table that an experiment printed."""
    parts: list[list[Taken]] = []
    for line in text.splitlines():
        if line.startswith("| size |"):
            parts.append([])
        elif found := _ROW.match(line):
            size, what, x, *numbers, note = found.groups()
            middle, low, high, gflops = map(float, numbers)
            parts[-1].append(Taken(int(size), what, x, Bar(middle, low, high), gflops, note))
    return parts


def draw(path: Path, name: str, text: str) -> None:
    """Draw an experiment.

    Args:
        path: PNG or SVG.
        name: of the experiment.
        text: what it printed.
    """
    wanted = ("- date:", "- machine:")
    told = foot_of([line for line in text.splitlines() if line.startswith(wanted)])
    EXPERIMENTS[name](
        path, read(text), [f"{told[1]}; {told[0]}. Lines on bars are 95 % intervals."]
    )


def _loop_orders(path: Path, parts: Sequence[Sequence[Taken]], foot: Sequence[str]) -> None:
    rows = sorted(parts[0], key=lambda row: row.gflops)
    best, worst = rows[-1], rows[0]
    figure, [axes] = canvas(
        f"The same three loops, {best.gflops / worst.gflops:,.0f} times as fast in another order",
        f"GFLOP/s of C = A B by the textbook's loops, float32, {best.size} x {best.size}: "
        "i runs over rows of C, j over\nits columns, k over the sum. Blue: j is innermost, and "
        "walks along rows of B and C, so it is vectorised.",
        foot,
        height=3.9,
    )
    for at, row in enumerate(rows):
        rate = row.rate
        axes.barh(at, rate.value, 0.7, color=COLOURS[0] if row.x.endswith("j") else QUIET)
        axes.errorbar(
            rate.value, at, xerr=[[rate.value - rate.low], [rate.high - rate.value]],
            fmt="none", ecolor="black", elinewidth=1, capsize=2,
        )  # fmt: skip
        axes.annotate(
            f"{rate.value:.1f}", (rate.high, at), xytext=(5, 0), textcoords="offset points",
            va="center", weight="bold",
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [" ".join(row.x) for row in rows])
    axes.set_ylabel("loop order, outermost first")
    axes.set_xlabel("GFLOP/s")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.margins(x=0.08)
    save(figure, path)


_UNROLLED = {
    "partial sums of a dot product": "dot product:\nindependent partial sums",
    "reduction steps of ikj": "order i k j: steps of\nthe sum in one pass",
    "vectors of a row": "vectors of a row\nof C, in memory",
    "vectors kept in registers": "vectors of a row of C,\nkept in registers",
}


def _unrolling(path: Path, parts: Sequence[Sequence[Taken]], foot: Sequence[str]) -> None:
    [rows] = parts
    lines = list(dict.fromkeys(row.line for row in rows))
    copies = list(dict.fromkeys(row.x for row in rows))
    found = {(row.line, row.x): row.rate for row in rows}
    once = copies[0]
    gains = [
        max(each.gflops for each in rows if each.line == line) / found[line, once].value
        for line in lines
    ]
    figure, [axes] = canvas(
        f"Writing a loop out gives up to {max(gains):.1f} times the speed, or nothing",
        f"GFLOP/s of four kernels in float32, {rows[0].size} x {rows[0].size}, by the copies of "
        "the loop's body that are written out.\nA missing bar: the kernel has no such variant.",
        foot,
        width=8.6,
    )
    series = {
        f"{number} {'copy' if number == '1' else 'copies'}": [
            found.get((line, number)) for line in lines
        ]
        for number in copies
    }
    bars(axes, [_UNROLLED.get(line, line) for line in lines], series, ".0f", _SHADES)
    axes.set_ylabel("GFLOP/s")
    legend(axes, len(series))
    save(figure, path)


_SHADES = ("#c9d8f2", "#93b3e6", "#5d8dd8", "#2563c9", "#17417f")
"""Of one colour, for series that are in order."""


def _blocking(path: Path, parts: Sequence[Sequence[Taken]], foot: Sequence[str]) -> None:
    [rows] = parts
    edges = list(dict.fromkeys(row.x for row in rows))
    lines = list(dict.fromkeys(row.line for row in rows))
    found = {(row.line, row.x): row for row in rows}
    fastest = max(rows, key=lambda row: row.gflops)
    title = f"Cache blocks in a simple kernel: {fastest.x} x {fastest.x} are the fastest"
    if fastest.note == "not blocked":
        title = "Cache blocks do not pay in a simple kernel: it is fastest without"

    def name(edge: str) -> str:
        note = found[lines[0], edge].note
        if note == "not blocked":
            return "no blocks"
        return f"{edge} x {edge}\n{note.removeprefix('three blocks fit ')}"

    figure, [axes] = canvas(
        title,
        f"GFLOP/s in float32, {rows[0].size} x {rows[0].size}, by the size of square blocks of A, "
        "B and C.\nBelow each size: the smallest cache that holds three such blocks.",
        foot,
        width=8.6,
    )
    named = {line: line.replace("row in", "row of C in") for line in lines}
    series = {
        named[line]: [found[line, edge].rate if (line, edge) in found else None for edge in edges]
        for line in lines
    }
    bars(axes, [name(edge) for edge in edges], series, ".1f")
    axes.set_ylabel("GFLOP/s")
    legend(axes, len(series))
    save(figure, path)


_COSTS = {
    0: "every row costs the same (matrix product)",
    1: "row i costs i + 1 (triangular matrix product)",
}


def _schedules(path: Path, parts: Sequence[Sequence[Taken]], foot: Sequence[str]) -> None:
    threads = {found[1] for part in parts for row in part
               if (found := re.search(r"(\d+) threads", row.line))}  # fmt: skip
    ratios = [part[0].ms.value / row.ms.value for part in parts for row in part[1:]]
    counts = " and ".join(sorted(threads, key=int))
    figure, panels = canvas(
        f"Sharing rows among {counts} threads: {min(ratios):.2f} to {max(ratios):.2f} times "
        "the speed of one",
        "By how many rows a thread takes at a time. static: rows are dealt out beforehand; "
        "dynamic: a thread that is free takes\nthe next ones; guided: many at first, then fewer. "
        "Grey line: one thread.",
        foot,
        panels=len(parts),
        width=12,
        share_y=True,
    )
    for number, (axes, part) in enumerate(zip(panels, parts, strict=True)):
        one, *rows = part
        chunks = sorted({row.x for row in rows}, key=int)
        lines = list(dict.fromkeys(row.line for row in rows))
        found = {(row.line, row.x): row.against(one.ms.value) for row in rows}
        series = {
            (line if len(threads) > 1 else line.partition(",")[0]): [
                found.get((line, chunk)) for chunk in chunks
            ]
            for line in lines
        }
        shown = (*COLOURS, *_SHADES, *COLOURS, *_SHADES)[: len(series)]
        names = ["even shares" if chunk == "0" else chunk for chunk in chunks]
        bars(axes, names, series, ".2f", shown, size=7.5 if len(series) < 4 else 5)
        axes.axhline(1, color=QUIET, linewidth=1)
        axes.set_title(_COSTS[number], pad=26)
        axes.set_xlabel("rows at a time")
        legend(axes, min(3, len(series)))
    panels[0].set_ylabel("speed, one thread = 1")
    save(figure, path)


def _strassen(path: Path, parts: Sequence[Sequence[Taken]], foot: Sequence[str]) -> None:
    [rows] = parts
    sizes = list(dict.fromkeys(row.size for row in rows))
    lines = list(dict.fromkeys(row.line for row in rows))
    plain = {row.size: row.ms.value for row in rows if row.line == lines[0]}
    found = {(row.line, row.size): row.against(plain[row.size]) for row in rows}
    best = max((row for row in rows if row.line != lines[0]),
               key=lambda row: found[row.line, row.size].value)  # fmt: skip
    gain = found[best.line, best.size].value
    figure, [axes] = canvas(
        f"Strassen's seven products are up to {gain:.2f} times as fast as eight, at {best.size}"
        if gain >= 1.01
        else "Strassen's seven products are not faster than eight up to "
        f"{sizes[-1]} x {sizes[-1]}",
        "Speed by the size of square float32 matrices; the usual product in eight products of "
        "halves (packed panels) = 1.\nStrassen's halves are halved again, down to the size that "
        "the legend says.",
        foot,
        width=9.4,
    )
    series = {
        ("usual product" if line == lines[0] else f"Strassen to {line.rpartition(' ')[2]}"): [
            found.get((line, size)) for size in sizes
        ]
        for line in lines
    }
    bars(axes, [f"{size} x {size}" for size in sizes], series, ".2f", (QUIET, *_SHADES[1:]))
    axes.axhline(1, color=QUIET, linewidth=1)
    axes.set_ylabel("speed, usual product = 1")
    legend(axes, len(series))
    save(figure, path)


EXPERIMENTS: Mapping[str, Callable[[Path, Sequence[Sequence[Taken]], Sequence[str]], None]] = {
    "loop-orders": _loop_orders,
    "unrolling": _unrolling,
    "blocking": _blocking,
    "schedules": _schedules,
    "strassen": _strassen,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("printed", type=Path, help="what experiments.py printed, NAME.txt")
    parser.add_argument("picture", type=Path, help="PNG or SVG")
    args = parser.parse_args()
    draw(args.picture, args.printed.stem, args.printed.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
