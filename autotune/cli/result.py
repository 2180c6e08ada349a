"""What a command hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.core.errors import AutotuneError


@dataclass(frozen=True, slots=True)
class CommandResult:
    """One command's output in both forms; the caller prints the one asked for.

    Attributes:
        document: JSON-able, for ``--json``.
        text: for people, without the last line end.
        exit_code: what the process exits with.
        failure: what is told after the output: a file could not be written in the end.
    """

    document: Any
    text: str
    exit_code: int = 0
    failure: AutotuneError | None = None
