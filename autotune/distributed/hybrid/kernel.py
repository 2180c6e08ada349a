"""Kernels of target hybrid: a program bound to a problem, called on arrays of host or GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.arrays.device import DeviceArray, check_place
from autotune.arrays.host import check_operands, element_strides
from autotune.arrays.libraries import library_of
from autotune.core.configuration import Candidate
from autotune.core.device import DeviceLimits
from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError
from autotune.core.paths import CacheLocations
from autotune.distributed.grid import Block, check_beta
from autotune.distributed.hybrid.machine import Plan, emit_program, machine_with, make_plan
from autotune.distributed.machine import GpuMachine, LocalKernel
from autotune.families.family import KernelFamily
from autotune.families.program_cache import ProgramCache
from autotune.gpu.arrays.kernel import describe
from autotune.gpu.driver import finish
from autotune.gpu.matrix import DeviceMatrix, check_apart
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.calls import real
from autotune.operations.problem import Gemm
from autotune.serving.kernel import ProductKernel
from autotune.serving.lookup import binary_of, look_up


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class HybridKernel(ProductKernel):
    """A tuned kernel of the GPUs of a host; a call returns when C is there.

    Operands are NumPy arrays (operands="host"), arrays on the first GPU ("device"), or lists with
    the block of every GPU ("blocks"; see `blocks`).
    """

    _bound: HybridCall

    @property
    def blocks(self) -> list[tuple[Block, Block, Block]]:
        """Parts of A, B and C that every GPU keeps, with operands="blocks"."""
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
    """A candidate as a callable, on operands that are where `operands` says."""

    def choose(wanted: Gemm) -> LocalKernel:
        return choose_local(wanted, programs)

    program = emit_program(family, candidate.configuration, problem, limits, choose)
    devices = limits.names()["gpus"]

    def plan(resources: contextlib.ExitStack) -> Plan:
        machine = resources.enter_context(machine_with(program.local, devices, programs))
        return make_plan(program, machine, programs, problem.m, problem.n, problem.k)

    return HybridCall(problem, operands, plan, look_at, allocate)


@contextlib.contextmanager
def open_machine(
    m: int, n: int, k: int, dtype: str, devices: int, cache: str | Path | None = None
) -> Iterator[GpuMachine]:
    """The first GPUs here, with the tuned CUDA kernel for products of about these sizes.

    An emitted program runs on it when it is run by itself.
    """
    programs = ProgramCache.of(CacheLocations.at(cache))
    local = choose_local(Gemm(m, n, k, dtype), programs)
    with machine_with(local, devices, programs) as machine:
        yield machine


def look_at(name: str, array: Any) -> DeviceArray:
    """Describe an operand on a GPU, once its library's work on it is done."""
    handle = library_of(array).current_stream(array)
    found = describe(name, array, handle)
    finish(found.device, handle)
    if found.stream is not None and found.stream != handle:
        finish(found.device, found.stream)
    return found


def allocate(like: Any, shape: tuple[int, int], dtype: str) -> Any:
    """An array of the library of another, on its GPU."""
    return library_of(like).empty(like, shape, dtype, None)


class HybridCall:
    """``kernel(a, b, out, alpha, beta, stream)``: checks operands, then computes; returns C.

    Calls from several threads take turns.

    Args:
        problem: what is computed.
        operands: "host", "device" or "blocks".
        make_plan: makes the emitted program's plan for the problem, at the first use; what is to
            be freed after it goes to the stack.
        look: as `look_at`.
        allocate: as `allocate`.
    """

    def __init__(
        self,
        problem: Gemm,
        operands: str,
        make_plan: Callable[[contextlib.ExitStack], Plan],
        look: Callable[[str, Any], DeviceArray],
        allocate: Callable[[Any, tuple[int, int], str], Any],
    ) -> None:
        self._problem = problem
        self._operands = operands
        self._make_plan = make_plan
        self._look = look
        self._allocate = allocate
        self._plan: Plan | None = None
        self._resources = contextlib.ExitStack()
        # Threads and memory of a kernel that nobody holds any more; at exit the driver sees to it.
        weakref.finalize(self, self._resources.close).atexit = False
        self._lock = threading.RLock()

    @property
    def plan(self) -> Plan:
        """The plan, made now if it has not been."""
        with self._lock:
            if self._plan is None:
                with contextlib.ExitStack() as made:  # what fails leaves nothing behind
                    self._plan = self._make_plan(made)
                    made.callback(self._plan.free)
                    self._resources.callback(made.pop_all().close)
            return self._plan

    @property
    def blocks(self) -> list[tuple[Block, Block, Block]]:
        """Parts of A, B and C that every GPU keeps.

        Raises:
            OperandError: the operands are whole.
        """
        if self._operands != "blocks":
            raise OperandError(
                f'blocks are kept with operands="blocks" only, and these are "{self._operands}"'
            )
        n, k = self._problem.n, self._problem.k
        return [
            (Block(rows, (0, n)), Block(rows_of_b, (0, k)), Block(rows, (0, k)))
            for rows, rows_of_b in self.plan.blocks()
        ]

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """See `autotune.targets.Kernel` and `HybridKernel`."""
        if stream is not None:
            raise OperandError(
                f"a hybrid kernel has streams of its own, got {stream!r:.80}: leave it out"
            )
        alpha, beta = real("alpha", alpha), real("beta", beta)
        with self._lock:
            if self._operands == "host":
                *_, c = check_operands(self._problem, (a, b), out, {"beta": beta})
                self.plan.from_host(_rows(a), _rows(b), c, alpha, beta)
                return c
            check_beta(beta, out)
            if self._operands == "device":
                return self._from_device(a, b, out, alpha, beta)
            return self._on_blocks(a, b, out, alpha, beta)

    def free(self) -> None:
        """Give threads, streams and memory back; the next call makes them again."""
        with self._lock:
            self._resources.close()
            self._plan = None

    def _from_device(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
        problem = self._problem
        if out is None:
            out = self._allocate(a, problem.c_shape, problem.dtype)
        at_a = self._place("a", a, problem.a_shape, 0)
        at_b = self._place("b", b, problem.b_shape, 0)
        at_c = self._place("out", out, problem.c_shape, 0)
        check_apart(at_c, a=at_a, b=at_b)
        self.plan.from_device(at_a, at_b, at_c, alpha, beta)
        return out

    def _on_blocks(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
        spans = self.blocks
        for name, parts in (("a", a), ("b", b), ("out", out)):
            fits = isinstance(parts, Sequence) and len(parts) == len(spans)
            if not fits and not (name == "out" and parts is None):
                raise OperandError(
                    f"{name} must be a list of {len(spans)} arrays, the block of every GPU "
                    f"(see Kernel.blocks), got {type(parts).__name__}"
                )
        if out is None:
            out = [
                self._allocate(like, of_c.shape, self._problem.dtype)
                for like, (_, _, of_c) in zip(a, spans, strict=True)
            ]
        at_a, at_b, at_c = (
            [
                self._place(f"{name}[{device}]", part, span[which].shape, device)
                for device, (part, span) in enumerate(zip(parts, spans, strict=True))
            ]
            for which, (name, parts) in enumerate((("a", a), ("b", b), ("out", out)))
        )
        for of_a, of_b, of_c in zip(at_a, at_b, at_c, strict=True):
            check_apart(of_c, a=of_a, b=of_b)
        self.plan.on_blocks(at_a, at_b, at_c, alpha, beta)
        return out

    def _place(self, name: str, array: Any, shape: tuple[int, int], device: int) -> DeviceMatrix:
        found = self._look(name, array)
        written = name.startswith("out")
        address, (stride,) = check_place(name, found, shape, self._problem.dtype, written=written)
        if found.device != device:
            raise OperandError(f"{name} must be on GPU {device}, and is on {found.device}")
        dtype = DTYPES[self._problem.dtype].numpy
        return DeviceMatrix(device, address, shape, (stride, 1), dtype)


def _rows(array: Any) -> Any:
    """The array, or a copy of it, with contiguous rows."""
    return np.ascontiguousarray(array) if element_strides(array) is None else array
