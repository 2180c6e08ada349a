"""The GPUs of this host as emitted programs see them: memory, streams, events and products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from numpy.typing import NDArray


class Machine(Protocol):
    """What emitted programs use.

    A matrix is an `autotune.targets.cuda.machine.matrix.DeviceMatrix`, or a NumPy array of the
    host.

    What goes to a stream is done in order; the call does not wait for it, except that copies of
    pageable host memory may. All of it may be called from several threads.
    """

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

    def lock(self, array: NDArray[Any]) -> Any:
        """Page-lock an array where it is; what `unlock` is given."""
        ...

    def unlock(self, locked: Any) -> None:
        """Undo that."""
        ...

    def is_locked(self, array: NDArray[Any]) -> bool:
        """Whether an array is page-locked: copies of it are made by the GPU alone."""
        ...

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        """Copy a matrix, on a stream of a GPU that one of them is on."""
        ...

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        """``c = alpha a b + beta c``, all on the GPU of the stream; zero means c is not read."""
        ...

    def kernel(self, source: str, name: str) -> Callable[[Any, Any, Any], None]:
        """A kernel of the program's own: ``run(target, source, stream)``."""
        ...

    def record(self, stream: Any) -> Any:
        """An event that comes to pass when all that is on the stream now is done."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Let what comes on a stream later wait for an event of any GPU's stream."""
        ...

    def finish(self, what: Any) -> None:
        """Wait, on the host, for an event or for all that is on a stream."""
        ...

    def reuse_events(self) -> None:
        """All events so far have come to pass, and nobody asks for them any more."""
        ...

    def free(self, what: Any) -> None:
        """Give back a stream, a matrix or page-locked memory."""
        ...
