"""The product within a GPU: tuned CUDA kernels, launched for blocks of any size."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import CompileError
from autotune.families.bound import Bound
from autotune.families.launch import plan_launch, plan_or_none
from autotune.families.rendering import Source
from autotune.operations.problem import Gemm
from autotune.targets.cuda.compile.compiling import CompileRequest, Refused, compile_kept
from autotune.targets.cuda.launch.launch import CudaKernel
from autotune.targets.cuda.launch.loading import make_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.configuration import Configuration
    from autotune.core.limits import CudaLimits
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary, LaunchPlan
    from autotune.families.program_cache import ProgramCache
    from autotune.targets.cuda.launch.launch import Launch


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A kernel that multiplies.

    Attributes:
        family: its family, of target cuda.
        configuration: which of the family's.
        binary: what it was compiled to; None compiles it.
    """

    family: KernelFamily
    configuration: Configuration
    binary: Binary | None


class Products:
    """Kernels, loaded on every GPU that asks for them.

    Args:
        dtype: element type of the operands.
        limits: of the GPUs, which are all alike.
        kernels: best first; the first that is valid for some sizes serves them. Sizes that none
            is valid for get the nearest configuration to the first one that is.
        programs: where sources are, and what was compiled from them before.
    """

    def __init__(
        self,
        dtype: str,
        limits: CudaLimits,
        kernels: Sequence[Multiplier],
        programs: ProgramCache,
    ) -> None:
        self._dtype = dtype
        self._limits = limits
        any_sizes = Gemm(1, 1, 1, dtype)
        self._kernels = [
            (each, Bound(each.family, each.configuration, any_sizes, limits)) for each in kernels
        ]
        self._programs = programs
        self._loaded: dict[tuple[int, str, Configuration], CudaKernel] = {}
        self._lock = threading.Lock()
        self._launches: dict[tuple[int, int, int, int], Launch] = {}

    def launch(self, device: int, m: int, n: int, k: int) -> Launch:
        """What enqueues products of these sizes on a GPU.

        Raises:
            CompileError: the compiler refuses the kernel.
            LaunchError: the driver refuses it.
            SpaceError: nothing is valid for these sizes.
        """
        key = device, m, n, k
        launch = self._launches.get(key)
        if launch is None:
            with self._lock:
                launch = self._launches.get(key) or self._make(device, Gemm(m, n, k, self._dtype))
                self._launches[key] = launch
        return launch

    def compile(self, text: str, name: str) -> bytes:
        """The binary of a kernel that a program brings along.

        Raises:
            CompileError: the compiler refuses it.
        """
        source = Source(text, name, (), "cuda")
        request = CompileRequest(source, "hybrid", self._limits.architecture)
        reply = compile_kept(self._programs, request)
        if isinstance(reply, Refused):
            raise CompileError(f"the program's kernel {name} does not compile: {reply.reason}")
        return reply.cubin

    def close(self) -> None:
        """Unload the kernels."""
        self._launches.clear()
        for kernel in self._loaded.values():
            kernel.close()
        self._loaded.clear()

    def _make(self, device: int, problem: Gemm) -> Launch:
        chosen, plan = self._fitting(problem)
        family, configuration = chosen.family, chosen.configuration
        key = device, family.name, configuration
        kernel = self._loaded.get(key)
        if kernel is None:
            program = make_program(
                family, configuration, problem, self._limits, self._programs, chosen.binary
            )
            kernel = self._loaded[key] = CudaKernel(program, device)
        return kernel.launcher(plan)

    def _fitting(self, problem: Gemm) -> tuple[Multiplier, LaunchPlan]:
        """What multiplies these sizes, and what it launches."""
        for each, bound in self._kernels:
            plan = plan_or_none(bound, problem)
            if plan is not None:
                return each, plan
        best = self._kernels[0][0]
        nearest = nearest_valid(best.family, best.configuration, problem, self._limits)
        bound = Bound(best.family, nearest, problem, self._limits)
        return Multiplier(best.family, nearest, None), plan_launch(bound.at(problem))


def nearest_valid(
    family: KernelFamily, wanted: Configuration, problem: Gemm, limits: CudaLimits
) -> Configuration:
    """The configuration that is valid for a problem and nearest to the one that is wanted.

    Raises:
        SpaceError: the family has none.
    """
    space = family.space(problem, limits)
    row = space.nearest(wanted, ())
    return family.default(problem, limits) if row is None else space[row]
