"""Ratios of shapes against their work, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shape_draws import KINDS
from shape_rows import Row

COLOURS = ("#d62728", "#ff7f0e", "#bcbd22", "#9467bd", "#1f77b4", "#7f7f7f")


def scatter(path: Path, title: str, runs: Sequence[tuple[str, Sequence[Row]]]) -> None:
    """Draw each run in a panel: a point for every shape, filled where its sizes are all odd.

    Args:
        path: PNG or SVG.
        title: machine, date and commit.
        runs: their names, and what was measured.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figure, panels = pyplot.subplots(
        1,
        len(runs),
        figsize=(7.5 * len(runs), 4.8),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axes, (name, rows) in zip(panels[0], runs, strict=True):
        for kind, colour in zip(KINDS, COLOURS, strict=True):
            told = [row for row in rows if row.shape.kind == kind and row.ratio is not None]
            for odd, face in ((False, "none"), (True, colour)):
                points = [row for row in told if row.shape.odd == odd]
                axes.scatter(
                    [row.shape.work for row in points],
                    [row.ratio.median for row in points if row.ratio is not None],
                    s=22,
                    edgecolors=colour,
                    facecolors=face,
                    linewidths=1.2,
                    label=kind if odd else None,
                )
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.yaxis,):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.tick_params(which="minor", labelsize="x-small")
        axes.set_xlabel("M x N x K (products)")
        axes.set_ylabel("speed relative to the fastest peer")
        axes.set_title(name, fontsize="medium")
        axes.grid(visible=True, which="major", linewidth=0.3)
        axes.legend(fontsize="small", title="filled: odd sizes", title_fontsize="small")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
