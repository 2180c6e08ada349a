"""The GPUs of this host as emitted programs see them: memory, streams, events and products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from autotune.distributed.machine.interface import Enqueues

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from numpy.typing import NDArray


class Machine(Enqueues, Protocol):
    """What emitted programs use, with what `Enqueues` has; from several threads at once."""

    devices: int

    def here(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a GPU current in this thread."""
        ...

    def stream(self, device: int) -> Any:
        """A new stream of a GPU."""
        ...

    def memory(self, device: int, rows: int, columns: int) -> Any:
        """A new matrix on a GPU, with nothing in it yet."""
        ...

    def pinned(self, count: int) -> NDArray[Any]:
        """Page-locked memory of the host, for so many elements."""
        ...

    def is_locked(self, array: NDArray[Any]) -> bool:
        """Whether an array is page-locked: copies of it are made by the GPU alone."""
        ...

    def kernel(self, source: str, name: str) -> Callable[[Any, Any, Any], None]:
        """A kernel of the program's own: ``run(target, source, stream)``."""
        ...

    def free(self, what: Any) -> None:
        """Give back a stream, a matrix or page-locked memory."""
        ...
