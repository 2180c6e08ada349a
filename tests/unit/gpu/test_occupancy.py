from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from true_rows import true_rows

from autotune.core.errors import ExpressionError
from autotune.core.limits import GpuLimits
from autotune.families.gpu.occupancy import blocks_per_multiprocessor, limit_restrictions
from autotune.gpu.nvidia.known_gpus import find_gpu, known_gpus

GPUS = {gpu.limits.compute_capability: gpu.limits for gpu in known_gpus().values()}


@pytest.mark.parametrize(
    ("threads", "most"),
    [
        # From the CUDA toolkit's occupancy header, for compute capability 9.0.
        (128, (255, 255, 168, 128)),
        (256, (255, 128, 80, 64)),
        (288, (168, 96, 72, 56)),
        (384, (168, 80, 56, 40)),
        (512, (128, 64, 40, 32)),
    ],
)
def test_the_most_registers_with_which_blocks_fit(threads: int, most: tuple[int, ...]) -> None:
    h200 = find_gpu("h200").limits
    for blocks, registers in enumerate(most, start=1):
        fits = [
            r
            for r in range(1, 256)
            if blocks_per_multiprocessor(h200, threads=threads, registers=r, shared_bytes=0)
            >= blocks
        ]
        assert fits == list(range(1, registers + 1))


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared_bytes", "blocks", "why"),
    [
        ("v100", 1024, 32, 0, 2, "2048 threads"),
        ("v100", 32, 16, 0, 32, "block slots"),
        ("v100", 256, 32, 96 * 1024, 1, "all shared memory, nothing reserved"),
        ("v100", 256, 32, 48 * 1024 + 1, 1, "rounded up to 49408 bytes"),
        ("t4", 256, 32, 0, 4, "1024 threads"),
        ("t4", 32, 32, 0, 16, "block slots"),
        ("t4", 1024, 64, 0, 1, "64 registers a thread just fit"),
        ("t4", 1024, 65, 0, 0, "72 registers a thread, as allocated, do not"),
        ("a100", 128, 32, 163 * 1024, 1, "the most shared memory of one block"),
        ("a100", 128, 32, 163 * 1024 + 1, 0, "one byte too many"),
        ("a100", 128, 32, 81 * 1024, 2, "2 * (81 + 1) KiB = 164 KiB"),
        ("a100", 128, 32, 81 * 1024 + 1, 1, "rounded up to 128 bytes more"),
        ("rtx3090", 512, 40, 0, 3, "1536 threads"),
        ("rtx3090", 64, 16, 0, 16, "block slots"),
        ("rtx4090", 64, 16, 0, 24, "block slots: 24 of them since 8.9"),
        ("rtx4090", 1024, 32, 0, 1, "48 warps hold one block of 32"),
        ("h200", 256, 128, 64 * 1024, 2, "registers"),
        ("h200", 256, 64, 113 * 1024, 2, "2 * (113 + 1) KiB = 228 KiB"),
        ("h200", 256, 64, 227 * 1024, 1, "the most shared memory of one block"),
        ("h200", 33, 255, 0, 4, "two warps, one per partition and block: 8 warps fit"),
        ("rtx5090", 384, 40, 0, 4, "48 warps of 40 registers: 12 fit a partition"),
        ("b200", 1025, 16, 0, 0, "threads of one block"),
        ("b200", 32, 256, 0, 0, "registers of one thread"),
    ],
)
def test_by_hand(
    device: str, threads: int, registers: int, shared_bytes: int, blocks: int, why: str
) -> None:
    counted = blocks_per_multiprocessor(
        find_gpu(device).limits, threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    assert counted == blocks, why


def at_least(limits: GpuLimits, names: dict[str, int], blocks: str) -> bool:
    rules = limit_restrictions(blocks)
    return all(rule.expression.holds({**limits.names(), **names}) for rule in rules)


@given(
    limits=st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__),
    threads=st.integers(1, 1100),
    registers=st.integers(1, 270),
    shared_bytes=st.integers(0, 240 * 1024),
    blocks=st.integers(1, 33),
)
def test_the_restrictions_say_the_same(
    limits: GpuLimits, threads: int, registers: int, shared_bytes: int, blocks: int
) -> None:
    names = {"threads": threads, "registers": registers, "shared_bytes": shared_bytes}
    counted = blocks_per_multiprocessor(limits, **names)
    assert at_least(limits, names, "1") == (counted >= 1)
    assert at_least(limits, names, str(blocks)) == (counted >= blocks)
    assert at_least(limits, {**names, "wanted": blocks}, "wanted") == (counted >= blocks)
    assert at_least(limits, {**names, "wanted": blocks}, "wanted + 1") == (counted > blocks)


def test_they_prune_whole_columns() -> None:
    limits = find_gpu("h200").limits
    rng = np.random.default_rng(0)
    columns = {
        "threads": rng.integers(1, 1100, 2000),
        "registers": rng.integers(1, 270, 2000),
        "shared_bytes": rng.integers(0, 120 * 1024, 2000),
    }
    holds = np.ones(2000, dtype=bool)
    for rule in limit_restrictions("2"):
        holds &= true_rows(rule.expression, {**limits.names(), **columns})
    counted = [
        blocks_per_multiprocessor(limits, threads=int(t), registers=int(r), shared_bytes=int(s))
        for t, r, s in zip(*columns.values(), strict=True)
    ]
    assert 0 < holds.sum() < 2000
    np.testing.assert_array_equal(holds, np.array(counted) >= 2)


def test_every_restriction_has_a_reason_and_a_bad_number_of_blocks_is_refused() -> None:
    assert len(limit_restrictions()) < len(limit_restrictions("min_blocks"))
    assert all(rule.reason for rule in limit_restrictions("min_blocks"))
    with pytest.raises(ExpressionError, match="open"):
        limit_restrictions("open()")
