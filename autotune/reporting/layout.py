"""What a page is made of: sections of words, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.reporting.drawing import Spec


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: what it shows.
        order: what its column is sorted by; the text itself where that is None.
    """

    text: str
    order: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns can be sorted.

    Attributes:
        id: unique on the page.
        caption: what it is of.
        header: the columns' names.
        rows: a cell for every column; text, or a `Cell` that says how it is sorted.
        numeric: names of the columns that are aligned right.
    """

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
        variants: what it can show, by name, the first one first; chosen on the page.
        choice: what the variants differ in.
        table: the same in numbers; its rows may be the page's to fill in.
        controls: names of the page's own controls that it has: "study", "x", "y", "share".
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
    """A study at a glance: a large number, and what else is to be known first.

    Attributes:
        title: the study's name.
        figure: the number that counts.
        unit: its unit.
        lines: label and text of each line.
        badge: a word of warning beside the number; "" where there is none.
    """

    title: str
    figure: str
    unit: str
    lines: Sequence[tuple[str, str]]
    badge: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with its own place in the navigation.

    Attributes:
        id: unique on the page.
        title: its heading.
        text: paragraphs.
        cards: studies at a glance.
        figures: charts.
        tables: tables of their own.
    """

    id: str
    title: str
    text: Sequence[str] = ()
    cards: Sequence[Card] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report.

    Attributes:
        title: of the page.
        subtitle: what it is about, in a line.
        sections: in order.
        explored: what figures with controls are made of, for the page's script.
        foot: where it came from.
    """

    title: str
    subtitle: str
    sections: Sequence[Section]
    explored: dict[str, Any] = field(default_factory=dict)
    foot: str = ""


def without_column(section: Section, name: str) -> Section:
    """The section with tables that lack a column, where they had it."""

    def less(table: Table) -> Table:
        if name not in table.header:
            return table
        at = table.header.index(name)
        header = [*table.header[:at], *table.header[at + 1 :]]
        return replace(
            table, header=header, rows=[[*row[:at], *row[at + 1 :]] for row in table.rows]
        )

    figures = [replace(figure, table=less(figure.table)) for figure in section.figures]
    return replace(section, figures=figures, tables=[less(table) for table in section.tables])
