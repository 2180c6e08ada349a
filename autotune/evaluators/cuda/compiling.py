"""Compiling ahead of the device: a pool of processes, and binaries kept on disk."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.errors import CompileError, InputError
from autotune.evaluators.cuda.cubin import read_cubin
from autotune.evaluators.cuda.nvrtc import Compiled, compile_cuda, nvrtc_version
from autotune.evaluators.processes import Failure, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.program_cache import ProgramCache
    from autotune.rendering import Source

_NICENESS = 10


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What is to be compiled.

    Attributes:
        source: CUDA C++.
        family: whose source it is.
        architecture: "sm_90".
    """

    source: Source
    family: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The compiler does not accept a source.

    Attributes:
        reason: its first error.
    """

    reason: str


CompileReply: TypeAlias = Compiled | Refused


def compile_worker(programs: ProgramCache) -> Callable[[CompileRequest], CompileReply]:
    """Entry of a worker that compiles, yielding to the process that measures."""
    os.nice(_NICENESS)
    nvrtc_version()  # loads the compiler now, not in the time of the first candidate
    return functools.partial(compile_kept, programs)


def compile_kept(programs: ProgramCache, request: CompileRequest) -> CompileReply:
    """Compile a source, unless that was done before: binaries are kept beside the sources.

    Raises:
        CacheError: the program cache cannot be written.
        MissingDependencyError: there is no NVRTC, or it does not know the architecture.
    """
    version = ".".join(map(str, nvrtc_version()))
    cubin = programs.binary(
        request.source, request.family, f"{request.architecture}-nvrtc{version}.cubin"
    )
    notes = cubin.with_suffix(".json")
    start = time.perf_counter()
    # Whatever cannot be used is made again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InputError):
        binary = cubin.read_bytes()
        kept = json.loads(notes.read_text(encoding="utf-8"))
        return Compiled(
            cubin=binary,
            architecture=request.architecture,
            kernels=read_cubin(binary),
            spill_bytes={str(name): int(size) for name, size in kept["spill_bytes"].items()},
            log=str(kept["log"]),
            seconds=time.perf_counter() - start,
        )
    try:
        compiled = compile_cuda(request.source.text, request.architecture)
    except CompileError as error:
        return Refused(str(error))
    fields = {name: asdict(compiled)[name] for name in ("spill_bytes", "log")}
    programs.keep(notes, json.dumps(fields).encode())  # first: who sees the binary finds them too
    programs.keep(cubin, compiled.cubin)
    return compiled


class CompilePool:
    """Compiles in the background, in processes that may be killed.

    Args:
        programs: where sources and binaries are kept.
        count: how many processes.
        timeout_s: seconds after which a compile is killed.
    """

    def __init__(self, programs: ProgramCache, count: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._workers = [WorkerProcess(compile_worker, programs) for _ in range(count)]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        # As many threads as processes, and all of them live until `close`: a process dies with
        # the thread that started it.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="compile")

    def submit(self, request: CompileRequest) -> Future[CompileReply | Failure]:
        """Compile when a process is free; returns at once.

        The future raises AutotuneError when a worker does not start.
        """
        return self._threads.submit(self._compile, request)

    def close(self) -> None:
        """End every process; what has not been compiled will not be."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            # Their own threads wait for them; those notice that they are gone.
            if worker.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.close(grace_s=0)

    def _compile(self, request: CompileRequest) -> Any:
        worker = self._idle.get()
        try:
            return worker.call(request, self._timeout_s)
        finally:
            self._idle.put(worker)
