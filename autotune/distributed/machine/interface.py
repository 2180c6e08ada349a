"""Host threads and ranks alike: the work that they give to a GPU's streams, and its product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from autotune.core.configuration import Candidate
from autotune.core.limits import GpuLimits
from autotune.families.gpu.launch import Binary


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """A kernel for the part of a product that one GPU has; it can be sent between processes.

    Attributes:
        candidate: of target cuda.
        digest: its family's.
        limits: of the GPUs, which are all alike.
        binary: what it was compiled to; None compiles it.
    """

    candidate: Candidate
    digest: str
    dtype: str
    limits: GpuLimits
    binary: Binary | None


class Enqueues(Protocol):
    """Copies, products and events on streams.

    A matrix is an `autotune.gpu.matrix.DeviceMatrix`, or a NumPy array of the host. A stream does
    its work in order. Only `finish` waits for it; copies of pageable host memory may, too.
    """

    def lock(self, array: NDArray[Any]) -> Any:
        """Page-lock an array where it is; the result is for `unlock`, None where refused."""

    def unlock(self, locked: Any) -> None:
        """Undo `lock`."""

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        """Copy a matrix, on a stream of a GPU that one of them is on."""

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        """``c = alpha a b + beta c``, all on the GPU of the stream; zero means c is not read."""

    def record(self, stream: Any) -> Any:
        """An event that comes to pass when all that is on the stream now is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let later work of a stream wait for an event of any GPU's stream."""

    def finish(self, what: Any) -> None:
        """Wait, on the host, for an event or for all that is on a stream."""

    def reuse_events(self) -> None:
        """Take all events back: they have come to pass, and nobody asks for them any more."""
