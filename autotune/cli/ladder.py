"""Measuring a list of kernels beside the vendor library: those near it in turns with it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, SpaceError
from autotune.core.interrupt import Interrupt
from autotune.measuring.evaluator import Effort, relative_speed
from autotune.measuring.processes import Failure

if TYPE_CHECKING:
    from autotune.core.device import DeviceLimits
    from autotune.core.measurement import Measurement
    from autotune.families.family import KernelFamily
    from autotune.measuring.evaluator import Baseline, Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.reports import HostCall, HostCalls

NEAR = 4.0
"""Kernels up to this many times slower than the fastest take turns with the vendor library. Of the
others one measurement says enough, and turns would take minutes."""

EFFORT = Effort(budget_s=0.15, timeout_s=60.0, finals_s=6.0)
"""There are many kernels, and the slowest take seconds a call."""

Note = Callable[[str], None]
"""Shows one line of progress."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one problem.

    Attributes:
        problem: what is multiplied.
        kernel: its name, for people.
        median_s: median time of one call, in seconds; None where it failed.
        ratio_to_vendor: speed relative to the vendor library; None where there is none.
        error: largest error relative to what is allowed; None for the vendor library.
        reason: why there is no median.
        host: the whole call from host arrays to host result; None where that was not measured.
    """

    problem: Problem
    kernel: str
    median_s: float | None
    ratio_to_vendor: float | None
    error: float | None
    reason: str = ""
    host: HostCall | None = None

    @property
    def gflops(self) -> float | None:
        """Textbook operations in 10^9 per second."""
        return None if self.median_s is None else self.problem.flops / self.median_s / 1e9

    def document(self) -> dict[str, Any]:
        """The row as JSON-able values."""
        return {
            "problem": self.problem.key(),
            "kernel": self.kernel,
            "median_s": self.median_s,
            "gflops": self.gflops,
            "ratio_to_vendor": self.ratio_to_vendor,
            "error": self.error,
            "reason": self.reason,
            "host_cold_s": None if self.host is None else self.host.cold_s,
            "host_warm_s": None if self.host is None else self.host.warm_s,
            "host_context_s": None if self.host is None else self.host.context_s,
        }


Contestant = tuple[str, Candidate]
"""A name for people, and the kernel."""


def rungs(
    families: Mapping[str, KernelFamily], problem: Problem, limits: DeviceLimits
) -> Iterator[Contestant]:
    """Every family's presets and its default, each configuration once."""
    for name, family in families.items():
        seen = set()
        space = family.space(problem, limits)
        for preset in family.presets.values():
            configuration = preset.placed(space)
            seen.add(configuration)
            yield f"{name} ({preset.name})", Candidate(name, configuration)
        try:
            default = family.default(problem, limits)
        except SpaceError:
            continue  # its presets, if any, say what stands in the way
        if default not in seen:
            yield f"{name} (default)", Candidate(name, default)


def measure(
    evaluator: Evaluator, problem: Problem, contestants: Sequence[Contestant], note: Note
) -> list[Row]:
    """Verify and time every kernel; the vendor library, if there is one, is the first row.

    After a request to stop there are rows of what has been measured until then.
    """
    measurements: list[Measurement] = []
    baseline, finals = None, None
    evaluator.deadline = Deadline()
    with (
        Interrupt(evaluator.deadline, "measuring those tried so far once more") as interrupt,
        contextlib.suppress(OutOfTimeError),
    ):
        with contextlib.suppress(OutOfTimeError):
            evaluator.prepare([candidate for _, candidate in contestants])
            for number, (name, candidate) in enumerate(contestants, start=1):
                if interrupt.requested:
                    break
                measurements.append(evaluator.evaluate(candidate, None))
                note(f"{number}/{len(contestants)} {name}: {_brief(measurements[-1])}")
        evaluator.deadline.reserve_s = 0.0
        baseline = evaluator.baseline()
        near = _near(measurements, baseline)
        finals = evaluator.finals([contestants[each][1] for each in near]) if near else None
    contestants = contestants[: len(measurements)]
    if finals is not None:
        baseline = finals.baseline or baseline
    ratios = [relative_speed(each, baseline) for each in measurements]
    if finals is not None:
        for position, measurement, ratio in zip(
            near, finals.measurements, finals.ratios, strict=True
        ):
            measurements[position], ratios[position] = measurement, ratio
    rows = []
    if baseline is not None:
        rows.append(Row(problem, baseline.name, baseline.median_s, 1.0, None))
    for (name, _), measurement, ratio in zip(contestants, measurements, ratios, strict=True):
        rows.append(
            Row(
                problem,
                name,
                measurement.median_s if measurement.ok else None,
                ratio,
                measurement.error,
                measurement.reason,
            )
        )
    return rows


def measure_host_calls(
    rows: Sequence[Row],
    contestants: Sequence[Contestant],
    families: Mapping[str, KernelFamily],
    timer: HostCalls,
    note: Note,
) -> list[Row]:
    """The rows with the whole call from host arrays to host result, for kernels that ran."""
    by_name = dict(contestants)
    measured = []
    with timer as calls:
        for number, row in enumerate(rows, start=1):
            if row.median_s is None:
                measured.append(row)
                continue
            candidate = by_name.get(row.kernel)
            if candidate is None:
                timed = calls.vendor()
            else:
                timed = calls.kernel(families[candidate.family], candidate.configuration)
            if isinstance(timed, Failure):
                note(f"{number}/{len(rows)} {row.kernel} from host to host: {timed.reason}")
                measured.append(row)
            else:
                measured.append(replace(row, host=timed))
    return measured


def to_stderr(line: str) -> None:
    """A `Note` for people who wait."""
    print(line, file=sys.stderr, flush=True)


def _near(measurements: Sequence[Measurement], baseline: Baseline | None) -> list[int]:
    """Positions of the kernels that take turns with the vendor library, or with the best."""
    medians = {
        position: measurement.median_s
        for position, measurement in enumerate(measurements)
        if measurement.ok and measurement.median_s is not None
    }
    yardstick = min([*medians.values(), *([baseline.median_s] if baseline else [])], default=0.0)
    return [position for position, median in medians.items() if median <= NEAR * yardstick]


def _brief(measurement: Measurement) -> str:
    if measurement.median_s is None:
        return f"{measurement.outcome}: {measurement.reason}"
    return f"{measurement.median_s * 1e3:.4g} ms"
