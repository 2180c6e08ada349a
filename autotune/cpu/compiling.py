"""Compiling emitted modules in worker processes, which fills Numba's file cache."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.configuration import Configuration
from autotune.core.errors import CompileError
from autotune.core.forking import LOADING
from autotune.cpu.direct import direct_call, known_call, write_call
from autotune.cpu.kernel import is_loaded, known_program, load_kernel, write_program
from autotune.cpu.numba_start import import_numba
from autotune.families.compiled_files import CompiledFiles
from autotune.families.modules import load_module
from autotune.measuring.processes import WorkerProcess
from autotune.serving.background import Job, background

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem
    from autotune.serving.background import Workers


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module in Numba's file cache.

    Attributes:
        seconds: processor time spent; next to none when it was there before.
        error: the compiler's reason, when it refused.
    """

    seconds: float
    error: str = ""


def is_compiled(path: Path) -> bool:
    """True if Numba's file cache has a module, as far as can be seen without Numba."""
    return CompiledFiles(path).made_by(_numba_version())


@session.cached()
def _numba_version() -> str:
    return metadata.version("numba")


def compile_worker() -> Callable[[Path], Compiled]:
    """Entry of a worker that compiles the modules it is given the paths of."""
    import_numba()  # now, so that it is no part of any candidate's time
    return compile_module


def compile_module(path: Path) -> Compiled:
    """Import a module, which fills Numba's file cache beside it."""
    start = time.process_time()
    error = ""
    try:
        load_module(path)
    except CompileError as refused:
        error = str(refused)
    return Compiled(time.process_time() - start, error)


def compile_job(
    family: KernelFamily, configuration: Configuration, problem: Problem, programs: ProgramCache
) -> Job | None:
    """A job that compiles a kernel, and the function that calls it on arrays, in another process.

    None where Numba's file cache has both, or this process has loaded them.
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
    program = known_program(family, configuration, problem, programs)
    call = program and known_call(program, programs)
    return bool(program and call and is_compiled(program.path) and is_compiled(call))
