"""Programs that stay loaded: one binary serves further sizes without the driver's loading it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from autotune.core import session
from autotune.gpu.launch.launch import CudaKernel
from autotune.gpu.launch.scratch import SharedScratch

if TYPE_CHECKING:
    from autotune.gpu.launch.launch import Launch
    from autotune.gpu.launch.program import CudaProgram
    from autotune.operations.operation import Operation

_Key: TypeAlias = "tuple[bytes, bytes, str, str, str, Operation, int]"

# Python hashes bytes once and finds the same object without comparing it.
_LOADED: dict[_Key, CudaKernel] = session.keep("modules of GPUs", {}, lasting=True)
_SCRATCH: dict[int, SharedScratch] = session.keep("scratch memory of GPUs", {}, lasting=True)
_LOCK = threading.RLock()


def resident_launch(program: CudaProgram, ordinal: int) -> Launch:
    """What launches a program on its sizes, by a module that is loaded once a process.

    Modules stay, and so does their scratch memory, which all of them share.

    Args:
        program: what to launch.
        ordinal: the driver's number of the device.

    Raises:
        LaunchError: the driver refuses the binary, or a kernel of it.
    """
    key = _key(program, ordinal)
    kernel = _LOADED.get(key)
    if kernel is not None:
        return kernel.launcher(program.plan)
    with _LOCK:
        kernel = _LOADED.get(key)
        if kernel is None:
            scratch = _SCRATCH.setdefault(ordinal, SharedScratch(ordinal))
            kernel = _LOADED[key] = CudaKernel(program, ordinal, scratch)
    return kernel.launcher(program.plan)


def _key(program: CudaProgram, ordinal: int) -> _Key:
    """All that a module, and how it is called, depend on; sizes are none of it."""
    return (
        program.cubin,
        program.support,
        program.dtype,
        program.layout,
        program.kernel_layout,
        program.defined,
        ordinal,
    )
