"""The product within a GPU: one tuned CUDA kernel, launched for blocks of any size."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import CompileError
from autotune.families.bound import Bound
from autotune.families.catalog import load_families
from autotune.families.launch import plan_launch, plan_or_none
from autotune.families.rendering import Source
from autotune.operations.problem import Gemm
from autotune.targets.cuda.compile.compiling import CompileRequest, Refused, compile_kept
from autotune.targets.cuda.launch.launch import CudaKernel
from autotune.targets.cuda.launch.loading import make_program

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate, Configuration
    from autotune.core.limits import CudaLimits
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.targets.cuda.launch.launch import Launch


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """The kernel that multiplies within a GPU; it can be sent between processes.

    Attributes:
        candidate: a family of target cuda, and a configuration of it.
        dtype: element type.
        limits: of the GPUs, which are all alike.
        binary: what it was compiled to; None compiles it.
    """

    candidate: Candidate
    dtype: str
    limits: CudaLimits
    binary: Binary | None


class Products:
    """A kernel, loaded on every GPU that asks for it.

    Sizes that its configuration is not valid for get the nearest one that is.

    Args:
        local: which kernel.
        programs: where sources are, and what was compiled from them before.
    """

    def __init__(self, local: LocalKernel, programs: ProgramCache) -> None:
        self._local = local
        self._programs = programs
        self._family = load_families(target="cuda")[local.candidate.family]
        self._kernels: dict[tuple[int, Configuration], CudaKernel] = {}
        self._lock = threading.Lock()
        self._launches: dict[tuple[int, int, int, int], Launch] = {}

    def launch(self, device: int, m: int, n: int, k: int) -> Launch:
        """What enqueues products of these sizes on a GPU.

        Raises:
            CompileError: the compiler refuses the kernel.
            LaunchError: the driver refuses it.
        """
        key = device, m, n, k
        launch = self._launches.get(key)
        if launch is None:
            with self._lock:
                launch = self._launches.get(key) or self._make(device, m, n, k)
                self._launches[key] = launch
        return launch

    def compile(self, text: str, name: str) -> bytes:
        """The binary of a kernel that a program brings along.

        Raises:
            CompileError: the compiler refuses it.
        """
        request = CompileRequest(
            Source(text, name, (), "cuda"), "hybrid", self._local.limits.architecture
        )
        reply = compile_kept(self._programs, request)
        if isinstance(reply, Refused):
            raise CompileError(f"the program's kernel {name} does not compile: {reply.reason}")
        return reply.cubin

    def close(self) -> None:
        """Unload the kernels."""
        self._launches.clear()
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels.clear()

    def _make(self, device: int, m: int, n: int, k: int) -> Launch:
        problem = Gemm(m, n, k, self._local.dtype)
        limits = self._local.limits
        configuration = fitting(self._family, self._local.candidate.configuration, problem, limits)
        kernel = self._kernels.get((device, configuration))
        if kernel is None:
            tuned = configuration == self._local.candidate.configuration
            kept = self._local.binary if tuned else None
            program = make_program(
                self._family, configuration, problem, limits, self._programs, kept
            )
            kernel = self._kernels[device, configuration] = CudaKernel(program, device)
        plan = plan_launch(Bound(self._family, configuration, problem, limits).at(problem))
        return kernel.launcher(plan)


def fitting(
    family: KernelFamily, wanted: Configuration, problem: Gemm, limits: CudaLimits
) -> Configuration:
    """The configuration that is valid for a problem and nearest to the one that is wanted.

    Raises:
        SpaceError: the family has none.
    """
    if plan_or_none(Bound(family, wanted, problem, limits), problem) is not None:
        return wanted
    space = family.space(problem, limits)
    row = space.nearest(wanted, ())
    return family.default(problem, limits) if row is None else space[row]
