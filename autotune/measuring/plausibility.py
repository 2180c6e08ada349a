"""Times that no kernel takes, however a device is programmed.

A time below the bound says that calls did nothing, or that the clock is not what it was. Bounds
are generous, by a factor of two and more: honest kernels never meet them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.operations.accuracy import ACCURACIES
from autotune.operations.problem import multiplies

if TYPE_CHECKING:
    from autotune.operations.problem import Problem

MARGIN = 1.2
"""Factor by which a device may seem to exceed its ceiling."""

HIGHEST_HZ = 6.2e9
"""No processor has a higher clock, boosts included, which systems often do not tell."""

HIGHEST_GPU_HZ = 3.2e9
"""The same of a GPU."""

_LINE = 64
"""Bytes that a thread of a processor loads or stores at once: two loads and a store in a cycle."""

_TENSOR = {7: 512, 8: 1024, 9: 2048, 10: 4096, 12: 1024}
"""Multiply-adds of 16-bit numbers in a cycle of a multiprocessor, by the major version of the
compute capability: the most of any of its devices, without sparsity."""

_NEWER = 16384
_LANES = 128
"""Those of float32 and of float64 without tensor cores, or of float64 with them."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that a device can do in a second.

    Attributes:
        flops: multiplications and additions of a product.
        bytes: bytes of operands.
    """

    flops: float
    bytes: float

    def least_s(self, problem: Problem, accuracy: str) -> float:
        """Seconds below which no call takes.

        Of a product they follow from its operations, and from its operands, all of which must be
        read. Of other operations only the output is known to be written whole.

        Args:
            problem: to compute.
            accuracy: the accuracy class that the kernel promises.
        """
        output = next(operand for operand in problem.operands if operand.written)
        operations, moved = 0.0, output.nbytes
        if multiplies(problem.defined):
            operations = problem.flops / ACCURACIES[accuracy].operations
            moved = problem.traffic
        return max(operations / self.flops, moved / self.bytes) / MARGIN

    def told(self, median_s: float, least_s: float) -> str:
        """Complaint about a time below the least one."""
        return (
            f"{median_s * 1e6:.3g} us a call, where no kernel takes less than "
            f"{least_s * 1e6:.3g} us (at most {self.flops / 1e9:.4g} GFLOP/s and "
            f"{self.bytes / 1e9:.4g} GB/s)"
        )


UNKNOWN = Ceiling(math.inf, math.inf)
"""Of devices of which nothing is known, or which share the work with others."""


def cpu_ceiling(threads: int, vector_bits: int, itemsize: int) -> Ceiling:
    """The ceiling of threads of a processor.

    That is two vectors of multiply-adds in every cycle, four of them where they are of 128 bits,
    and the bandwidth of the level-1 cache.
    """
    lanes = max(512, 2 * vector_bits) // 8 / itemsize
    return Ceiling(threads * 2 * lanes * HIGHEST_HZ, threads * 3 * _LINE * HIGHEST_HZ)


def gpu_ceiling(
    compute_capability: int, multiprocessors: int, itemsize: int, clock_hz: float | None
) -> Ceiling:
    """The ceiling of a GPU: its tensor cores, and the bandwidth of the level-2 cache.

    Args:
        compute_capability: ten times the major version plus the minor one.
        multiprocessors: number of them.
        itemsize: bytes per element.
        clock_hz: the highest clock; None where it is not known.
    """
    tensor = _TENSOR.get(compute_capability // 10, _NEWER)
    # Of float32 by TF32, one to three products of which stand for one.
    lanes = {2: tensor, 4: max(_LANES, tensor // 2)}.get(itemsize, _LANES)
    cycles = multiprocessors * (clock_hz or HIGHEST_GPU_HZ)
    return Ceiling(2 * lanes * cycles, _LINE * cycles)
