"""Emitted Numba modules on the processor of this machine."""

from __future__ import annotations

from autotune.targets.cpu.evaluator import CpuEvaluator
from autotune.targets.cpu.kernel import CpuKernel, CpuProgram, load_kernel

__all__ = ["CpuEvaluator", "CpuKernel", "CpuProgram", "load_kernel"]
