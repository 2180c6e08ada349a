"""What streams of a GPU can be given to do, by host threads and by ranks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Enqueues(Protocol):
    """Copies, products and events on streams.

    A matrix is an `autotune.gpu.matrix.DeviceMatrix`, or a NumPy array of the
    host. What goes to a stream is done in order. No call but `finish` waits for it, except that
    copies of pageable host memory may.
    """

    def lock(self, array: NDArray[Any]) -> Any:
        """Page-lock an array where it is; what `unlock` is given. None where that is refused."""
        ...

    def unlock(self, locked: Any) -> None:
        """Undo that."""
        ...

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        """Copy a matrix, on a stream of a GPU that one of them is on."""
        ...

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        """``c = alpha a b + beta c``, all on the GPU of the stream; zero means c is not read."""
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
