"""Processors that families are asked about, whatever this one is."""

from __future__ import annotations

import dataclasses

from autotune.core.limits import CpuLimits

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
