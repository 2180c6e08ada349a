"""What a set of MPI ranks offers a distributed product, as numbers to prune with."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class MpiLimits:
    """Limits of one set of ranks.

    Attributes:
        ranks: how many there are.
        nodes: machines they run on.
        cores: hardware threads they may use, all together.
        distributed: 1 where the operands are kept in blocks by all ranks, 0 where rank 0 holds
            them.
        gpus: ranks that have a GPU of their own, whose memory blocks are in; 0 where they are in
            the host's.
        cuda_aware: 1 where MPI takes addresses in a GPU's memory.
        nccl: 1 where every rank can make NCCL communicators.
    """

    ranks: int
    nodes: int
    cores: int
    distributed: int = 0
    gpus: int = 0
    cuda_aware: int = 0
    nccl: int = 0

    def names(self) -> dict[str, int]:
        """The limits by the names that restrictions use."""
        return asdict(self)
