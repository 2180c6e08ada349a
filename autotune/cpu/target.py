"""The target `cpu`: emitted Numba source on the processor of this machine."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.errors import InputError
from autotune.core.forking import threads_are_lost
from autotune.core.limits import CpuLimits
from autotune.serving.numba_settings import numba_settings
from autotune.serving.reports import Doctor, Exporter
from autotune.serving.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from autotune.core.check import Check
    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.exporting.exportable import Exportable, Exported
    from autotune.families.family import KernelFamily, Language
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.background import Job
    from autotune.serving.kernel import BoundKernel
    from autotune.serving.target import Work


class _Doctor(Doctor):
    def examine(self) -> Iterator[Check]:
        """The processor, Numba and its threads, NumPy's BLAS."""
        from autotune.cpu.examining import examine

        return examine()


class _Exporter(Exporter):
    def export(self, exportable: Exportable, form: str) -> Exported:
        """The emitted module, or what LLVM makes of it."""
        from autotune.cpu.exporting import export

        return export(exportable, form)


class CpuTarget(Target):
    """Emitted Numba source on the processor this process runs on."""

    name: ClassVar[str] = "cpu"
    doctor: ClassVar[Doctor] = _Doctor()
    exporter: ClassVar[Exporter] = _Exporter()

    @classmethod
    def language(cls) -> Language:
        """Python for Numba; operations of a user's own, too."""
        from autotune.families.epilogue_text import NUMBA_LACKS
        from autotune.families.family import Language
        from autotune.families.python_source import (
            check_module,
            numba_epilogue,
            numba_names,
            numba_reserved,
        )

        return Language(
            limits=frozenset(field.name for field in fields(CpuLimits)),
            check=check_module,
            names=numba_names,
            reserved=numba_reserved,
            own_operations=True,
            epilogue=numba_epilogue,
            lacks=NUMBA_LACKS,
            threaded=True,
            settings=numba_settings,
        )

    @classmethod
    def is_usable(cls) -> bool:
        """Always."""
        return True

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """This machine's CPU; the thread limit is capped by the problem's `threads`."""
        from autotune.cpu.identity import read_cpu

        if name is not None:
            raise InputError(
                f"a device names a GPU, and the target is cpu: got {name!r}, which needs target "
                '"cuda"'
            )
        device = read_cpu()
        cap = getattr(problem, "threads", None)
        if cap is None or not isinstance(device.limits, CpuLimits):
            return device
        threads = min(cap, device.limits.max_threads)
        return replace(device, limits=replace(device.limits, max_threads=threads))

    def caps(self, problem: Problem) -> tuple[Hashable, ...]:
        """The most threads that the problem may use."""
        return (getattr(problem, "threads", None),)

    def runnable(self, device: Device) -> Device:
        """One thread in a child by fork, which may have lost the others."""
        if threads_are_lost() and isinstance(device.limits, CpuLimits):
            return replace(device, limits=replace(device.limits, max_threads=1))
        return device

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """Compile workers and one measurement worker on this machine."""
        from autotune.cpu import CpuEvaluator

        return CpuEvaluator(work, beside if isinstance(beside, CpuEvaluator) else None)

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Load the emitted module, from Numba's file cache when it was compiled before."""
        from autotune.cpu.call import host_kernel

        bound = host_kernel(family, candidate.configuration, problem, device.limits, programs)
        return bound.__call__  # Python calls a method faster than an object

    def checker(self, problem: Problem) -> BoundKernel:
        """It allocates outputs that are not given, as any."""
        from autotune.cpu.call import bound_kernel

        return bound_kernel(problem, lambda *arguments: None).__call__

    def job(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
    ) -> Job | None:
        """Numba, in another process."""
        from autotune.cpu.compiling import compile_job

        return compile_job(family, candidate.configuration, problem, programs)

    def library(self, problem: Problem, tuned: Callable[[], BoundKernel]) -> BoundKernel | None:
        """NumPy's product."""
        from autotune.cpu.call import numpy_kernel

        return numpy_kernel(problem).__call__
