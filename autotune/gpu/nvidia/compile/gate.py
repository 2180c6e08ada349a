"""Between compiling and launching: kernels that cannot run, or cannot run well, are dropped.

What was estimated before compiling is checked again with the binary's own numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from autotune.core.configuration import Value
from autotune.core.limits import CudaLimits
from autotune.families.gpu.occupancy import limit_restrictions
from autotune.gpu.nvidia.compile.nvrtc import Compiled
from autotune.space import Expression, Rejection, Restriction

SPILL_LIMIT = 64
"""Bytes of spill code, stores and loads, that a kernel may have unless told otherwise.

Eight registers saved and restored once. So few are addresses and sizes parked around the main
loop, which costs nothing that can be measured, and if it does the measurement says so. Kernels
whose accumulators do not fit their registers have hundreds or thousands of bytes, and run several
times slower than their neighbours.
"""


def gate(
    compiled: Compiled,
    limits: CudaLimits,
    *,
    threads: int,
    dynamic_shared_bytes: int,
    kernel: str = "gemm",
    resident_blocks: int = 1,
    spill_limit: int = SPILL_LIMIT,
) -> Rejection | None:
    """Why a compiled kernel should not be launched, or None if it should.

    Args:
        compiled: what the compiler gave.
        limits: the device it would run on.
        threads: threads per block.
        dynamic_shared_bytes: dynamic shared memory per block.
        kernel: which kernel of the source.
        resident_blocks: the least number of blocks that must fit a multiprocessor at once.
        spill_limit: bytes of spill code, and of local memory per thread, that it may have.
    """
    resources = compiled.kernels[kernel]
    names: Mapping[str, Value] = {
        **limits.names(),
        "threads": threads,
        "registers": resources.registers,
        "shared_bytes": resources.shared_bytes + dynamic_shared_bytes,
        "spill_bytes": compiled.spill_bytes.get(kernel, 0),
        "local_bytes": resources.local_bytes,
        "spill_limit": spill_limit,
        "launch_bound": resources.max_threads or limits.max_threads_per_block,
    }
    for restriction in _rules(resident_blocks):
        expression = restriction.expression
        if not expression.holds(names):
            values = {name: names[name] for name in expression.ordered_names}
            return Rejection(restriction.text, restriction.reason, values)
    return None


@functools.cache
def _rules(resident_blocks: int) -> tuple[Restriction, ...]:
    own = (
        ("spill_bytes <= spill_limit", "spill code of the compiled kernel"),
        ("local_bytes <= spill_limit", "local memory of the compiled kernel, per thread"),
        ("threads <= launch_bound", "threads that the kernel was compiled for"),
    )
    rules = tuple(Restriction(Expression.parse(text), reason) for text, reason in own)
    return (*limit_restrictions(str(resident_blocks)), *rules)
