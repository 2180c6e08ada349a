"""Times that no kernel takes: none of an honest kernel, on whatever machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_poking import HostRig, evaluated, honest

from autotune.core.measurement import Outcome
from autotune.core.paths import data_dir
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.measuring.messages import Visit
from autotune.measuring.plausibility import UNKNOWN, Ceiling, cpu_ceiling, gpu_ceiling
from autotune.measuring.trial import Trials
from autotune.operations.problem import Gemm
from autotune.store.files import read_records

GPUS = {
    # Data sheets: the highest clock in MHz, and TFLOP/s of float64 (by tensor cores, if there
    # are), float32, TF32 and of 16-bit types without sparsity.
    "v100": (1530, 7.8, 15.7, 15.7, 125),
    "t4": (1590, 0.25, 8.1, 8.1, 65),
    "rtx2080ti": (1635, 0.42, 13.4, 13.4, 107.6),
    "a100": (1410, 19.5, 19.5, 156, 312),
    "a40": (1740, 0.58, 37.4, 74.8, 149.7),
    "rtx3090": (1695, 0.56, 35.6, 35.6, 142),
    "l40s": (2520, 1.4, 91.6, 183, 362),
    "rtx4090": (2520, 1.3, 82.6, 82.6, 330.3),
    "h100": (1980, 67, 67, 494.7, 989.4),
    "h200": (1980, 67, 67, 494.7, 989.4),
    "b200": (1965, 40, 80, 1125, 2250),
    "rtx5090": (2407, 1.64, 104.8, 104.8, 419),
}
CPUS = [
    # Threads, bits of a vector, GFLOP/s of float32 at the highest clock.
    ("EPYC, Zen 4, a core", 1, 512, 32 * 3.7),
    ("EPYC, Zen 5, a core", 1, 512, 64 * 4.1),
    ("Xeon, Sapphire Rapids, 8 cores", 8, 512, 8 * 64 * 3.8),
    ("Core i9-14900KS, a core", 1, 256, 32 * 6.2),
    ("Graviton 4, a core", 1, 128, 32 * 2.8),
    ("Apple M4, a core without its matrix unit", 1, 128, 32 * 4.5),
    ("A64FX, a core", 1, 512, 64 * 2.2),
]
SIZES = st.integers(1, 20_000)


@given(m=SIZES, n=SIZES, k=SIZES, dtype=st.sampled_from(["float32", "float64"]))
@pytest.mark.parametrize(("threads", "bits", "gflops"), [each[1:] for each in CPUS])
def test_processors_at_their_peak_are_plausible(
    threads: int, bits: int, gflops: float, m: int, n: int, k: int, dtype: str
) -> None:
    problem = Gemm(m, n, k, dtype)
    rate = gflops * 1e9 * (1 if dtype == "float32" else 0.5)
    ceiling = cpu_ceiling(threads, bits, problem.itemsize)
    # Each operand comes from the level-1 cache once, three vectors in a cycle.
    best_s = max(problem.flops / rate, problem.traffic / (threads * 3 * bits / 8 * 6.2e9))
    assert ceiling.least_s(problem, "ieee") < best_s
    # Seven products for eight, down to 8.
    assert ceiling.least_s(problem, "strassen") < problem.flops * 0.875**10 / rate + best_s


@given(m=SIZES, n=SIZES, k=SIZES)
@pytest.mark.parametrize("name", GPUS)
def test_gpus_at_their_peak_are_plausible(name: str, m: int, n: int, k: int) -> None:
    limits = find_gpu(name).limits
    clock, double, single, tf32, short = GPUS[name]
    for dtype, accuracy, tflops in (
        ("float64", "ieee", double),
        ("float32", "ieee", single),
        ("float32", "tf32", tf32),
        ("bfloat16", "native", short),
    ):
        problem = Gemm(m, n, k, dtype)
        for known in (1e6 * clock, None):
            ceiling = gpu_ceiling(
                limits.compute_capability, limits.multiprocessor_count, problem.itemsize, known
            )
            cycles = limits.multiprocessor_count * clock * 1e6
            best_s = max(problem.flops / (tflops * 1e12), problem.traffic / (64 * cycles))
            assert ceiling.least_s(problem, accuracy) < best_s


def test_what_is_shipped_is_plausible() -> None:
    for file in data_dir("cache").glob("cuda-*/gemm.jsonl"):
        for record in read_records(file):
            problem = Gemm(**record.problem)
            limits = find_gpu("h200" if "h200" in file.parent.name else "h100").limits
            ceiling = gpu_ceiling(90, limits.multiprocessor_count, problem.itemsize, 1.98e9)
            assert ceiling.least_s(problem, problem.accuracy) < record.median_s


@pytest.mark.parametrize("us", [0.3, 0.7, 1.0, 1.6, 2.6, 5.9])
def test_times_of_kernels_that_do_nothing_are_not(us: float) -> None:
    ceiling = cpu_ceiling(2, 512, 4)
    problem = Gemm(160, 160, 160)
    assert ceiling.least_s(problem, "ieee") > us * 1e-6
    assert ceiling.least_s(problem, "ieee") < 50e-6


@pytest.mark.parametrize("name", ["rtx3090", "l40s", "rtx4090"])
def test_without_tensor_cores_the_ceiling_is_that_of_the_data_sheet(name: str) -> None:
    """Lanes times multiprocessors: what float64 may reach where nothing is known of it."""
    limits, (clock, _, single, *_) = find_gpu(name).limits, GPUS[name]
    ceiling = gpu_ceiling(limits.compute_capability, limits.multiprocessor_count, 8, clock * 1e6)
    assert ceiling.flops == pytest.approx(single * 1e12, rel=0.005)


@pytest.mark.parametrize("name", GPUS)
def test_a_clock_that_is_not_known_loosens_the_ceiling_less_than_threefold(name: str) -> None:
    limits, clock = find_gpu(name).limits, 1e6 * GPUS[name][0]
    known, unknown = (
        gpu_ceiling(limits.compute_capability, limits.multiprocessor_count, 4, each)
        for each in (clock, None)
    )
    assert known.flops < unknown.flops < 3 * known.flops
    assert known.bytes < unknown.bytes < 3 * known.bytes


def test_what_is_told_has_the_units_of_data_sheets() -> None:
    assert Ceiling(2e12, 3e11).told(1e-6, 2.5e-6) == (
        "1 us a call, where no kernel takes less than 2.5 us (at most 2000 GFLOP/s and 300 GB/s)"
    )


def test_such_a_trial_has_an_outcome_of_its_own() -> None:
    rig = HostRig(honest)
    rig.ceiling = Ceiling(1.0, 1.0)
    reply = evaluated(rig)
    assert reply.measurement.outcome is Outcome.IMPLAUSIBLE
    assert reply.measurement.median_s is None
    assert reply.lost
    assert "us a call, where no kernel takes less than" in reply.measurement.reason
    visited = Trials(rig, rig.effort)(Visit(None, "ieee", 0.02))  # type: ignore[arg-type]
    assert visited.measurement.outcome is Outcome.IMPLAUSIBLE  # type: ignore[union-attr]
    rig.ceiling = UNKNOWN
    assert evaluated(rig).measurement.ok
