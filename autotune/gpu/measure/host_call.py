"""Whole calls: from arrays of the host to a result on the host.

A process of its own for every kernel: what is loaded, allocated and set up by the first call is
then still to be done.
"""

from __future__ import annotations

import functools
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.core.limits import limits_of
from autotune.gpu.driver import activated, driver, use, used, vendor
from autotune.gpu.launch.code import make_program
from autotune.gpu.launch.kernel import GpuKernel
from autotune.gpu.vendor import blas_name
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.processes import WorkerProcess
from autotune.operations.parts import strides_of
from autotune.serving.reports import HostCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.core.configuration import Configuration
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.gpu.launch.program import GpuProgram
    from autotune.operations.problem import Problem

WARM_S = 0.2
"""Seconds of repeated calls."""

_MIN_CALLS = 3
_TIMEOUT_S = 60.0


class DeviceCalls:
    """Times whole calls of one problem, each kernel in a fresh process."""

    def __init__(self, problem: Problem, device: Device, programs: ProgramCache) -> None:
        self._problem = problem
        self._limits = limits_of(device)
        self._programs = programs
        self._environment = vendor().alone(device)
        self._next = self._start()

    def kernel(self, family: KernelFamily, configuration: Configuration) -> HostCall | Failure:
        """Time a kernel that is known to work."""
        return self._time(
            make_program(family, configuration, self._problem, self._limits, self._programs)
        )

    def vendor(self, name: str) -> HostCall | Failure:
        """Time the vendor's library of a baseline's name."""
        return self._time(name)

    def close(self) -> None:
        """End the process that is waiting."""
        self._next.close(grace_s=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _time(self, program: GpuProgram | str) -> HostCall | Failure:
        # The process after this one starts meanwhile; it touches no device before it is asked.
        worker, self._next = self._next, self._start()
        try:
            reply: HostCall | Failure | None = worker.call(program, _TIMEOUT_S)
        finally:
            worker.close()
        return Failure(FailureKind.RAISED, "the vendor has no library") if reply is None else reply

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(
            host_call_worker,
            self._problem,
            used(),
            environment=self._environment,
            replies=HostCall | None,
        )
        worker.spawn()
        return worker


def host_call_worker(
    problem: Problem, vendor_name: str
) -> Callable[[GpuProgram | str], HostCall | None]:
    """Entry of a process that times one kernel: everything but the device is ready."""
    use(vendor_name)
    driver()
    rng = np.random.default_rng(0)
    arrays = [
        _bits(rng.random(operand.shape, dtype=np.float32).astype(ELEMENTS[operand.dtype].numpy))
        for operand in problem.operands
    ]
    return functools.partial(_time_calls, problem, arrays)


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory as integers: drivers take what has a buffer, and bfloat16 has none."""
    return array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array


def _time_calls(
    problem: Problem,
    arrays: Sequence[np.ndarray[Any, Any]],
    program: GpuProgram | str,
) -> HostCall | None:
    start = time.perf_counter()
    with activated(0):
        context_s = time.perf_counter() - start
        start = time.perf_counter()
        if isinstance(program, str):
            launch = _library(problem, program)
        else:
            launch = GpuKernel(program).launch
        if launch is None:
            return None
        _call(launch, arrays, problem)
        cold_s = time.perf_counter() - start
        calls: list[float] = []
        begun = time.perf_counter()
        while len(calls) < _MIN_CALLS or time.perf_counter() - begun < WARM_S:
            start = time.perf_counter()
            _call(launch, arrays, problem)
            calls.append(time.perf_counter() - start)
    return HostCall(context_s, cold_s, median(calls))


def _library(problem: Problem, name: str) -> Callable[..., None] | None:
    for blas in vendor().blas(problem, driver().stream()):
        if blas_name(blas) == name:
            return blas.launch
    return None


def _call(
    launch: Callable[..., None], arrays: Sequence[np.ndarray[Any, Any]], problem: Problem
) -> None:
    """Allocate, copy, compute, copy back, free."""
    here = driver()
    buffers = [here.allocate(array.nbytes) for array in arrays]
    operands: list[int] = []
    placed = list(zip(problem.operands, buffers, arrays, strict=True))
    for operand, buffer, array in placed:
        if operand.read or not operand.written:
            here.upload(int(buffer), array)
        operands += [int(buffer), *strides_of(array.shape)[:-1]]
    launch(*operands)
    here.synchronize()
    for operand, buffer, array in placed:
        if operand.written:
            here.download(array, int(buffer))
    for buffer in buffers:
        buffer.free()
