"""What a CUDA device offers a kernel, as numbers to prune with."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class CudaLimits:
    """Limits of one CUDA device. Bytes are bytes, registers have 32 bits.

    Attributes:
        compute_capability: ten times the major version plus the minor one: 90 for 9.0.
        multiprocessor_count: multiprocessors of the device.
        warp_size: threads that run in step.
        max_threads_per_block: threads of one block.
        max_threads_per_multiprocessor: threads resident at once, of all blocks.
        max_blocks_per_multiprocessor: blocks resident at once.
        registers_per_thread: registers that one thread can address.
        registers_per_block: registers of one block.
        registers_per_multiprocessor: registers of all resident blocks.
        shared_bytes_static: shared memory a kernel may declare statically, or use without opting
            in to more.
        shared_bytes_per_block: shared memory of one block that opts in.
        shared_bytes_per_multiprocessor: shared memory of all resident blocks.
        shared_bytes_reserved: what the system adds to the shared memory of every block.
        shared_granularity: the unit that shared memory is allocated in.
        l2_bytes: level-2 cache.
    """

    compute_capability: int
    multiprocessor_count: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_thread: int
    registers_per_block: int
    registers_per_multiprocessor: int
    shared_bytes_static: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_reserved: int
    shared_granularity: int
    l2_bytes: int

    def names(self) -> dict[str, int]:
        """The limits by the names that restrictions use."""
        return asdict(self)

    @property
    def architecture(self) -> str:
        """What compilers call it: ``sm_90``."""
        return f"sm_{self.compute_capability}"
