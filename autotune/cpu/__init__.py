"""The target `cpu`: emitted Numba modules on the processor of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.cpu.evaluator import CpuEvaluator as CpuEvaluator
    from autotune.cpu.kernel import CpuKernel as CpuKernel
    from autotune.cpu.kernel import CpuProgram as CpuProgram
    from autotune.cpu.kernel import load_kernel as load_kernel
    from autotune.cpu.target import CpuTarget as CpuTarget

_HOMES = {
    "CpuEvaluator": "evaluator",
    "CpuKernel": "kernel",
    "CpuProgram": "kernel",
    "CpuTarget": "target",
    "load_kernel": "kernel",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
