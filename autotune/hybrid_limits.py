"""What the GPUs of a host offer a product that host threads divide among them, to prune with."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class HybridLimits:
    """Limits of the GPUs that may be used.

    Attributes:
        gpus: how many there are.
        peers: 1 where each of them can read the memory of every other one.
        host_operands: 1 where the operands are in the memory of the host.
        block_operands: 1 where every GPU holds blocks of them; otherwise the first one holds all.
    """

    gpus: int
    peers: int
    host_operands: int
    block_operands: int

    def names(self) -> dict[str, int]:
        """The limits by the names that restrictions use."""
        return asdict(self)
