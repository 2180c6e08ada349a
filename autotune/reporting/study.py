"""The subject of a report: a study or sweep with its trials, wherever they were read from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autotune.core.arguments import is_number
from autotune.core.configuration import Value
from autotune.core.measurement import Outcome
from autotune.operations.problem import Problem
from autotune.store import TuningRecord

FAILED = "failed"
"""Outcome of a trial of which a recording says no more."""

UNFINISHED = "unfinished"
"""Outcome of a trial that was interrupted, or whose process was lost."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        number: its place in the study, from 1.
        family: the kernel family; "" where there is one unnamed kernel.
        configuration: values by parameter.
        outcome: an `Outcome`, or `FAILED` or `UNFINISHED`.
        value: what it took, in the study's unit; None where it was not timed.
        interval: 95 % confidence interval of that.
        repeats: timed calls behind it.
        reason: why it is not OK, in one line.
        details: what else was measured: registers, seconds of compiling, ...
        ended_s: when it ended, in seconds from the study's beginning; None where not known.
    """

    number: int
    family: str
    configuration: Mapping[str, Value]
    outcome: str
    value: float | None
    interval: tuple[float, float] | None = None
    repeats: int = 0
    reason: str = ""
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    ended_s: float | None = None

    @property
    def ok(self) -> bool:
        """It was verified and timed to the end."""
        return self.outcome == Outcome.OK and self.value is not None

    def detail(self, name: str) -> float | None:
        """One of the details that is a number; None where there is none."""
        value = self.details.get(name)
        return float(value) if isinstance(value, int | float) else None

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.configuration.items())
        return f"{self.family}: {values}" if self.family else values


@dataclass(frozen=True)
class Study:
    """A study or sweep, and what is known of where it ran.

    Attributes:
        name: what the report calls it.
        trials: in the order they were made; that of the file for a recording without one.
        unit: of the trials' values: "s", or "" where nothing says what they are.
        source: where it was read from, in words.
        device: the device's name; like target and space "" where not known.
        target: "cpu", "cuda", ...
        problem: what was computed; None where that is not known here.
        families: those whose spaces were searched.
        space: the digest of the space.
        runs: what the runs behind it noted: sampler, seed, machine, seconds.
        record: the tuning record that came of it; None where there is none.
    """

    name: str
    trials: Sequence[Trial]
    unit: str = "s"
    source: str = ""
    device: str = ""
    target: str = ""
    problem: Problem | None = None
    families: tuple[str, ...] = ()
    space: str = ""
    runs: tuple[Mapping[str, Any], ...] = ()
    record: TuningRecord | None = None

    @cached_property
    def ranked(self) -> list[Trial]:
        """The trials that are OK, fastest first."""
        timed = [trial for trial in self.trials if trial.ok]
        return sorted(timed, key=lambda trial: (trial.value or 0.0, trial.number))

    @cached_property
    def timed(self) -> list[Trial]:
        """The trials that have a time, abandoned ones too, in their order."""
        return [trial for trial in self.trials if trial.value is not None]

    @cached_property
    def stored(self) -> Trial | None:
        """The trial of the winner that the record keeps; None where it is none of these."""
        if self.record is None:
            return None
        winner = self.record.candidate
        own = (winner.family, dict(winner.configuration))
        same = (trial for trial in self.ranked if (trial.family, dict(trial.configuration)) == own)
        return next(same, None)

    @property
    def counts(self) -> dict[str, int]:
        """Trials by outcome, the most frequent first."""
        return dict(Counter(trial.outcome for trial in self.trials).most_common())

    @property
    def samplers(self) -> str:
        """Names of the samplers of its runs; "" where they are not known."""
        noted = dict.fromkeys(str(run["sampler"]) for run in self.runs if "sampler" in run)
        if not noted and self.record is not None:
            return self.record.effort.sampler
        return ", ".join(noted)

    @property
    def seconds(self) -> float | None:
        """Wall time of its runs, or of the search behind its record; None where not known."""
        noted = [took for run in self.runs if is_number(took := run.get("seconds"))]
        if noted:
            return float(sum(noted))
        return None if self.record is None else self.record.effort.seconds

    @cached_property
    def flops(self) -> int | None:
        """Floating-point operations of the problem; None where its times say no rate."""
        return None if self.problem is None or self.unit != "s" else self.problem.flops

    def rate(self, value: float) -> float | None:
        """GFLOP/s of a call that takes so long."""
        return None if self.flops is None else self.flops / value / 1e9

    def noted(self, name: str) -> Mapping[str, Any]:
        """The newest run's note of its surroundings: "limits", "toolchain", "state"."""
        for run in reversed(self.runs):
            if isinstance(found := run.get(name), Mapping):
                return found
        if self.record is not None and name in ("toolchain", "state"):
            return dict(getattr(self.record, name))
        return {}
