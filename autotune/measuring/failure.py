"""Replies that did not come, of processes that kernels run in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.core.errors import AutotuneError, InputError, WorkerError
from autotune.core.measurement import Measurement, Outcome


class FailureKind(StrEnum):
    """Kind of a request's failure."""

    TIMED_OUT = "timed out"
    DIED = "died"
    RAISED = "raised"
    REFUSED = "refused"
    CHANGED = "changed its process"


@dataclass(frozen=True, slots=True)
class Failure:
    """A reply that did not come.

    Attributes:
        kind: how it failed.
        reason: one line: the time limit, the signal or exit code, or the exception; of an
            `InputError`, which refuses what was given, its message.
        trace: the worker's traceback, where it raised.
        innocent: whether it may be the doing of somebody else: of requests that the process had
            answered before, or of whoever killed it. A fresh process tells.
    """

    kind: FailureKind
    reason: str
    trace: str = ""
    innocent: bool = False

    def judge(self, otherwise: Outcome = Outcome.LAUNCH_FAILED, who: str = "") -> Measurement:
        """The measurement of the candidate that the request was about.

        Args:
            otherwise: its outcome, unless the time was up.
            who: did not reply, where it was no kernel.
        """
        outcome = Outcome.TIMEOUT if self.kind is FailureKind.TIMED_OUT else otherwise
        return Measurement(outcome, reason=f"{who}: {self.reason}" if who else self.reason)

    def error(self, otherwise: str) -> AutotuneError:
        """The exception of whoever cannot go on without the reply.

        Args:
            otherwise: its message, unless what was given is refused.
        """
        refused = self.kind is FailureKind.REFUSED
        return InputError(self.reason) if refused else WorkerError(otherwise)
