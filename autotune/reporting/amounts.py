"""Numbers as people read them, and the one measure that all studies of a report are drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
