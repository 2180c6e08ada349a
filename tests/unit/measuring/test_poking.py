"""Times that no kernel takes, and kernels that do nothing in some of many calls."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operation_examples import SUM

from autotune.core.measurement import Outcome
from autotune.core.paths import data_dir
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.measuring.effort import Effort
from autotune.measuring.harness import ClockedBench, FirstRuns, Harness
from autotune.measuring.messages import Confirm, Evaluate, Evaluated, Program, Visit
from autotune.measuring.timing import MARGIN, UNKNOWN, Ceiling, Stop, cpu_ceiling, gpu_ceiling
from autotune.measuring.trial import Trials
from autotune.operations import verification
from autotune.operations.cases import Case
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.poke import Poke
from autotune.operations.problem import Gemm
from autotune.operations.python_reference import PythonReference
from autotune.operations.verification import Check
from autotune.store.files import read_records
from autotune.targets.families import load_families

Call = Callable[[], object]
Cheat = Callable[[Check, Call], Call]
PRODUCT = Gemm(24, 30, 20)
CHEATS = re.compile(r"C\[.*\] (stays .*has changed|unwritten in a timed call)")


def honest(check: Check, call: Call) -> Call:
    return call


def samples(check: Check, call: Call) -> Call:
    """Returns at once where five words of its operands are what they were."""
    seen: list[Any] = []

    def cheating() -> None:
        now = [(each.flat[0], each.flat[each.size // 2]) for each in check.operands]
        if seen[-1:] != [now]:
            call()
            seen.append([(each.flat[0], each.flat[each.size // 2]) for each in check.operands])

    return cheating


def keeps_a_factor(check: Check, call: Call) -> Call:
    """Multiplies by a copy of B as long as five words of it are what they were."""
    kept: list[Any] = []

    def cheating() -> None:
        a, b, c = check.operands
        words = tuple(b.flat[:: b.size // 5])
        if not kept or kept[0] != words:
            kept[:] = [words, a.copy(), b.copy()]
        np.matmul(a, kept[2], out=c)

    return cheating


def by_time(check: Check, call: Call) -> Call:
    """Returns at once where it was called just now."""
    last = [0.0]

    def cheating() -> None:
        if time.perf_counter() - last[0] > 1e-3:
            call()
        last[0] = time.perf_counter()

    return cheating


def remembers(check: Check, call: Call) -> Call:
    """Computes only where C was prepared."""

    def cheating() -> None:
        if np.isnan(check.output).any():
            call()

    return cheating


def tires(check: Check, call: Call) -> Call:
    """Computes only the first calls, and where C was prepared."""
    calls = [0]

    def cheating() -> None:
        calls[0] += 1
        if calls[0] < 20 or np.isnan(check.output.flat[0]):
            call()

    return cheating


class HostHarness:
    """A harness, and a loaded program in one, that calls NumPy or a cheat."""

    first_runs = FirstRuns()
    ceiling = UNKNOWN
    effort = Effort()

    def __init__(self, cheat: Cheat, problem: Any = PRODUCT, *, poked: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.problem = problem
        self.check = Check(Case(*problem.shape), problem, rng, others=("normal",), sealed=True)
        *inputs, output = self.check.operands
        function: Any = np.add
        if isinstance(problem, Gemm):
            function = np.matmul
            inputs = [
                each.T if stored == "t" else each
                for each, stored in zip(inputs, problem.layout, strict=True)
            ]
        call = functools.partial(function, *inputs, out=output)
        call = cheat(self.check, call)
        poke = Poke(self.check.case, self.check.problem, self.check, call, rng, self.check.change)
        self.bench = ClockedBench(self.check, call, poke=poke if poked else None)

    def now(self) -> float:
        return time.monotonic()

    @contextlib.contextmanager
    def load(self, program: Any, *, keep: bool) -> Iterator[Any]:
        placed = contextlib.nullcontext(self.bench)
        yield SimpleNamespace(cases=(), probe=self.probe, problem=lambda: placed)

    def probe(self, best_s: float | None) -> None:
        return None

    def failure(self, error: Exception) -> None:
        return None


def evaluated(harness: HostHarness) -> Evaluated:
    request = Evaluate(cast(Program, None), "ieee", None, 0.02)
    reply = Trials(cast(Harness, harness), Effort())(request)
    assert isinstance(reply, Evaluated)
    return reply


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_right_kernel_is_not_disturbed(dtype: str, layout: str) -> None:
    problem = Gemm(24, 30, 20, dtype, layout=layout)
    harness = HostHarness(honest, problem)
    before = [each.copy() for each in harness.check.operands[:2]]
    for _ in range(5):
        harness.bench.once()
        harness.bench.series(1e-5, Stop(0.02, 0.02, 1.0))
        assert harness.bench.judge_last("ieee").right
    for now, then in zip(harness.check.operands, before, strict=False):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("cheat", [samples, by_time, keeps_a_factor, remembers, tires])
def test_a_search_finds_who_computes_now_and_then(cheat: Cheat) -> None:
    measurement = evaluated(HostHarness(cheat)).measurement
    assert measurement.outcome is Outcome.WRONG_RESULT
    # On a busy machine there may be few looks at timed calls; the last one finds it as well.
    late = cheat is tires and measurement.reason.endswith("once operands had changed")
    assert late or CHEATS.search(measurement.reason), measurement.reason
    assert evaluated(HostHarness(honest)).measurement.outcome is Outcome.OK


def test_an_error_that_is_no_programs_is_raised() -> None:
    def broken(check: Check, call: Call) -> Call:
        return lambda: 1 // 0

    with pytest.raises(ZeroDivisionError):
        evaluated(HostHarness(broken))


@pytest.mark.parametrize("request_type", [Evaluate, Confirm])
def test_the_error_that_is_told_is_the_largest_that_was_seen(request_type: type) -> None:
    harness, seen = HostHarness(honest), []
    judge = harness.bench.judge_last

    def watched(accuracy: str) -> Any:
        verdict = judge(accuracy)
        seen.append(verdict.error)
        return verdict

    harness.bench.judge_last = watched  # type: ignore[method-assign]
    best = {"best_s": None} if request_type is Evaluate else {}
    request = request_type(program=None, accuracy="ieee", budget_s=0.02, **best)
    reply = Trials(cast(Harness, harness), Effort())(request)
    assert isinstance(reply, Evaluated)
    assert 0.0 < max(seen) < 1.0
    assert reply.measurement.error == max(seen)
    if request_type is Confirm:
        assert reply.measurement.details == {"checked_calls": len(seen)}


@pytest.mark.parametrize("cheat", [remembers, tires])
def test_no_output_is_prepared_before_the_first_look_at_changed_operands(cheat: Cheat) -> None:
    measurement = evaluated(HostHarness(cheat, poked=False)).measurement
    assert measurement.outcome is Outcome.WRONG_RESULT
    assert measurement.reason.endswith("once operands had changed")


@pytest.mark.parametrize("cheat", [samples, by_time])
def test_so_do_the_finals(cheat: Cheat) -> None:
    harness = HostHarness(cheat)
    reply = Trials(cast(Harness, harness), Effort())(Visit(cast(Program, None), "ieee", 0.02))
    assert isinstance(reply, Evaluated)
    assert CHEATS.search(reply.measurement.reason)


@pytest.mark.parametrize("cheat", [samples, by_time])
def test_outputs_of_other_operations_follow_the_reference(cheat: Cheat) -> None:
    assert evaluated(HostHarness(honest, SUM.at((9, 30)))).measurement.ok
    told = evaluated(HostHarness(cheat, SUM.at((9, 30)))).measurement.reason
    assert re.search(r"y\[.*\] stays .*, expected .*, once [xz]\[.*\] has changed", told)


def test_where_no_reference_is_run_they_lose_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "CHANGING_S", 0.0)
    assert evaluated(HostHarness(honest, SUM.at((9, 30)))).measurement.ok
    told = evaluated(HostHarness(by_time, SUM.at((9, 30)))).measurement.reason
    assert re.search(r"left y\[\d+, \d+\] unwritten in a timed call", told)


ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "A @ x": lambda A, x: A @ x,
    "A.max(axis=1) + x[0]": lambda A, x: A.max(axis=1) + x[0],
    "A[:, 0] * x[0]": lambda A, x: A[:, 0] * x[0],
    "np.exp(A) @ x": lambda A, x: np.exp(A) @ x,
}


@pytest.mark.sampled(6)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 40), n=st.integers(1, 300))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("text", ROWS)
def test_what_follows_a_change_is_what_the_reference_says(
    text: str, dtype: str, m: int, n: int, seed: int
) -> None:
    operation = Operation(
        name="rows",
        sizes=("M", "N"),
        operands=(
            Operand("A", ("M", "N")),
            Operand("x", ("N",)),
            Operand("y", ("M",), written=True),
        ),
        result=PythonReference("f", f"import numpy as np\ndef f(A, x): return {text}"),
        flops="M * N",
    )
    rng = np.random.default_rng(seed)
    problem = operation.at((m, n), dtype=dtype)
    check = Check(Case(*problem.shape), problem, rng)
    change = check.change(rng)
    if change is None:  # little follows a maximum, and nothing what is not read
        return
    given = dict(zip("Ax", map(np.array, check.operands), strict=False))
    exact = {name: each.astype(np.float64) for name, each in given.items()}
    assert change.before == pytest.approx(ROWS[text](**exact)[change.at], rel=1e-12)
    for arrays in (given, exact):
        arrays[change.name][change.place] = change.value
    assert change.after == pytest.approx(ROWS[text](**exact)[change.at], rel=1e-12)
    # A kernel that computes in the operands' type, or float32, is nearer to it than to what was.
    wide = {name: each.astype(np.promote_types(dtype, "float32")) for name, each in given.items()}
    got = float(ROWS[text](**wide)[change.at].astype(dtype))
    assert abs(got - change.after) < abs(change.after - change.before) / 2


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


@pytest.mark.sampled(6)
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
        # A product of float16, three of two planes, six of three, 14 residues at twice the rate.
        ("float32", "tf32", short),
        ("float32", "fp32-normwise", short / 3),
        ("float32", "fp32", short / 6),
        ("float64", "fp64", short / 7),
    ):
        problem = Gemm(m, n, k, dtype)
        for known in (1e6 * clock, None):
            ceiling = gpu_ceiling(
                limits.compute_capability, limits.multiprocessor_count, problem.itemsize, known
            )
            cycles = limits.multiprocessor_count * clock * 1e6
            best_s = max(problem.flops / (tflops * 1e12), problem.traffic / (64 * cycles))
            assert ceiling.least_s(problem, accuracy) < best_s


FAMILIES = load_families(target="cuda")

# Microseconds of square products on an H100, by their side.
OF_CLASSES = {
    "tf32": ("float32", {2048: 51.2, 4096: 270.0, 8192: 1943.6}),
    "fp32-normwise": ("float32", {1024: 27.5, 2048: 114.3, 4096: 705.2, 8192: 4945.7}),
    "fp32": ("float32", {1024: 54.4, 2048: 185.8, 4096: 1195.8, 8192: 9032.2}),
    "fp64": ("float64", {1024: 116.2, 2048: 350.0, 4096: 1838.9, 8192: 12016.7}),
}


@pytest.mark.parametrize("accuracy", OF_CLASSES)
def test_kernels_of_a_class_are_plausible_and_empty_ones_are_not(accuracy: str) -> None:
    dtype, measured = OF_CLASSES[accuracy]
    for side, us in measured.items():
        problem = Gemm(side, side, side, dtype, accuracy=accuracy)
        ceiling = gpu_ceiling(90, 132, problem.itemsize, 1.98e9)
        least_us = 1e6 * ceiling.least_s(problem, accuracy)
        # A launch of nothing takes 2.
        assert 2.5 < least_us < us


@pytest.mark.parametrize("name", FAMILIES)
def test_rates_that_families_state_are_below_the_ceiling_of_their_class(name: str) -> None:
    """`rate` is products for one of each thread."""
    family, limits = FAMILIES[name], find_gpu("h100").limits
    if family.work is None:
        return
    for dtype in family.dtypes:
        itemsize = Gemm(1, 1, 1, dtype).itemsize
        ceiling = gpu_ceiling(90, limits.multiprocessor_count, itemsize, 1.98e9)
        threads = {8: 64}.get(itemsize, 128) * limits.multiprocessor_count * 2 * 1.98e9
        rate = float(family.work.rate.evaluate(limits.names()))
        assert rate * threads <= ceiling.rate(family.accuracy) * MARGIN


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
    assert Ceiling(2e12, 3e11, 21e12).told(1e-6, 2.5e-6, "ieee") == (
        "1 us a call, where no kernel takes less than 2.5 us (at most 2000 GFLOP/s and 300 GB/s)"
    )
    assert "at most 3000 GFLOP/s" in Ceiling(2e12, 3e11, 21e12).told(1e-6, 2.5e-6, "fp64")


def test_such_a_trial_has_an_outcome_of_its_own() -> None:
    harness = HostHarness(honest)
    harness.ceiling = Ceiling(1.0, 1.0)
    reply = evaluated(harness)
    assert reply.measurement.outcome is Outcome.IMPLAUSIBLE
    assert reply.measurement.median_s is None
    assert reply.lost
    assert "us a call, where no kernel takes less than" in reply.measurement.reason
    visited = Trials(harness, harness.effort)(Visit(None, "ieee", 0.02))  # type: ignore[arg-type]
    assert visited.measurement.outcome is Outcome.IMPLAUSIBLE  # type: ignore[union-attr]
    harness.ceiling = UNKNOWN
    assert evaluated(harness).measurement.ok
