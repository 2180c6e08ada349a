"""Looking at what may hang or crash whoever looks: in a process of its own, for a limited time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from autotune.core.errors import AutotuneError
from autotune.measuring.closing import GRACE_S, Closing
from autotune.measuring.processes import Failure, Handler, WorkerProcess

T = TypeVar("T")

LIMIT_S = 60.0
"""Seconds that one look may take: a driver that loads its modules, on a machine that is busy."""


class Apart(Closing):
    """Calls functions in another process, which is started again where one of them ends it.

    Args:
        limit_s: seconds that a call may take.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._worker = WorkerProcess(_caller)
        self._limit_s = limit_s

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """What an importable function gives; arguments and result are picklable.

        Raises:
            AutotuneError: it raised, crashed, or took too long; in one line.
        """
        reply = self._worker.call((function, arguments), self._limit_s)
        if isinstance(reply, Failure):
            raise AutotuneError(reply.reason)
        if isinstance(reply, AutotuneError):
            raise reply
        given: T = reply
        return given

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the process."""
        self._worker.close(grace_s)


def _caller() -> Handler:
    return _call


def _call(request: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = request
    try:
        return function(*arguments)
    except AutotuneError as error:
        return AutotuneError(str(error))  # its message alone: others may not survive the journey
