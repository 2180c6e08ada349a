"""What a verdict against a kernel, or a request without a reply, says of its trial."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.processes import Failure, FailureKind

if TYPE_CHECKING:
    from autotune.operations.verification import Verdict

REPEATED = "after repeated calls"
"""A race shows now and then, not in every call."""

CHANGED = "once operands had changed"
"""A result that is remembered is right while the operands are what they were."""

IN_TURN = "in the finals"

AT_THE_END = "after the finals"


def wrong_result(verdict: Verdict, when: str = "") -> Measurement:
    """A trial whose result is wrong.

    Args:
        verdict: against it.
        when: what had gone before; empty for its first call.
    """
    error = verdict.error if math.isfinite(verdict.error) else None
    reason = f"{verdict.reason}, {when}" if when else verdict.reason
    return Measurement(Outcome.WRONG_RESULT, error=error, reason=reason)


def judge_failure(reply: Failure) -> Measurement:
    """What a request without a reply says of the candidate it was about."""
    timed_out = reply.kind is FailureKind.TIMED_OUT
    outcome = Outcome.TIMEOUT if timed_out else Outcome.LAUNCH_FAILED
    return Measurement(outcome, reason=reply.reason)


def judge_compile_failure(reply: Failure) -> Measurement:
    """What a compiler that did not answer says of the candidate it was given."""
    timed_out = reply.kind is FailureKind.TIMED_OUT
    outcome = Outcome.TIMEOUT if timed_out else Outcome.COMPILE_FAILED
    return Measurement(outcome, reason=f"compiler: {reply.reason}")
