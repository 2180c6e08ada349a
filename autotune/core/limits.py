"""Limits of the devices of each target: numbers to prune with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from autotune.core.errors import InputError

if TYPE_CHECKING:
    from autotune.core.device import Device


class Limits:
    """Limits of a kind of device; see `autotune.core.device.DeviceLimits`."""

    __slots__ = ()

    def names(self) -> dict[str, int]:
        """The limits by the names that restrictions use."""
        found: dict[str, int] = asdict(self)  # type: ignore[call-overload]
        return found


@dataclass(frozen=True, slots=True)
class CpuLimits(Limits):
    """Limits of a CPU for one process.

    Attributes:
        max_threads: hardware threads the process may use (affinity, quota and pools applied).
        vector_bits: width of the widest usable SIMD register.
        vector_registers: number of those registers.
        l1_bytes: level-1 data cache of one core.
        l2_bytes: level-2 cache one core can use.
        l3_bytes: last-level cache shared by the cores; 0 when there is none.
        line_bytes: cache line.
    """

    max_threads: int
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int


@dataclass(frozen=True, slots=True)
class GpuLimits(Limits):
    """Limits of one GPU of any vendor. Bytes are bytes, registers have 32 bits.

    Attributes:
        compute_capability: number of the architecture; of NVIDIA's ten times the major version
            plus the minor one: 90 for 9.0.
        multiprocessor_count: multiprocessors (compute units) of the device.
        warp_size: threads that run in step (a warp, a wavefront).
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
        isa: what compilers write before the number of the architecture: ``sm_``, ``gfx``.
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
    isa: str = "sm_"

    grid_limits: ClassVar[tuple[int, int, int]] = (2**31, 2**16, 2**16)
    """Along x, y and z a grid has fewer blocks than that (CUDA C++ Programming Guide, "Technical
    Specifications per Compute Capability"; HIP has the same)."""

    @property
    def architecture(self) -> str:
        """The architecture, as compilers call it: ``sm_90``."""
        return f"{self.isa}{self.compute_capability}"

    def names(self) -> dict[str, int]:
        """The limits by the names that restrictions use."""
        return {name: value for name, value in asdict(self).items() if name != "isa"}

    def runs(self, architecture: str) -> bool:
        """Do binaries for an architecture run here? ``sm_90a`` is 9.0 and no other."""
        return architecture in (self.architecture, f"{self.architecture}a")


def limits_of(device: Device) -> GpuLimits:
    """The limits of a GPU.

    Raises:
        InputError: the device is none.
    """
    if not isinstance(device.limits, GpuLimits):
        raise InputError(f"the device must be a GPU, got {device.fingerprint.name}")
    return device.limits


@dataclass(frozen=True, slots=True)
class MpiLimits(Limits):
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


@dataclass(frozen=True, slots=True)
class HybridLimits(Limits):
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
