"""An evaluator's task, the effort it puts into measuring, and the values that it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.objective import TIME, Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.device import Device
    from autotune.core.measurement import Measurement, Series
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem


@dataclass(frozen=True, slots=True)
class Effort:
    """Time and precision of measuring, and the objective.

    Attributes:
        budget_s: seconds of timed calls per trial.
        interval: a trial ends sooner once the median's 95% confidence interval is narrower than
            this fraction of it.
        timeout_s: seconds after which a trial (load, verify, time) is killed.
        compile_timeout_s: seconds after which a compile is killed.
        abandon_ratio: a trial ends after its first runs when they are this much slower than the
            best so far; one that is behind by a fifth of that is timed no further than it takes
            to be sure of it (`autotune.measuring.trial.Race`).
        finals_s: seconds of timed calls for the finalists and the baseline, all together.
        sustained_s: seconds besides for the best of them and the baseline without a pause, where
            they keep a GPU busy for 50 us and more (`autotune.measuring.sustained`); 0 has none.
        objective: candidates are scored by it. Nothing is abandoned unless it follows time.
    """

    budget_s: float = 0.3
    interval: float = 0.02
    timeout_s: float = 20.0
    compile_timeout_s: float = 60.0
    abandon_ratio: float = 1.5
    finals_s: float = 3.0
    sustained_s: float = 6.0
    objective: Objective = TIME


@dataclass(frozen=True, slots=True)
class Work:
    """The task of an evaluator.

    Attributes:
        problem: what is computed.
        families: by name.
        device: as `Target.device` gives it.
        programs: where sources and binaries go.
        effort: how long and how exactly to measure; None takes the default.
        workers: compile workers; None takes one for each core.
        seed: seeds the operands.
    """

    problem: Problem
    families: Mapping[str, KernelFamily]
    device: Device
    programs: ProgramCache
    effort: Effort | None = None
    workers: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Baseline:
    """The vendor library on the same problem.

    Attributes:
        name: library, version, kernels and threads, for people.
        median_s: median time of one call in seconds.
        interval_s: 95% confidence interval of that median.
        threads: threads it may use.
        details: what the name is made of.
        noise: what disturbed it, so that nothing can be compared with its time; else empty.
        error_norm: norm of its errors relative to that of its result; None where not known.
    """

    name: str
    median_s: float
    interval_s: tuple[float, float]
    threads: int
    details: Mapping[str, str]
    noise: str = ""
    error_norm: float | None = None


def relative_speed(measurement: Measurement, baseline: Baseline | None) -> float | None:
    """Speed relative to the baseline, each measured by itself; None where that is not known."""
    if baseline is None or baseline.noise or not measurement.ok or measurement.median_s is None:
        return None
    return baseline.median_s / measurement.median_s


@dataclass(frozen=True, slots=True)
class Finals:
    """The finalists, measured interleaved with the baseline.

    Attributes:
        measurements: one per candidate, in the order given; the failed ones say why.
        ratios: the baseline's median cost over the same rounds divided by the candidate's, which
            is the relative speed where the objective is time; None where either failed, the
            baseline was disturbed, or the objective does not score it.
        baseline: the baseline over the same rounds; None when there is none.
        rounds: each candidate's cost of every round (`Objective.cost`), in seconds where the
            objective is time; empty where it failed.
        sustained: each candidate's turns without a pause, as many of everybody who took any.
        sustained_baseline: those of the baseline.
    """

    measurements: tuple[Measurement, ...]
    ratios: tuple[float | None, ...]
    baseline: Baseline | None
    rounds: tuple[tuple[float, ...], ...] = ()
    sustained: tuple[tuple[Series, ...], ...] = ()
    sustained_baseline: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Progress of a step that takes an evaluator a while.

    Attributes:
        name: "compiling" or "finals".
        step: candidates compiled, or the round that begins.
        steps: how many there are.
    """

    name: str
    step: int
    steps: int


Report: TypeAlias = Callable[[Stage], None]
"""Callback for an evaluator's progress."""


def silent(stage: Stage) -> None:
    """A `Report` for nobody."""
