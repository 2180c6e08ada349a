"""The roofline: what a kernel's rate could be at most, as far as anything measured or known says.

A point's intensity is the problem's: operations of the textbook algorithm per byte of operands,
each moved once. What a kernel really moves is not measured, and no roof is drawn that nothing is
known of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.reporting import charts, facts
from autotune.reporting.charts import layer, of_names, powers, quantity, tooltip
from autotune.reporting.layout import Spec
from autotune.reporting.study import Study

# Fused multiply-adds per cycle and multiprocessor for ordinary arithmetic, by compute capability:
# from the table of arithmetic throughput in NVIDIA's CUDA C++ Programming Guide.
_FMA_FLOAT32 = {70: 64, 75: 64, 80: 64, 86: 128, 87: 128, 89: 128, 90: 128}
_FMA_FLOAT64 = {70: 32, 75: 2, 80: 64, 86: 2, 87: 2, 89: 2, 90: 128}  # by tensor cores, if faster

_WIDER = 4.0
"""The factor by which the axis reaches beyond the intensities there are."""


@dataclass(frozen=True, slots=True)
class Roof:
    """One limit, named by where the number comes from: flat in GFLOP/s, or slanted in GB/s."""

    name: str
    gflops: float | None = None
    gbytes: float | None = None

    def at(self, intensity: float) -> float:
        """GFLOP/s at most, with so many operations per byte."""
        return self.gflops if self.gflops is not None else (self.gbytes or 0.0) * intensity


def intensity(study: Study) -> float | None:
    """Operations per byte; None where the problem is not known."""
    if study.problem is None or study.flops is None:
        return None
    return study.flops / study.problem.traffic


def roofs(studies: Sequence[Study]) -> list[Roof]:
    """Roofs of studies of one device, and their names say where they come from."""
    found = list(dict.fromkeys(peak for study in studies if (peak := _peak(study)) is not None))
    rates: list[float] = []
    bandwidths: dict[float, float] = {}  # by intensity
    for study in studies:
        at = intensity(study)
        if study.ranked and at is not None and study.problem is not None:
            best_s = study.ranked[0].value or 1.0
            rates.append(study.rate(best_s) or 0.0)
            moved = study.problem.traffic / best_s / 1e9
            bandwidths[at] = max(moved, bandwidths.get(at, 0.0))
        baseline = None if study.record is None else study.record.baseline
        if baseline is not None and (library := study.rate(baseline.median_s)) is not None:
            found.append(Roof(f"{baseline.name}: {library:,.1f} GFLOP/s", library))
    if rates:
        found.append(Roof(f"fastest measured: {max(rates):,.1f} GFLOP/s", max(rates)))
    # With points at one intensity it would pass through the fastest of them and say nothing.
    if len(bandwidths) > 1:
        most = max(bandwidths.values())
        found.append(Roof(f"most operand bytes moved: {most:,.1f} GB/s", gbytes=most))
    return list({(roof.gflops, roof.gbytes): roof for roof in found}.values())


def _peak(study: Study) -> Roof | None:
    """The limit of a GPU's arithmetic, where its multiprocessors and clock were recorded."""
    limits, problem = study.noted("limits"), study.problem
    if problem is None or problem.accuracy != "ieee":
        return None
    table = {"float32": _FMA_FLOAT32, "float64": _FMA_FLOAT64}.get(problem.dtype, {})
    count = limits.get("multiprocessor_count")
    lanes = table.get(limits.get("compute_capability", 0))
    clock = str(study.noted("state").get("max_sm_clock_mhz", ""))
    if not isinstance(count, int) or lanes is None or not clock.isdecimal():
        return None
    gflops = 2 * count * lanes * int(clock) / 1e3
    words = f"peak: {count} multiprocessors x {lanes} FMA x {clock} MHz = {gflops:,.0f} GFLOP/s"
    return Roof(words, gflops)


def chart(studies: Sequence[Study]) -> Spec:
    """Rates of studies of known problems over their intensities; both axes logarithmic."""
    places = [at for study in studies if (at := intensity(study)) is not None]
    points = [point for study in studies for point in _points(study)]
    marked = charts.stored_rows(
        studies, lambda study, _: intensity(study), lambda study, value: study.rate(value) or 0.0
    )
    found = roofs(studies)
    rates = [float(point["y"]) for point in (*points, *marked)]
    rates += [roof.gflops for roof in found if roof.gflops is not None]
    low, high = min(places) / _WIDER, max(places) * _WIDER
    bottom, top = min(rates) / 1.5, max(rates) * 1.8
    flat = [_ends(roof, low, high) for roof in found if roof.gbytes is None]
    slanted = [  # from the axis to the highest flat one
        _ends(roof, max(low, bottom / roof.gbytes), min(high, max(rates) / roof.gbytes))
        for roof in found
        if roof.gbytes is not None
    ]
    x = _axis("x", "FLOP per byte of operands", low, high)
    y = _axis("y", "GFLOP/s", bottom, top)
    axes: Spec = {"x": x, "y": y}
    name = {"field": "n", "type": "nominal"}
    text = {"type": "text", "baseline": "bottom", "limit": 420}
    lines = [end for ends in (*flat, *slanted) for end in ends]
    told = tooltip(s="study", y="GFLOP/s", o="outcome", c="configuration")
    color = of_names([study.name for study in studies])
    dot = {"type": "point", "size": 28, "opacity": 0.6, "aria": False}
    left, right = ({"align": "left", "dx": 4, "dy": -4}, {"align": "right", "dx": -10, "dy": 4})
    rule = {"type": "line", "strokeWidth": 1.5, "style": "interval"}
    return {
        "layer": [
            layer(lines, rule, **axes, detail=name),
            layer((start for start, _ in flat), text | left, **axes, text=name),
            layer((end for _, end in slanted), text | right, **axes, text=name),
            layer(points, dot, **axes, color=color, tooltip=told),
            *charts.stored_layers(marked, x, y, "GFLOP/s"),
        ],
        "height": 380,
    }


def _points(study: Study) -> list[dict[str, Any]]:
    at = intensity(study)
    if at is None:
        return []
    same = {"s": study.name, "x": float(f"{at:.5g}")}
    return [
        same
        | {"y": float(f"{study.rate(trial.value or 1.0):.5g}"), "o": trial.outcome}
        | {"c": str(trial)}
        for trial in facts.sample(study.timed, charts.MOST_DRAWN)
    ]


def _ends(roof: Roof, *across: float) -> list[dict[str, Any]]:
    return [{"n": roof.name, "x": at, "y": roof.at(at)} for at in across]


def _axis(name: str, title: str, low: float, high: float) -> Spec:
    scale = {"type": "log", "domain": [low, high], "nice": False}
    axis = {"format": ",~r", "values": powers(low, high)}
    return quantity(name, title, scale=scale, axis=axis)
