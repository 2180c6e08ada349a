"""Rows of shapes as Markdown: by kind, the slowest of them explained, before and after."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from shape_draws import KINDS
from shape_rows import Header, Row

BOTTOM = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """Ratios of some shapes."""

    count: int
    mean: float
    quartiles: tuple[float, float, float]
    least: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Self:
        """Geometric mean, quartiles and least of at least one ratio."""
        ordered = sorted(ratios)
        mean = math.exp(math.fsum(map(math.log, ordered)) / len(ordered))
        lower, middle, upper = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
        return cls(len(ordered), mean, (lower, middle, upper), ordered[0])

    def cells(self) -> tuple[str, ...]:
        """For a table."""
        quartiles = ", ".join(f"{each:.2f}" for each in self.quartiles)
        return f"{self.count}", f"**{self.mean:.2f}**", quartiles, f"{self.least:.2f}"


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of the ordered values, as NumPy has it."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


_SUMMARY = ("shapes", "geometric mean", "quartiles", "least")


def by_kind(rows: Sequence[Row], ratio: Callable[[Row], float | None]) -> str:
    """A line for each kind of shape, one for those odd in all sizes, and one for all.

    Args:
        rows: what was measured.
        ratio: of a row; None leaves it out.
    """
    told = [(row.shape, value) for row in rows if (value := ratio(row)) is not None]
    groups = {kind: [value for shape, value in told if shape.kind == kind] for kind in KINDS}
    groups["odd in all sizes (of any kind)"] = [value for shape, value in told if shape.odd]
    groups["**all**"] = [value for _, value in told]
    lines = [(name, *Summary.of(ratios).cells()) for name, ratios in groups.items() if ratios]
    return markdown(("kind", *_SUMMARY), lines)


def slowest(rows: Sequence[Row], count: int = BOTTOM) -> str:
    """The shapes with the least ratios, and what serves them."""
    told = [row for row in rows if row.ratio is not None and row.served is not None]
    lines = []
    for row in sorted(told, key=_ratio)[:count]:
        assert row.ratio is not None
        assert row.served is not None
        served = row.served
        lines.append(
            (
                f"{row.shape}",
                row.shape.kind + (", odd" if row.shape.odd else ""),
                f"{row.seconds * 1e6:.1f}",
                f"{row.peers[row.peer] * 1e6:.1f} ({row.peer})",
                f"**{row.ratio}**",
                served.match,
                f"{served.family}: {served.configuration}",
                "; ".join(filter(None, (served.launch, served.reason))),
            )
        )
    header = ("shape", "kind", "µs", "peer µs", "ratio", "match", "kernel", "explanation")
    return markdown(header, lines)


def tuned_table(rows: Sequence[Row]) -> str:
    """Shapes that were tuned as well: both kernels beside the peer and beside each other."""
    lines = [
        (
            f"{row.shape}",
            row.shape.kind + (", odd" if row.shape.odd else ""),
            f"{row.ratio}",
            f"**{row.tuned.ratio}**",
            f"{row.tuned.reached}",
            f"{row.served.family if row.served else ''}",
            f"{row.tuned.served.family}: {row.tuned.served.configuration}",
        )
        for row in rows
        if row.tuned is not None
    ]
    header = ("shape", "kind", "untuned", "tuned", "untuned of tuned", "served by", "tuned kernel")
    return markdown(header, lines)


def copy_table(rows: Sequence[Row]) -> str:
    """Shapes that memory limits, beside copying on a GPU and reading on a CPU."""
    lines = [
        (
            f"{row.shape}",
            row.shape.kind,
            f"{row.bytes / row.seconds / 1e9:.0f}",
            f"**{100 * row.copy_share:.0f}%**",
            f"{row.ratio}",
            row.served.family if row.served else "",
        )
        for row in sorted(rows, key=lambda row: row.copy_share or 0)
        if row.copy_share is not None
    ]
    return markdown(("shape", "kind", "GB/s", "of the memory's", "ratio", "kernel"), lines)


def squares_table(rows: Sequence[Row]) -> str:
    """Shapes whose energy was measured."""
    lines = [
        (
            f"{row.shape}",
            f"{row.rate / 1e12:.2f}",
            f"**{row.ratio}**",
            "" if row.sustained is None else f"{row.sustained:.3f}",
            f"{row.joules[0]:.4g}",
            f"{row.joules[1]:.4g}",
            f"{row.joules[1] / row.joules[0]:.2f}",
            row.served.family if row.served else "",
        )
        for row in rows
        if row.joules is not None
    ]
    numbers = ("TFLOP/s", "ratio", "sustained", "joules", "peer's", "peer's / ours")
    header = ("shape", *numbers, "kernel")
    return markdown(header, lines)


def accuracy(rows: Sequence[Row]) -> str:
    """Errors of results, ours and the peer's, and how many times the peer's ours are."""
    pairs = [
        (row.served.error, row.peer_error)
        for row in rows
        if row.served is not None and row.peer_error is not None
    ]
    columns = {
        "ours": [ours for ours, _ in pairs],
        "the peer's": [theirs for _, theirs in pairs],
        "ours / the peer's": [ours / theirs for ours, theirs in pairs if theirs > 0],
    }
    lines = []
    for name, values in columns.items():
        if values:
            ordered = sorted(values)
            places = (_quantile(ordered, share) for share in (0.5, 0.9, 1.0))
            lines.append((name, *(f"{each:.3g}" for each in places)))
    return markdown(("largest error of sampled rows", "median", "90% below", "most"), lines)


def compared(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Ratios of two runs by kind, over the shapes that both have, and what changed most."""
    old = {(row.shape, row.dtype): row.ratio for row in before}
    both = [row for row in after if row.ratio and old.get((row.shape, row.dtype))]

    def was(row: Row) -> float | None:
        ratio = old[row.shape, row.dtype]
        return None if ratio is None else ratio.median

    changes = sorted(both, key=lambda row: _ratio(row) / (was(row) or math.inf))
    worst = [
        (f"{row.shape}", f"{was(row):.2f}", f"{_ratio(row):.2f}")
        for row in changes[:BOTTOM]
        if _ratio(row) < (was(row) or 0)
    ]
    parts = [
        f"Before ({len(both)} shapes in both runs):\n\n{by_kind(both, was)}",
        f"After:\n\n{by_kind(both, _ratio)}",
    ]
    if worst:
        parts.append(f"Slower than before:\n\n{markdown(('shape', 'before', 'after'), worst)}")
    return "\n\n".join(parts)


def report(headers: Sequence[Header], rows: Sequence[Row]) -> str:
    """All that there is to say of some runs, one dtype after the other."""
    parts = ["\n".join(header.text) for header in headers]
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    for dtype in dtypes:
        parts += [f"## {dtype}"] * (len(dtypes) > 1)
        parts += _sections([row for row in rows if row.dtype == dtype])
    return "\n\n".join(parts)


def _sections(rows: Sequence[Row]) -> list[str]:
    """What there is to say of the rows of one dtype."""
    parts = []
    squares = [row for row in rows if row.joules is not None]
    drawn = [row for row in rows if row.joules is None]
    good = [row for row in drawn if row.ratio is not None]
    matches: dict[str, list[Row]] = {}
    for row in good:
        if row.served is not None:
            matches.setdefault(row.served.match, []).append(row)
    if good:
        told = ", ".join(f"{match} {len(those)}" for match, those in sorted(matches.items()))
        ready = sorted(row.served.ready_s for row in good if row.served is not None)
        soon, late = _quantile(ready, 0.5) * 1e3, ready[-1] * 1e3
        told += f". Until a kernel was ready: {soon:.3g} ms in the median, {late:.3g} ms at most"
        parts.append(f"### By kind\n\n{by_kind(good, _ratio)}\n\nServed by: {told}.")
        parts.append(f"### The slowest beside the peer\n\n{slowest(good)}")
    tuned = [row for row in good if row.tuned is not None]
    if tuned:
        parts.append(
            f"### Tuned\n\nTuned beside the peer:\n\n{by_kind(tuned, _tuned)}\n\n"
            f"Untuned, of the tuned kernel's speed:\n\n{by_kind(tuned, _reached)}\n\n"
            f"{tuned_table(tuned)}"
        )
    if any(row.peer_error is not None for row in good):
        parts.append(
            "### Accuracy\n\nErrors against float64, as shares of what the accuracy class allows:"
            f"\n\n{accuracy(good)}"
        )
    if any(row.copy_share is not None for row in good):
        parts.append(f"### Limited by memory\n\n{copy_table(good)}")
    if squares:
        parts.append(f"### Squares\n\n{squares_table(squares)}")
    failed = [(f"{row.shape}", row.failure) for row in rows if row.failure]
    if failed:
        parts.append(f"### Failed\n\n{markdown(('shape', 'failure'), failed)}")
    return parts


def _ratio(row: Row) -> float:
    return math.nan if row.ratio is None else row.ratio.median


def _tuned(row: Row) -> float | None:
    return None if row.tuned is None else row.tuned.ratio.median


def _reached(row: Row) -> float | None:
    return None if row.tuned is None else row.tuned.reached.median
