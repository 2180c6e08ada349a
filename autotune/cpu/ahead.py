"""Compiling CPU kernels ahead of the calls that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration
from autotune.core.errors import CompileError
from autotune.core.forking import LOADING
from autotune.cpu.compiling import Compiled, compile_worker, is_compiled
from autotune.cpu.direct import direct_call, known_call, write_call
from autotune.cpu.kernel import is_loaded, known_program, load_kernel, write_program
from autotune.measuring.processes import WorkerProcess
from autotune.serving.background import Job, background

if TYPE_CHECKING:
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem
    from autotune.serving.background import Workers


def compile_job(
    family: KernelFamily, configuration: Configuration, problem: Problem, programs: ProgramCache
) -> Job | None:
    """What compiles a kernel, and the function that calls it on arrays, in another process.

    None where Numba's file cache has both, or this process has loaded them.

    Args:
        family: the configuration's family.
        configuration: which kernel.
        problem: what it computes.
        programs: where emitted sources are.
    """
    if is_loaded(family, configuration, problem, programs):
        return None
    runtime = family.runtime_parameters  # not compiled in: what differs there is one program
    compiled = Configuration({n: v for n, v in configuration.items() if n not in runtime})
    key = ("cpu", family, compiled, problem.dtype, problem.layout, programs.folder)
    if not background().has(key) and _is_on_disk(family, configuration, problem, programs):
        return None

    def compile_both(workers: Workers) -> None:
        with LOADING:  # a fork waits for what is imported and rendered for the first time
            program = write_program(family, configuration, problem, programs)
            paths = (program.path, write_call(program, programs))
        for path in paths:
            reply = workers.ask("cpu", _start, path)
            if reply.error:
                raise CompileError(reply.error)
        with LOADING:
            direct_call(load_kernel(family, configuration, problem, programs), problem, programs)

    return Job(key, f"{family.name} for {problem.dtype}", compile_both)


def _start() -> WorkerProcess:
    return WorkerProcess(compile_worker, replies=Compiled, renewed=True)


def _is_on_disk(
    family: KernelFamily, configuration: Configuration, problem: Problem, programs: ProgramCache
) -> bool:
    """Whether the kernel and the function that calls it are in Numba's file cache."""
    program = known_program(family, configuration, problem, programs)
    if program is None:
        return False
    call = known_call(program, programs)
    return call is not None and is_compiled(program.path) and is_compiled(call)
