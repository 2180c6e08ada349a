"""The roofline: what a kernel's rate could be at most, as far as anything measured or known says.

A point's intensity is the problem's: operations of the textbook algorithm per byte of operands,
each moved once. What a kernel really moves is not measured, and no roof is drawn that nothing is
known of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.reporting.study import Study

# Fused multiply-adds per cycle and multiprocessor for ordinary arithmetic, by compute capability:
# from the table of arithmetic throughput in NVIDIA's CUDA C++ Programming Guide.
_FMA_FLOAT32 = {70: 64, 75: 64, 80: 64, 86: 128, 87: 128, 89: 128, 90: 128}
_FMA_FLOAT64 = {70: 32, 75: 2, 80: 64, 86: 2, 87: 2, 89: 2, 90: 128}  # by tensor cores, if faster


@dataclass(frozen=True, slots=True)
class Roof:
    """One limit.

    Attributes:
        name: where the number comes from.
        gflops: of a flat roof; None for a slanted one.
        gbytes: GB/s of a slanted roof; None for a flat one.
    """

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
    found: list[Roof] = []
    for study in studies:
        peak = _peak(study)
        if peak is not None and peak not in found:
            found.append(peak)
    rates: list[float] = []
    bandwidths: dict[float, float] = {}  # by intensity
    for study in studies:
        if study.ranked and study.problem is not None and study.flops is not None:
            best_s = study.ranked[0].value or 1.0
            rates.append(study.flops / best_s / 1e9)
            own = study.problem.traffic / best_s / 1e9
            here = study.flops / study.problem.traffic
            bandwidths[here] = max(own, bandwidths.get(here, 0.0))
        record = study.record
        if record is not None and record.baseline is not None and study.flops is not None:
            library = study.flops / record.baseline.median_s / 1e9
            found.append(Roof(f"{record.baseline.name}: {library:,.1f} GFLOP/s", library))
    if rates:
        found.append(Roof(f"fastest measured: {max(rates):,.1f} GFLOP/s", max(rates)))
    # With points at one intensity it would pass through the fastest of them and say nothing.
    if len(bandwidths) > 1:
        most = max(bandwidths.values())
        found.append(Roof(f"most operand bytes moved: {most:,.1f} GB/s", gbytes=most))
    return list({(roof.gflops, roof.gbytes): roof for roof in found}.values())


def _peak(study: Study) -> Roof | None:
    """What a GPU's arithmetic can do, where its multiprocessors and clock were recorded."""
    limits, state = study.noted("limits"), study.noted("state")
    problem = study.problem
    if problem is None or problem.accuracy != "ieee":
        return None
    table = {"float32": _FMA_FLOAT32, "float64": _FMA_FLOAT64}.get(problem.dtype, {})
    multiprocessors = limits.get("multiprocessor_count")
    lanes = table.get(limits.get("compute_capability", 0))
    clock = str(state.get("max_sm_clock_mhz", ""))
    if not isinstance(multiprocessors, int) or lanes is None or not clock.isdecimal():
        return None
    gflops = 2 * multiprocessors * lanes * int(clock) / 1e3
    name = (
        f"peak: {multiprocessors} multiprocessors x {lanes} FMA x {clock} MHz = "
        f"{gflops:,.0f} GFLOP/s"
    )
    return Roof(name, gflops)
