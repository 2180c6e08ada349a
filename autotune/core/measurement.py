"""What came of trying one candidate."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    REJECTED = "rejected"
    COMPILE_FAILED = "compile_failed"
    LAUNCH_FAILED = "launch_failed"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    IMPLAUSIBLE = "implausible"
    ABANDONED = "abandoned"


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
        details: further numbers worth keeping (compile time, warm median, registers, ...).
    """

    outcome: Outcome
    median_s: float | None = None
    interval_s: tuple[float, float] | None = None
    repeats: int = 0
    error: float | None = None
    reason: str = ""
    details: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the candidate ran, was verified and was timed to the end."""
        return self.outcome is Outcome.OK
