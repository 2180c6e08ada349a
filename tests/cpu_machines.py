"""Processors that families are asked about, whatever this one is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import product

from autotune.core.limits import CpuLimits
from autotune.families.family import KernelFamily
from autotune.operations.problem import Gemm

AVX512 = CpuLimits(
    max_threads=2,
    vector_bits=512,
    vector_registers=32,
    l1_bytes=48 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
    line_bytes=64,
)
AVX2 = CpuLimits(
    max_threads=8,
    vector_bits=256,
    vector_registers=16,
    l1_bytes=32 << 10,
    l2_bytes=256 << 10,
    l3_bytes=8 << 20,
    line_bytes=64,
)
SINGLE = CpuLimits(
    max_threads=1,
    vector_bits=128,
    vector_registers=16,
    l1_bytes=32 << 10,
    l2_bytes=128 << 10,
    l3_bytes=0,
    line_bytes=64,
)
"""One core, the narrowest vectors and no third cache."""
NEON = dataclasses.replace(AVX512, max_threads=64, vector_bits=128)


def effective_restrictions(
    family: KernelFamily, problems: Iterable[Gemm], machines: Iterable[CpuLimits]
) -> set[str]:
    """The restrictions of a family that remove something, of any problem on any machine."""
    effective = set()
    for problem, limits in product(problems, machines):
        space = family.space(problem, limits)
        remaining = space.cartesian
        for step in space.funnel():
            if step.remaining < remaining:
                effective.add(step.expr)
            remaining = step.remaining
    return effective
