"""The charts of a space: what matters in it, what pruned it, and what the page explores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.reporting.drawing import Spec, field, of_names, ramp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.reporting.amounts import Measure
    from autotune.reporting.funnel import Funnel
    from autotune.search.importance import Importance

MOST_PARAMETERS = 20
"""Parameters whose importance is shown."""


def importance(found: Mapping[str, Sequence[Importance]]) -> Spec:
    """Shares of importance by study, with their intervals; the most important on top."""
    totals: dict[str, float] = {}
    for each in found.values():
        for one in each:
            totals[one.name] = totals.get(one.name, 0.0) + one.share
    known = sorted(totals, key=lambda name: (-totals[name], name))
    names = [name for name in known if totals[name] > 0][:MOST_PARAMETERS]
    rows = [
        {"s": study, "p": one.name, "v": round(one.share, 4), "a": round(one.low, 4),
         "b": round(one.high, 4)}
        for study, each in found.items()
        for one in each
        if one.name in names
    ]  # fmt: skip
    several = len(found) > 1
    y: Spec = {"field": "p", "type": "nominal", "title": None, "scale": {"domain": names}}
    encoding: Spec = {
        "y": y,
        "tooltip": [
            field("s", "study"),
            field("p", "parameter"),
            field("v", "share", ".1%"),
            field("a", "at least", ".1%"),
            field("b", "at most", ".1%"),
        ],
    }
    if several:
        encoding["yOffset"] = {"field": "s", "type": "nominal", "scale": {"domain": list(found)}}
    x = {"type": "quantitative", "title": "share of the importance", "axis": {"format": "%"}}
    return {
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "bar", "cornerRadiusEnd": 2},
                "encoding": {"x": {**x, "field": "v"}, "color": of_names(list(found))},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "style": "interval"},
                "encoding": {"x": {**x, "field": "a"}, "x2": {"field": "b"}},
            },
        ],
        "encoding": encoding,
        "height": len(names) * (8 + 14 * len(found)),
    }


def funnel(found: Mapping[str, Funnel]) -> Spec:
    """What was left at each stage, on a scale of powers of ten."""
    stages = dict.fromkeys(stage for each in found.values() for stage, _ in each.stages)
    rows = [
        {"s": study, "g": stage, "n": count}
        for study, each in found.items()
        for stage, count in each.stages
    ]
    most = max((row["n"] for row in rows if isinstance(row["n"], int)), default=1)
    ticks = [0, *(10**power for power in range(len(str(most)) + 1))]
    encoding: Spec = {
        "y": {"field": "g", "type": "nominal", "title": None, "scale": {"domain": list(stages)}},
        "x": {
            "field": "n",
            "type": "quantitative",
            "title": "configurations",
            "scale": {"type": "symlog", "domainMin": 0},
            "axis": {"values": ticks, "labelExpr": "format(datum.value, '~s')"},
        },
        "color": of_names(list(found)),
        "tooltip": [field("s", "study"), field("g", "stage"), field("n", "left", ",")],
    }
    if len(found) > 1:
        encoding["yOffset"] = {"field": "s", "type": "nominal", "scale": {"domain": list(found)}}
    return {
        "data": {"values": rows},
        "mark": {"type": "bar", "cornerRadiusEnd": 2},
        "encoding": encoding,
        "height": len(stages) * (10 + 14 * len(found)),
    }


def parallel(measure: Measure) -> Spec:
    """Parallel coordinates; the page fills the rows in: lines, and the values of every axis."""
    x: Spec = {
        "field": "p",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelAngle": -35, "domain": False, "grid": True, "labelLimit": 140},
        "scale": {"padding": 0.2},
    }
    y: Spec = {
        "field": "y",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [-0.04, 1.04], "nice": False},
    }
    return {
        "layer": [
            {
                "data": {"name": "lines"},
                "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.55, "aria": False},
                "encoding": {
                    "x": x,
                    "y": y,
                    "detail": {"field": "n", "type": "nominal"},
                    "color": {
                        "field": "v",
                        "type": "quantitative",
                        "title": measure.label,
                        "scale": ramp(measure),
                        "legend": {
                            "orient": "top",
                            "gradientLength": 220,
                            "gradientOpacity": 1,
                        },
                    },
                },
            },
            {
                "data": {"name": "best"},
                "mark": {"type": "line", "strokeWidth": 3.5, "style": "best"},
                "encoding": {"x": x, "y": y, "detail": {"field": "n", "type": "nominal"}},
            },
            *(
                {
                    "data": {"name": "values"},
                    "mark": {"type": "text", "align": "left", "dx": 6, "aria": False, **style},
                    "encoding": {"x": x, "y": y, "text": {"field": "t", "type": "nominal"}},
                }
                for style in ({"style": "halo"}, {})  # readable on whatever lines
            ),
        ],
        "height": 380,
    }


def heat(measure: Measure) -> Spec:
    """The best of every pair of values of two parameters; the page fills the rows in."""
    axis = {"labelLimit": 120, "labelAngle": 0}
    return {
        "data": {"name": "cells"},
        "encoding": {
            "x": {"field": "x", "type": "nominal", "sort": None, "axis": axis, "title": "x"},
            "y": {"field": "y", "type": "nominal", "sort": None, "axis": axis, "title": "y"},
        },
        "layer": [
            {
                "mark": {"type": "rect"},
                "encoding": {
                    "color": {
                        "field": "v",
                        "type": "quantitative",
                        "title": measure.label,
                        "scale": ramp(measure),
                        "legend": {"orient": "top", "gradientLength": 220},
                    },
                    "tooltip": [
                        field("x", "across"),
                        field("y", "down"),
                        field("v", f"best {measure.label}"),
                        field("k", "trials"),
                    ],
                },
            },
            {
                "transform": [{"filter": "datum.s"}],
                "mark": {"type": "rect", "filled": False, "strokeWidth": 3, "style": "stored"},
            },
            {
                "mark": {"type": "text", "aria": False},
                "encoding": {
                    "text": {"field": "t", "type": "nominal"},
                    "color": {
                        "condition": {"test": "datum.bright", "value": "#111111"},
                        "value": "#ffffff",
                    },
                },
            },
        ],
        "height": 300,
    }
