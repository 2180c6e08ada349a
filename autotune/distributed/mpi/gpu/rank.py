"""A rank's GPU as plans are given it: memory, copies, products, and communicators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.distributed.mpi.gpu.memory import GpuMemory
from autotune.distributed.mpi.gpu.transports.base import Communicator, Direct, Request, Staged
from autotune.distributed.mpi.gpu.transports.nccl import Nccl
from autotune.distributed.mpi.gpu.transports.shared import Shared
from autotune.gpu.matrix import DeviceMatrix

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

TRANSPORTS: Mapping[str, type[Communicator]] = {
    "staged": Staged,
    "shared": Shared,
    "direct": Direct,
    "nccl": Nccl,
}
"""Ways of a block from one GPU's memory to another's."""


class GpuRank(GpuMemory):
    """``local(a, b, out, alpha, beta)`` on matrices of a rank's GPU, and all that goes with it.

    Products and copies are enqueued; `synchronize` waits for them.
    """

    def __call__(
        self,
        a: DeviceMatrix,
        b: DeviceMatrix,
        out: DeviceMatrix,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Enqueue ``out = alpha a b + beta out``; rows may lie apart."""
        stream = self.machine.compute
        with self.order.on(stream, reads=[a.span, b.span], writes=[out.span]):
            self.machine.multiply(a, b, out, alpha, beta, stream)

    def scale(self, out: DeviceMatrix, beta: float) -> None:
        """Enqueue ``out = beta out``; where beta is 0, `out` is not read."""
        stream = self.machine.compute
        with self.order.on(stream, writes=[out.span]):
            self.machine.accumulate(out, None, beta, stream)

    def communicator(self, comm: Intracomm, transport: str) -> Communicator:
        """A communicator whose messages are matrices of GPUs."""
        return TRANSPORTS[transport](self, comm)

    def wait(self, requests: Sequence[Request]) -> None:
        """Complete messages: later work of a stream finds them on the device."""
        if requests:
            requests[0].comm.complete(requests)
