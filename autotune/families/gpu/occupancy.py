"""Occupancy: thread blocks that fit a multiprocessor, as a number and as restrictions.

The rules are those of the CUDA toolkit's ``cuda_occupancy.h`` for compute capability 7.0 to 12.0.
Registers are allocated to whole warps in units of 256; a multiprocessor has four partitions, each
with a quarter of the registers, and a block's warps are dealt out to them evenly. Every block's
shared memory, with what the system reserves, is rounded up to the allocation granularity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.core.limits import GpuLimits
from autotune.space import Expression, Restriction

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REGISTER_UNIT = 256
_PARTITIONS = 4


def blocks_per_multiprocessor(
    limits: GpuLimits, *, threads: int, registers: int, shared_bytes: int
) -> int:
    """Blocks of a kernel that are resident on one multiprocessor at once.

    Args:
        limits: the device.
        threads: threads per block, at least 1.
        registers: registers per thread, at least 1.
        shared_bytes: shared memory of one block, static and dynamic.

    Returns:
        The number of blocks; 0 when not even one can be launched.
    """
    blocks = resident_blocks(
        limits, threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    return int(blocks)


def occupancy(limits: GpuLimits, *, threads: int, registers: int, shared_bytes: int) -> float:
    """Share of a multiprocessor's threads that are resident, the arguments as above."""
    blocks = blocks_per_multiprocessor(
        limits, threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    return round(blocks * threads / limits.max_threads_per_multiprocessor, 4)


def resident_blocks(
    limits: GpuLimits,
    *,
    threads: NDArray[np.integer] | int,
    registers: NDArray[np.integer] | int,
    shared_bytes: NDArray[np.integer] | int,
) -> NDArray[np.integer]:
    """`blocks_per_multiprocessor` of many kernels; the arrays broadcast against each other."""
    threads, registers, shared_bytes = map(np.asarray, (threads, registers, shared_bytes))
    warps = -(-threads // limits.warp_size)
    warp_registers = _round_up(registers * limits.warp_size, _REGISTER_UNIT)
    partition_warps = limits.registers_per_multiprocessor // _PARTITIONS // warp_registers
    blocks = np.minimum(
        limits.max_threads_per_multiprocessor // limits.warp_size // warps,
        partition_warps * _PARTITIONS // warps,
    )
    blocks = np.minimum(blocks, limits.max_blocks_per_multiprocessor)
    block_shared = _round_up(
        shared_bytes + limits.shared_bytes_reserved, limits.shared_granularity
    )
    # Where a block needs none, memory is no limit.
    fits = limits.shared_bytes_per_multiprocessor // np.maximum(block_shared, 1)
    blocks = np.where(block_shared > 0, np.minimum(blocks, fits), blocks)
    refused = (
        (threads > limits.max_threads_per_block)
        | (registers > limits.registers_per_thread)
        | (shared_bytes > limits.shared_bytes_per_block)
        | (warp_registers * _round_up(warps, _PARTITIONS) > limits.registers_per_block)
    )
    return np.where(refused, 0, blocks)


def _round_up(value: NDArray[np.integer], unit: int) -> NDArray[np.integer]:
    return np.asarray(-(-value // unit) * unit)


_WARPS = "ceildiv(threads, warp_size)"
_WARP_REGISTERS = f"ceildiv(registers * warp_size, {_REGISTER_UNIT}) * {_REGISTER_UNIT}"

_LAUNCH = (
    ("threads <= max_threads_per_block", "hardware limit on threads per block"),
    ("registers <= registers_per_thread", "hardware limit on registers per thread"),
    (
        f"{_WARP_REGISTERS} * ceildiv({_WARPS}, {_PARTITIONS}) * {_PARTITIONS}"
        " <= registers_per_block",
        "hardware limit on registers per block, as allocated to its warps",
    ),
    (
        "shared_bytes <= shared_bytes_per_block",
        "hardware limit on the shared memory that one block can opt in to",
    ),
)

_RESIDENCY = (
    ("{blocks} <= max_blocks_per_multiprocessor", "blocks that are to be resident at once"),
    (
        f"{{blocks}} * {_WARPS} * warp_size <= max_threads_per_multiprocessor",
        "threads of the blocks that are to be resident at once",
    ),
    (
        f"{{blocks}} * {_WARPS} <= registers_per_multiprocessor // {_PARTITIONS}"
        f" // ({_WARP_REGISTERS}) * {_PARTITIONS}",
        "registers of the blocks that are to be resident at once, as allocated to their warps",
    ),
    (
        "{blocks} * ceildiv(shared_bytes + shared_bytes_reserved, shared_granularity)"
        " * shared_granularity <= shared_bytes_per_multiprocessor",
        "shared memory of the blocks that are to be resident at once, with the system's share",
    ),
)


def limit_restrictions(resident_blocks: str = "1") -> tuple[Restriction, ...]:
    """Restrictions by a device's limits, over ``threads``, ``registers`` and ``shared_bytes``.

    They hold exactly where `blocks_per_multiprocessor` is at least `resident_blocks`.

    Args:
        resident_blocks: the least number of blocks per multiprocessor, an expression. One block
            fits wherever it can be launched, so ``"1"`` adds no restriction.

    Raises:
        ExpressionError: `resident_blocks` is not an expression.
    """
    texts = list(_LAUNCH)
    if resident_blocks != "1":
        blocks = str(Expression.parse(resident_blocks))
        blocks = blocks if blocks.isidentifier() or blocks.isdecimal() else f"({blocks})"
        texts += [(text.format(blocks=blocks), reason) for text, reason in _RESIDENCY]
    return tuple(Restriction(Expression.parse(text), reason) for text, reason in texts)
