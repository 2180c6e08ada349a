"""Compiling CUDA kernels ahead of the calls that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.forking import LOADING
from autotune.families.gpu.planning import planner_of
from autotune.gpu.launch.code import Wanted, refused
from autotune.gpu.nvidia.compile.compiling import CompileReply, Refused, compile_worker
from autotune.measuring.processes import WorkerProcess
from autotune.serving.background import Job, background

if TYPE_CHECKING:
    from autotune.core.configuration import Configuration
    from autotune.core.limits import CudaLimits
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem
    from autotune.serving.background import Workers


def compile_job(
    family: KernelFamily,
    configuration: Configuration,
    problem: Problem,
    limits: CudaLimits,
    programs: ProgramCache,
) -> Job | None:
    """What compiles a kernel in another process; None where it is compiled.

    Args:
        family: the configuration's family.
        configuration: which kernel.
        problem: what it computes.
        limits: of the device.
        programs: where emitted sources are, and what was compiled from them.
    """
    planner = planner_of(family, configuration, problem.dtype, limits)
    wanted = Wanted(planner, problem, limits.architecture, programs)
    key = ("cuda", *wanted.key)
    if not background().has(key) and wanted.is_here():
        return None

    def start() -> WorkerProcess:
        return WorkerProcess(
            compile_worker, programs, (family.target,), replies=CompileReply, renewed=True
        )

    def compile_all(workers: Workers) -> None:
        kind = family.target, programs.folder
        with LOADING:  # a fork waits for what is imported and rendered for the first time
            requests = wanted.requests()
        for request in requests:
            reply = workers.ask(kind, start, request)
            if isinstance(reply, Refused):
                raise refused(request, reply)
        with LOADING:
            wanted.code()

    return Job(key, f"{family.name} for {problem.dtype}", compile_all)
