"""Ratios of shapes against their work, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from plot_style import COLOURS, SOFT, canvas, save
from shape_draws import KINDS
from shape_rows import Row


def scatter(path: Path, foot: str, runs: Sequence[tuple[str, Sequence[Row]]]) -> None:
    """Draw each run in a panel: a point for every shape, filled where its sizes are all odd.

    Args:
        path: PNG or SVG.
        foot: machine, date and commit, in lines.
        runs: their names, and what was measured.
    """
    ratios = [[row.ratio.median for row in rows if row.ratio is not None] for _, rows in runs]
    last = ratios[-1]
    mean = math.exp(sum(map(math.log, last)) / len(last))
    figure, panels = canvas(
        f"{sum(ratio >= 1 for ratio in last)} of {len(last)} shapes run at least as fast as the "
        f"library; geometric mean {mean:.2f}",
        "Speed relative to the fastest library (1 = equally fast) of products C[M x K] = A[M x N] "
        "B[N x K], by their work.\nA point is a shape: filled where all its sizes are odd, which "
        "alignment does not favour.",
        foot.splitlines(),
        panels=len(runs),
        width=max(9.6, 7.5 * len(runs)),
        height=5.6,
        share_y=True,
    )
    low = min(map(min, ratios)) / 1.1
    high = max(map(max, ratios)) * 1.1
    ticks = [
        at for at in (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 5, 10) if low < at < high
    ]
    for axes, (name, rows) in zip(panels, runs, strict=True):
        for kind, colour in zip(KINDS, COLOURS, strict=True):
            told = [row for row in rows if row.shape.kind == kind and row.ratio is not None]
            for odd, face in ((False, "none"), (True, colour)):
                points = [row for row in told if row.shape.odd == odd]
                axes.scatter(
                    [row.shape.work for row in points],
                    [row.ratio.median for row in points if row.ratio is not None],
                    s=26,
                    edgecolors=colour,
                    facecolors=face,
                    linewidths=1.3,
                    label=kind if odd else None,
                )
        axes.axhline(1.0, color=SOFT, linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.set_yticks(ticks, [f"{at:g}" for at in ticks])
        axes.minorticks_off()
        axes.set_xlabel("multiplications and additions: M x N x K")
        axes.set_title(name, pad=26 if name else 6)
        axes.grid(visible=True)
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(KINDS), borderaxespad=0.2,
            handletextpad=0.2, columnspacing=1.2,
        )  # fmt: skip
    panels[0].set_ylabel("times as fast as the library")
    save(figure, path)
