"""A static picture of the same charts: progress and importance, for papers and issues."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.core.writing import deliver
from autotune.reporting import charts, facts, space_charts
from autotune.reporting.amounts import Measure
from autotune.reporting.page import subtitle
from autotune.reporting.runtime import converter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.reporting.study import Study

SUFFIXES = (".svg", ".png")
"""Kinds of pictures."""

_WIDTH = 640
_SCALE = 2

_CONFIG: dict[str, Any] = {
    "background": "#ffffff",
    "font": "system-ui, Segoe UI, Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e3e6ea", "domainColor": "#9aa3ad", "tickColor": "#9aa3ad"},
    "range": {"category": ["#2563c9", "#c2570c", "#0f8a6d", "#8b46c0", "#b3261e", "#6b7280"]},
    "style": {"interval": {"color": "#333333"}, "stored": {"color": "#16191d"}},
    "title": {"fontSize": 15, "subtitleFontSize": 12, "subtitleColor": "#565f6b"},
    "axisXQuantitative": {"tickCount": 8},
    "legend": {"orient": "top", "labelLimit": 420},
}


def check_picture(path: Path) -> None:
    """Refuse what is no picture.

    Raises:
        InputError: the file's name says neither SVG nor PNG.
        MissingDependencyError: what draws it is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a picture ends in {' or '.join(SUFFIXES)}, got {path.name!r}")
    converter()


def write_picture(path: Path, studies: Sequence[Study]) -> None:
    """Write the progress curves and the importance of the parameters as SVG or PNG.

    Raises:
        InputError: the file's name says neither.
        AutotuneError: it cannot be written.
        MissingDependencyError: what draws it is not installed.
    """
    check_picture(path)
    measure = Measure.of(studies)
    found = facts.importance_of(studies)
    parts = [("Progress", charts.progress(studies, measure, by_time=False))]
    if any(found.values()):
        parts.append(("Parameter importance", space_charts.importance(found)))
    names = ", ".join(study.name for study in studies)
    spec = {
        "title": {"text": names, "subtitle": subtitle(studies), "anchor": "start", "offset": 14},
        "vconcat": [
            {**copy.deepcopy(each), "title": {"text": title, "anchor": "start"}, "width": _WIDTH}
            for title, each in parts
        ],
        "resolve": {"scale": {"color": "shared"}},
        "config": _CONFIG,
    }
    if path.suffix.lower() == ".svg":
        content: bytes = converter().vegalite_to_svg(spec).encode()
    else:
        content = converter().vegalite_to_png(spec, scale=_SCALE)
    deliver(path, content)
