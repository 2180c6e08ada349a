"""One look for every picture of results: what it says, bars with their values, machine below."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, GRID = "#16191d", "#565f6b", "#e3e6ea"
COLOURS = ("#2563c9", "#c2570c", "#0f8a6d", "#8b46c0", "#b3261e", "#6b7280")
"""Those of reports, in their order."""
QUIET = "#a7b0bb"
"""Of bars that others are compared with."""

_HEAD, _FOOT = 0.72, 0.3  # inches
_DPI = 130


class Bar(NamedTuple):
    """A value, and its 95 % interval."""

    value: float
    low: float
    high: float


def canvas(
    title: str, subtitle: str, foot: Sequence[str], panels: int = 1, width: float = 8.0,
    height: float = 4.6, share_y: bool = False,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure with panels side by side.

    Args:
        title: what the picture shows, as a sentence.
        subtitle: what was measured, and how to read it; may have several lines.
        foot: machine, date and commit, in small print.
        panels: how many.
        width: inches.
        height: inches.
        share_y: whether all panels have the first one's vertical axis.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    mpl.rcParams.update(
        {
            "svg.fonttype": "none",  # text stays text
            "font.family": "sans-serif",
            "font.sans-serif": ["Inter", "Liberation Sans", "Arial", "DejaVu Sans"],
            "font.size": 10,
            "text.color": INK,
            "axes.labelcolor": SOFT,
            "axes.edgecolor": QUIET,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.titlesize": 10.5,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.prop_cycle": mpl.cycler(color=COLOURS),
            "grid.color": GRID,
            "xtick.color": SOFT,
            "ytick.color": SOFT,
            "legend.frameon": False,
            "lines.linewidth": 2,
            "lines.markersize": 5,
        }
    )
    lines = subtitle.splitlines()
    head, small = _HEAD + 0.2 * (len(lines) - 1), _FOOT + 0.17 * (len(foot) - 1)
    figure, axes = pyplot.subplots(
        1, panels, figsize=(width, height), squeeze=False, sharey=share_y
    )
    figure.set_layout_engine(
        "constrained", rect=(0.01, small / height, 0.98, 1 - (head + small) / height)
    )
    at = 0.15 / width
    figure.text(at, 1 - 0.13 / height, title, va="top", size=14, weight="bold")
    below = 1 - 0.43 / height
    figure.text(at, below, subtitle, va="top", size=10, color=SOFT, linespacing=1.35)
    figure.text(at, 0.08 / height, "\n".join(foot), va="bottom", size=8, color=SOFT)
    return figure, list(axes[0])


def save(figure: Figure, path: Path) -> None:
    """Write a picture, whose bytes depend on nothing but what it shows."""
    from matplotlib import pyplot

    suffix = path.suffix.lower()
    metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=_DPI, metadata=metadata)
    pyplot.close(figure)


def bars(
    axes: Axes, names: Sequence[str], series: Mapping[str, Sequence[Bar | None]],
    form: str, colours: Sequence[str] = COLOURS, size: float = 8.5,
) -> None:  # fmt: skip
    """Groups of bars, each with its value above it and its interval.

    Args:
        axes: where.
        names: of the groups.
        series: a bar for each group by the series' name, or None where nothing was measured.
        form: how values are written, like ".1f".
        colours: of the series.
        size: of the values, in points.
    """
    wide = 0.8 / len(series)
    drawings = list(series.values())
    for number, (label, drawn) in enumerate(series.items()):
        known = []
        for at, bar in enumerate(drawn):
            if bar is not None:  # what was not measured takes no room in its group
                own = [place for place, each in enumerate(drawings) if each[at] is not None]
                offset = own.index(number) - (len(own) - 1) / 2
                known.append((at + offset * wide, bar))
        places, values = [at for at, _ in known], [bar.value for _, bar in known]
        error = [[b.value - b.low for _, b in known], [b.high - b.value for _, b in known]]
        axes.bar(places, values, wide * 0.9, label=label, color=colours[number])
        axes.errorbar(places, values, error, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        for at, bar in known:
            axes.annotate(
                f"{bar.value:{form}}", (at, bar.high), xytext=(0, 2), size=size,
                textcoords="offset points", ha="center", va="bottom",
            )  # fmt: skip
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=True, axis="y")
    axes.margins(x=0.02, y=0.12)


def legend(axes: Axes, columns: int) -> None:
    """The names of the series, in a row above a panel."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.2,
        handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip


def foot_of(lines: Sequence[str]) -> list[str]:
    """Small print of what a results page says first: its machine, date and commit."""
    labels = re.compile("^(- )?((machine|date): )?")
    told = [labels.sub("", line) for line in lines]
    return [line for each in told for line in textwrap.wrap(each, 120)]
