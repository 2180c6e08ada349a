"""Timed calls, and the result of trying one candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean, median

from autotune.core.checks import Positive

ERROR_NORM = "error_norm"
"""Name, among details, of the Frobenius norm of a result's errors relative to the result's."""


class Outcome(StrEnum):
    """End of a trial."""

    OK = "ok"
    REJECTED = "rejected"
    COMPILE_FAILED = "compile_failed"
    LAUNCH_FAILED = "launch_failed"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    IMPLAUSIBLE = "implausible"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Series:
    """Timed calls of one kernel, one after the other.

    Attributes:
        median_s: median time of one call, in seconds.
        interval_s: its 95% confidence interval.
        calls: how many there were.
        observed: numbers that observers read beside them, such as "joules" of a call.
        samples: what was timed, in order: seconds of a call, each the mean of one or several.
    """

    median_s: float
    interval_s: tuple[float, float]
    calls: int
    observed: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sustained:
    """Calls of one kernel without a pause, at the clocks that the device keeps up.

    Attributes:
        median_s: time of one call in seconds, the median of turns, each of which has the mean of
            its calls: clocks go up and down at a power limit.
        joules: energy of a call; None where the device does not tell.
        watts: mean power.
        sm_clock_mhz: mean clock of the multiprocessors.
    """

    median_s: Positive
    joules: Positive | None = None
    watts: Positive | None = None
    sm_clock_mhz: Positive | None = None

    @classmethod
    def of(cls, turns: Sequence[Series]) -> Sustained | None:
        """The turns in one; None where there are none."""
        if not turns:
            return None

        def mean(name: str) -> float | None:
            seen = [turn.observed[name] for turn in turns if name in turn.observed]
            return fmean(seen) if seen else None

        median_s = median([turn.median_s for turn in turns])
        return cls(median_s, mean("joules"), mean("watts"), mean("sm_clock_mhz"))


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one trial.

    Attributes:
        outcome: how it ended.
        median_s: median time of one call in seconds; also set, from the first runs, when
            ABANDONED; None otherwise.
        interval_s: 95% confidence interval of that median, in seconds.
        repeats: timed calls behind the median.
        error: largest verified error relative to what the accuracy class allows (1 = the limit).
        reason: one line saying why the outcome is not OK.
        details: further numbers worth keeping (compile time, warm median, registers, ...); also
            "objective" and "score" where the objective is not time.
        samples: seconds of a call, as `Series` has them; kept where an evaluator is asked to.
    """

    outcome: Outcome
    median_s: float | None = None
    interval_s: tuple[float, float] | None = None
    repeats: int = 0
    error: float | None = None
    reason: str = ""
    details: dict[str, float | int | str] = field(default_factory=dict)
    samples: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the candidate ran, was verified and was timed to the end."""
        return self.outcome is Outcome.OK

    @property
    def objective(self) -> str:
        """Name of the objective that it was scored by (`autotune.core.objective`)."""
        return str(self.details.get("objective", "time"))

    @property
    def score(self) -> float | None:
        """Score by its objective, in the objective's unit; None where there is none."""
        score = self.details.get("score")
        if self.objective == "time" or isinstance(score, str):
            return self.median_s
        return score

    def scored(self, objective: str, score: float | None) -> Measurement:
        """The measurement with a score; that of time is its median."""
        if objective == "time" or score is None:
            return self
        return replace(self, details={**self.details, "objective": objective, "score": score})
