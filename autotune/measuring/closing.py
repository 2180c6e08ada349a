"""What ends its processes where a ``with`` block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

GRACE_S = 1.0
"""Seconds that processes have to end by themselves, where nothing went wrong."""


class Closing(ABC):
    """Owner of processes, closed by a ``with`` block; after an error they are killed at once."""

    @abstractmethod
    def close(self, grace_s: float = GRACE_S) -> None:
        """End the processes: ask, wait up to `grace_s` seconds, then kill them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(GRACE_S if kind is None else 0.0)
