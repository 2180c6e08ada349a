"""Kernels of target hybrid: loading them, and the machine that their programs run on."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.arrays.libraries import library_of
from autotune.core.paths import CacheLocations
from autotune.distributed.hybrid.kernel import HybridCall
from autotune.distributed.hybrid.loading import HybridProgram, make_plan
from autotune.distributed.hybrid.products import LocalKernel, machine_with
from autotune.families.local import local_problem
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.arrays.kernel import describe
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm
from autotune.serving.kernel import ProductKernel
from autotune.serving.lookup import binary_of, look_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.arrays.device import DeviceArray
    from autotune.core.configuration import Candidate
    from autotune.core.device import DeviceLimits
    from autotune.distributed.grid import Block
    from autotune.distributed.hybrid.loading import Plan
    from autotune.distributed.machine.machine import GpuMachine
    from autotune.families.family import KernelFamily


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class HybridKernel(ProductKernel):
    """A tuned kernel of the GPUs of a host; a call returns when C is there.

    Operands are NumPy arrays (operands="host"), arrays on the first GPU ("device"), or lists with
    the block of every GPU ("blocks"; see `blocks`).
    """

    _bound: HybridCall

    @property
    def blocks(self) -> list[tuple[Block, Block, Block]]:
        """Which parts of A, B and C every GPU keeps, with operands="blocks"."""
        return self._bound.blocks

    def free(self) -> None:
        """Give threads, streams and memory of the GPUs back; the next call makes them again."""
        self._bound.free()


def choose_local(problem: Gemm, programs: ProgramCache) -> LocalKernel:
    """The best CUDA kernel there is: that of a record, or a default; nothing is compiled.

    Args:
        problem: what a thread multiplies at a time.
        programs: where emitted sources go; records are looked up in the cache it is part of.
    """
    found = look_up(problem, CudaTarget(), match="nearest", device=0, cache=programs.cache)
    limits: Any = found.device.limits
    binary = binary_of(problem, found)
    return LocalKernel(found.candidate, found.family.digest, problem.dtype, limits, binary)


def bind(
    family: KernelFamily,
    candidate: Candidate,
    problem: Gemm,
    limits: DeviceLimits,
    operands: str,
    programs: ProgramCache,
) -> HybridCall:
    """A candidate as a callable.

    Args:
        family: the candidate's family.
        candidate: which program.
        problem: what it computes.
        limits: of the GPUs it may use.
        operands: where the operands are.
        programs: where emitted sources go.
    """
    source = render(family, candidate.configuration, dtype=problem.dtype)
    wanted = local_problem(family, candidate.configuration, problem, limits)
    local = choose_local(wanted, programs)
    program = HybridProgram(source, family.name, local)
    devices = limits.names()["gpus"]

    def plan(resources: contextlib.ExitStack) -> Plan:
        machine = resources.enter_context(machine_with(local, devices, programs))
        return make_plan(program, machine, programs, problem.m, problem.n, problem.k)

    return HybridCall(problem, operands, plan, _look, _allocate)


@contextlib.contextmanager
def open_machine(
    m: int, n: int, k: int, dtype: str, devices: int, cache: str | Path | None = None
) -> Iterator[GpuMachine]:
    """The first GPUs here, with the tuned CUDA kernel for products of about these sizes.

    What an emitted program runs on when it is run by itself.
    """
    programs = ProgramCache.of(CacheLocations.at(cache))
    local = choose_local(Gemm(m, n, k, dtype), programs)
    with machine_with(local, devices, programs) as machine:
        yield machine


def _look(name: str, array: Any) -> DeviceArray:
    """All about an operand on a GPU, once its library's work on it is done."""
    from autotune.gpu.driver import finish

    handle = library_of(array).current_stream(array)
    found = describe(name, array, handle)
    finish(found.device, handle)
    if found.stream is not None and found.stream != handle:
        finish(found.device, found.stream)
    return found


def _allocate(like: Any, shape: tuple[int, int], dtype: str) -> Any:
    return library_of(like).empty(like, shape, dtype, None)
