"""Elements of a page: sections of words, figures and tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

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


def without_column(section: Section, name: str) -> Section:
    """The section, its tables without a column."""

    def less(table: Table) -> Table:
        kept = [at for at, title in enumerate(table.header) if title != name]
        rows = [[row[at] for at in kept] for row in table.rows]
        return replace(table, header=[table.header[at] for at in kept], rows=rows)

    figures = [replace(figure, table=less(figure.table)) for figure in section.figures]
    return replace(section, figures=figures, tables=[less(table) for table in section.tables])
