"""Checks that may hang or crash their process: made in another one, for a limited time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from autotune.core.errors import AutotuneError
from autotune.measuring.channel import decode, encode
from autotune.measuring.failure import Failure
from autotune.measuring.processes import GRACE_S, Closing, Handler, WorkerProcess

T = TypeVar("T")

LIMIT_S = 60.0
"""Seconds that one call may take: a driver that loads its modules, on a machine that is busy."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The error that a function raised."""

    reason: str


class Apart(Closing):
    """Calls functions in another process, for at most `limit_s` seconds each.

    The process is started again where one of them ends it.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._worker = WorkerProcess(_caller, replies=bytes | _Refusal)
        self._limit_s = limit_s

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result of an importable function, which is data of the type that it declares.

        Raises:
            AutotuneError: it raised, crashed, or took too long; in one line.
        """
        reply = self._worker.call((function, arguments), self._limit_s)
        if isinstance(reply, (Failure, _Refusal)):
            raise AutotuneError(reply.reason)
        given: T = decode(reply, get_type_hints(function).get("return", Any))
        return given

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the process."""
        self._worker.close(grace_s)


def _caller() -> Handler:
    return _call


def _call(request: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes | _Refusal:
    function, arguments = request
    try:
        return encode(function(*arguments))
    except AutotuneError as error:
        return _Refusal(str(error))
