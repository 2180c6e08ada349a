"""Checks of this machine: a subject, a finding, and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autotune.core.errors import AutotuneError


class Status(StrEnum):
    """The status of a check."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; the devices that are here work all the same."""
    PROBLEM = "problem"
    """It keeps a device that is here, or the cache, from working."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is, in a word or two.
        status: how it is.
        found: what was found, in one line.
        remedy: what to do about it, in one line; None where there is nothing to do.
    """

    name: str
    status: Status
    found: str
    remedy: str | None = None

    @classmethod
    def ok(cls, name: str, found: str) -> Check:
        """Something that is in order."""
        return cls(name, Status.OK, found)

    @classmethod
    def note(cls, name: str, found: str, remedy: str | None = None) -> Check:
        """Something to be known."""
        return cls(name, Status.NOTE, found, remedy)

    @classmethod
    def problem(cls, name: str, found: str, remedy: str | None = None) -> Check:
        """Something to be mended."""
        return cls(name, Status.PROBLEM, found, remedy)

    @classmethod
    def refused(cls, name: str, error: Exception, status: Status = Status.PROBLEM) -> Check:
        """The finding of an exception; messages of ours have the remedy after their last colon."""
        text = " ".join(str(error).split())
        if not isinstance(error, AutotuneError):
            return cls(name, status, f"{type(error).__name__}: {text}".removesuffix(": "))
        found, _, remedy = text.rpartition(": ")
        reason = getattr(error.__cause__, "strerror", None)
        # What the system says is no remedy, and an exception's name alone is no finding.
        if not found or found.isidentifier() or remedy == reason:
            return cls(name, status, text)
        return cls(name, status, found, remedy)


def attempt(
    name: str, look: Callable[[], Check], failing: Status = Status.PROBLEM, remedy: str = ""
) -> Check:
    """Run a check; an exception is a finding, too.

    Args:
        name: of the check, where it raises.
        look: makes the check.
        failing: how it is where it raises.
        remedy: what to do then, where the exception does not say it.
    """
    try:
        return look()
    except Exception as error:  # whatever is broken is what is looked for
        check = Check.refused(name, error, failing)
        return Check(name, failing, check.found, check.remedy or remedy or None)
