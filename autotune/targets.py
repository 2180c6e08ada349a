"""Targets: where kernels run. One table; each entry knows its device, evaluator and callable."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from autotune.device import CpuLimits, Device
from autotune.errors import UnknownNameError

if TYPE_CHECKING:
    from autotune.configuration import Candidate
    from autotune.evaluators.base import Effort, Evaluator
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache

RawKernel = Callable[..., Any]
"""``kernel(a, b, out, alpha, beta)`` on operands that have been validated."""


class Target(Protocol):
    """What the tuner and the runtime need of a target."""

    name: ClassVar[str]
    default_family: ClassVar[str]
    """The family whose default configuration serves a problem nothing was tuned for."""

    def device(self, problem: Gemm | None = None) -> Device:
        """Read the live device; with a problem, under that problem's own caps."""
        ...

    def evaluator(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort,
        workers: int | None,
        seed: int,
    ) -> Evaluator:
        """A running evaluator for one problem; the caller closes it."""
        ...

    def kernel(
        self, family: KernelFamily, candidate: Candidate, problem: Gemm, programs: ProgramCache
    ) -> RawKernel:
        """The compiled kernel of a candidate."""
        ...


class CpuTarget:
    """Emitted Numba source on the processor this process runs on."""

    name: ClassVar[str] = "cpu"
    default_family: ClassVar[str] = "packed"

    def device(self, problem: Gemm | None = None) -> Device:
        """This machine's CPU; the thread limit is capped by the problem's `threads`."""
        from autotune.evaluators.cpu.identity import read_cpu

        device = read_cpu()
        cap = getattr(problem, "threads", None)
        if cap is None or not isinstance(device.limits, CpuLimits):
            return device
        threads = min(cap, device.limits.max_threads)
        return replace(device, limits=replace(device.limits, max_threads=threads))

    def evaluator(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort,
        workers: int | None,
        seed: int,
    ) -> Evaluator:
        """Compile workers and one measurement worker on this machine."""
        from autotune.evaluators.cpu import CpuEvaluator

        return CpuEvaluator(
            problem, families, device, programs, effort=effort, workers=workers, seed=seed
        )

    def kernel(
        self, family: KernelFamily, candidate: Candidate, problem: Gemm, programs: ProgramCache
    ) -> RawKernel:
        """Load the emitted module, from Numba's file cache when it was compiled before."""
        from autotune.evaluators.cpu import load_kernel

        return load_kernel(family, candidate.configuration, problem, programs)


_TARGETS: Mapping[str, Callable[[], Target]] = {"cpu": CpuTarget}


def target_names() -> Sequence[str]:
    """The targets there are, best first."""
    return tuple(_TARGETS)


def make_target(name: str | None) -> Target:
    """The target called `name`; None picks the best this machine has.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
    """
    if name is None:
        return CpuTarget()
    if name not in _TARGETS:
        close = difflib.get_close_matches(name, _TARGETS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(f"target must be one of {', '.join(_TARGETS)}, got {name!r}{hint}")
    return _TARGETS[name]()
