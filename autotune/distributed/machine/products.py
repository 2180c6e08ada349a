"""The product within a GPU: tuned CUDA kernels, launched for blocks of any size."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from autotune.core.configuration import Configuration
from autotune.core.errors import CompileError, InputError
from autotune.core.limits import GpuLimits
from autotune.distributed.machine.interface import LocalKernel
from autotune.families.catalog import catalog
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import Binary, LaunchPlan
from autotune.families.gpu.planning import Planner
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.gpu.compiling import CompileRequest, Refused, compile_kept
from autotune.gpu.launch.code import make_program
from autotune.gpu.launch.kernel import GpuKernel, Launch
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm


class Products:
    """Kernels, loaded on every GPU that asks for them.

    Args:
        kernels: best first, and all for one element type and kind of GPU. The first that is valid
            for some sizes serves them; sizes that none is valid for get the nearest configuration
            to the first one that is.
        programs: holds sources and binaries.

    Raises:
        InputError: a family is not here, or not the one that a kernel was made from.
    """

    def __init__(self, kernels: Sequence[LocalKernel], programs: ProgramCache) -> None:
        families = catalog("cuda", languages={"cuda": CudaTarget.language()}, strict=False)
        self._dtype, self._limits = kernels[0].dtype, kernels[0].limits
        self._programs = programs
        self._kernels: list[tuple[Planner, Binary | None]] = []
        for kernel in kernels:
            name = kernel.candidate.family
            if name not in families or families[name].digest != kernel.digest:
                raise InputError(f"family {name!r} of target cuda must be the same on all nodes")
            planner = self._planner(families[name], kernel.candidate.configuration)
            self._kernels.append((planner, kernel.binary))
        self._loaded: dict[tuple[int, str, Configuration], GpuKernel] = {}
        self._lock = threading.Lock()
        self._launches: dict[tuple[int, int, int, int], Launch] = {}

    def launch(self, device: int, m: int, n: int, k: int) -> Launch:
        """A function that enqueues products of these sizes on a GPU.

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
        """The binary of a kernel that a program brings along; a refusal is a CompileError."""
        source = Source(text, name, (), "cuda", ".cu")
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
        planner, binary, plan = self._plan(problem)
        family, configuration = planner.family, planner.configuration
        key = device, family.name, configuration
        kernel = self._loaded.get(key)
        if kernel is None:
            program = make_program(
                family, configuration, problem, self._limits, self._programs, binary
            )
            kernel = self._loaded[key] = GpuKernel(program, device)
        return kernel.launcher(plan)

    def _plan(self, problem: Gemm) -> tuple[Planner, Binary | None, LaunchPlan]:
        """The configuration for these sizes, its binary and its launch."""
        for planner, binary in self._kernels:
            plan = planner.find(problem)
            if plan is not None:
                return planner, binary, plan
        best, _ = self._kernels[0]
        nearest = nearest_valid(best.family, best.configuration, problem, self._limits)
        planner = self._planner(best.family, nearest)
        return planner, None, planner.plan(problem)

    def _planner(self, family: KernelFamily, configuration: Configuration) -> Planner:
        return Planner(family, configuration, self._dtype, self._limits)


def nearest_valid(
    family: KernelFamily, wanted: Configuration, problem: Gemm, limits: GpuLimits
) -> Configuration:
    """The configuration that is valid for a problem and nearest to the one that is wanted.

    Raises:
        SpaceError: the family has none.
    """
    space = family.space(problem, limits)
    row = space.nearest(wanted, ())
    return family.default(problem, limits) if row is None else space[row]
