"""Elements of a page: sections of words, figures, tables, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from autotune.reporting.study import Study

_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def time_text(seconds: float) -> str:
    """A short time: "1.234 ms"."""
    unit, scale = _unit(seconds)
    return f"{seconds / scale:.4g} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    """The largest unit that a time has one of, and its seconds."""
    return next((unit for unit in _TIMES if seconds >= unit[1]), _TIMES[-1])


def duration_text(seconds: float) -> str:
    """A long time: "1 h 5 min", "12.3 s"."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rate_text(gflops: float) -> str:
    """A rate: "218.4 GFLOP/s"."""
    return f"{gflops:,.1f} GFLOP/s" if gflops >= 1 else f"{gflops:.3g} GFLOP/s"


def value_text(study: Study, value: float) -> str:
    """The value of a trial, with its unit if there is one."""
    return time_text(value) if study.unit == "s" else f"{value:.5g}"


def percent_text(share: float) -> str:
    """A share: "12.3 %"."""
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, slots=True)
class Measure:
    """The quantity that charts show of a trial.

    Attributes:
        label: with its unit, for axes.
        is_rate: it is GFLOP/s, and more is better; else it is what a call took.
        scale: from the studies' unit to the one shown.
    """

    label: str
    is_rate: bool
    scale: float = 1.0

    @classmethod
    def of(cls, studies: Sequence[Study]) -> Measure:
        """GFLOP/s if all studies are of known problems, else the time."""
        if all(study.flops is not None for study in studies):
            return cls("GFLOP/s", True)
        if any(study.unit != "s" for study in studies):
            return cls("value (smaller is better)", False)
        best = [study.ranked[0].value or 1.0 for study in studies if study.ranked]
        unit, scale = _unit(min(best, default=1.0))
        return cls(f"time of a call ({unit})", False, 1 / scale)

    def at(self, study: Study, value: float) -> float:
        """The number shown of a trial that took `value`."""
        if not self.is_rate:
            return float(f"{value * self.scale:.6g}")
        rate = study.rate(value)
        assert rate is not None  # or it would be no rate
        return float(f"{rate:.6g}")


Spec: TypeAlias = dict[str, Any]
"""A chart as Vega-Lite has it, or a part of one."""

UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table, and the number its column is sorted by; None sorts by the text."""

    text: str
    order: float | None = None


def cell(value: float | None, text: Callable[[float], str] | str = ",") -> Cell:
    """A number by a function, or a format, that makes it text; a dash for None."""
    if value is None:
        return Cell(UNKNOWN)
    return Cell(format(value, text) if isinstance(text, str) else text(value), value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns can be sorted; those named by `numeric` are aligned right."""

    id: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    numeric: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, with the table that says the same.

    Attributes:
        id: unique on the page.
        title: over the chart.
        description: what it shows, for who does not see it.
        variants: specifications by name, the first one shown first; chosen on the page.
        table: the same in numbers; its rows may be the page's to fill in.
        choice: what the variants differ in.
        controls: the page's own controls that it has: "study", "x", "y", "share".
        note: under the chart.
    """

    id: str
    title: str
    description: str
    variants: Sequence[tuple[str, Spec]]
    table: Table
    choice: str = ""
    controls: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A study at a glance: a large number, lines of label and text, and a badge of warning."""

    title: str
    figure: str
    unit: str
    lines: Sequence[tuple[str, str]]
    badge: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with its own place in the navigation; `text` has paragraphs."""

    id: str
    title: str
    text: Sequence[str] = ()
    cards: Sequence[Card] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; `explored` is the data of figures with controls, for the page's script."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    explored: dict[str, Any] = field(default_factory=dict)
    foot: str = ""

    @property
    def tables(self) -> list[Table]:
        """All tables, in their order: those of a section's figures first."""
        return [
            table
            for section in self.sections
            for table in (*(figure.table for figure in section.figures), *section.tables)
        ]


def without_column(section: Section, name: str) -> Section:
    """The section, its tables without a column."""

    def less(table: Table) -> Table:
        kept = [at for at, title in enumerate(table.header) if title != name]
        rows = [[row[at] for at in kept] for row in table.rows]
        return replace(table, header=[table.header[at] for at in kept], rows=rows)

    figures = [replace(figure, table=less(figure.table)) for figure in section.figures]
    return replace(section, figures=figures, tables=[less(table) for table in section.tables])
