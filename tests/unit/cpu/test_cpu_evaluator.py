from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from suspect_family import suspect, write_suspects

from autotune.core import forking
from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import Device
from autotune.core.errors import CompileError, FamilyError
from autotune.core.limits import CpuLimits
from autotune.core.measurement import Outcome
from autotune.cpu import CpuEvaluator, CpuKernel, load_kernel
from autotune.cpu.harness import PROBE_BEST_S
from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort, Work
from autotune.measuring.timing import MIN_CALLS, Stop, time_calls, timed
from autotune.measuring.trial import PROBE_RATIO
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from autotune.families.family import KernelFamily

QUICK = Effort(budget_s=0.01, finals_s=0.1)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> KernelFamily:
    return write_suspects(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    return ProgramCache(tmp_path_factory.mktemp("programs"))


def make_kernel(
    family: KernelFamily, programs: ProgramCache, layout: str = "nn", threads: int = 1
) -> CpuKernel:
    problem = Gemm(4, 5, 6, layout=layout)
    return load_kernel(family, suspect(threads=threads).configuration, problem, programs)


class FakeClock:
    """A clock that only calls advance."""

    def __init__(self, durations_ns: Callable[[int], int]) -> None:
        self.now = 0
        self.calls = 0
        self.reads = 0
        self._durations_ns = durations_ns

    def __call__(self) -> int:
        self.reads += 1
        return self.now

    def call(self) -> None:
        self.now += self._durations_ns(self.calls)
        self.calls += 1


def run(clock: FakeClock, **changes: float) -> Any:
    expected_s = changes.pop("expected_s", 1e-3)
    limits = {"budget_s": 0.3, "interval": 0.02, "deadline_s": 10.0} | changes
    return time_calls(clock.call, expected_s, Stop(**limits), clock=clock)  # type: ignore[arg-type]


def test_steady_calls_are_timed_until_the_interval_is_narrow() -> None:
    clock = FakeClock(lambda _: 5_000_000)
    series = run(clock)
    assert (series.median_s, series.interval_s) == (0.005, (0.005, 0.005))
    assert series.calls == clock.calls == MIN_CALLS + 1


def test_steady_short_calls_still_span_a_while() -> None:
    clock = FakeClock(lambda _: 100_000)
    run(clock)
    assert clock.now >= 10_000_000


def test_unsteady_calls_are_timed_until_the_budget_is_spent() -> None:
    clock = FakeClock(lambda call: 1_000_000 + 1_000_000 * (call % 2))
    series = run(clock)
    assert 300_000_000 <= clock.now <= 302_000_000
    assert series.interval_s == (0.001, 0.002)


def test_slow_calls_are_repeated_whatever_the_budget() -> None:
    clock = FakeClock(lambda call: 400_000_000 + call)
    assert run(clock).calls == MIN_CALLS


def test_very_slow_calls_stop_at_the_deadline() -> None:
    assert run(FakeClock(lambda _: 6_000_000_000)).calls == 2
    assert run(FakeClock(lambda _: 6_000_000_000), deadline_s=0.0).calls == 1


def test_short_calls_are_timed_in_batches() -> None:
    clock = FakeClock(lambda _: 100)
    series = run(clock, expected_s=100e-9)
    assert series.median_s == pytest.approx(100e-9)
    assert series.calls == clock.calls
    assert clock.reads < clock.calls / 50


def test_calls_that_are_shorter_than_expected_are_timed_in_batches_all_the_same() -> None:
    clock = FakeClock(lambda _: 100)
    series = run(clock, expected_s=0.01)  # what was expected had been held up
    assert series.median_s == pytest.approx(100e-9)
    assert clock.reads < clock.calls / 50


def test_a_coarse_clock_sees_every_call() -> None:
    tick = 4_000_000

    class Coarse(FakeClock):
        def __call__(self) -> int:
            return super().__call__() // tick * tick

    series = run(Coarse(lambda _: 2_000), expected_s=2e-6, interval=0.5)
    assert series.median_s == pytest.approx(2e-6, rel=0.5)
    frozen = run(Coarse(lambda _: 0), expected_s=2e-6, deadline_s=0.0)
    assert frozen.median_s > 0


def test_one_call_is_timed() -> None:
    clock = FakeClock(lambda _: 1_500_000_000)
    assert timed(clock.call, clock) == 1.5


def strided(array: NDArray[Any]) -> NDArray[Any]:
    wide = np.full((array.shape[0], array.shape[1] + 3), np.nan, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


ARRANGEMENTS = {
    "contiguous": np.ascontiguousarray,
    "leading dimension": strided,
    "column-major": np.asfortranarray,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "every other column": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "read-only": read_only,
}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("arrange", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_any_arrangement_of_the_operands_will_do(
    arrange: Callable[..., NDArray[Any]],
    layout: str,
    family: KernelFamily,
    programs: ProgramCache,
) -> None:
    """The family is emitted for nn and tn; operands of nt and tt are copied."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.uniform(-1, 1, shape).astype("float32") for shape in ((4, 5), (5, 6), (4, 6)))
    expected = 2.0 * a.astype(float) @ b - 0.5 * c
    a_stored = arrange(a.T if layout[0] == "t" else a)
    b_stored = arrange(b.T if layout[1] == "t" else b)
    out = c.copy() if arrange is read_only else arrange(c)
    made = make_kernel(family, programs, layout)
    made(a_stored, b_stored, out, 2.0, -0.5)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    made.prepared(a_stored, b_stored, out)()
    np.testing.assert_allclose(out, a.astype(float) @ b, rtol=1e-5, atol=1e-6)
    assert made.program.kernel_layout == {"nt": "nn", "tt": "nn"}.get(layout, layout)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1), (5, 1, 1), (1, 1, 5)])
def test_degenerate_shapes(
    shape: tuple[int, int, int], family: KernelFamily, programs: ProgramCache
) -> None:
    m, n, k = shape
    a, b = np.full((m, 2 * n), 2, "float32")[:, ::2], np.full((2 * n, k), 3, "float32")[::2]
    out = np.full((m, k), np.nan, "float32")
    make_kernel(family, programs)(a, b, out)
    assert (out == 6 * n).all()


def test_a_broadcast_operand_is_copied(family: KernelFamily, programs: ProgramCache) -> None:
    a = np.broadcast_to(np.float32(2), (4, 5))
    out = np.empty((4, 6), "float32")
    make_kernel(family, programs)(a, np.ones((5, 6), "float32"), out)
    assert (out == 10).all()


def test_the_callers_number_of_threads_is_restored(
    family: KernelFamily, programs: ProgramCache
) -> None:
    import numba

    made = make_kernel(family, programs, threads=2)
    numba.set_num_threads(1)
    try:
        out = np.empty((4, 6), "float32")
        made(np.ones((4, 5), "float32"), np.ones((5, 6), "float32"), out)
        assert numba.get_num_threads() == 1
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert (out == 5).all()


def test_more_threads_than_there_are_will_do(family: KernelFamily, programs: ProgramCache) -> None:
    out = np.empty((4, 6), "float32")
    made = make_kernel(family, programs, threads=64)
    made(np.ones((4, 5), "float32"), np.ones((5, 6), "float32"), out)
    assert (out == 5).all()


WORKQUEUE = """\
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numba, numpy as np
from autotune.cpu import CpuKernel, CpuProgram
made = CpuKernel(CpuProgram(Path(sys.argv[1]), "gemm", "float32", "nn", "nn", (1,), 2))
a, b = np.ones((40, 50), "float32"), np.ones((50, 60), "float32")
def use(_):
    out = np.empty((40, 60), "float32")
    for _ in range(20):
        made(a, b, out)
    return (out == 50).all()
with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(use, range(8)))
print(numba.threading_layer())
"""


@pytest.mark.parametrize("layer", ["workqueue", pytest.param("omp", marks=pytest.mark.thorough)])
def test_python_threads_may_share_a_kernel_on_every_layer(
    layer: str, family: KernelFamily, programs: ProgramCache
) -> None:
    path = make_kernel(family, programs, threads=2).program.path
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    finished = subprocess.run(
        [sys.executable, "-c", WORKQUEUE, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No threading layer could be loaded" in finished.stderr:
        pytest.skip(f"Numba has no {layer} layer here")
    assert (finished.returncode, finished.stdout) == (0, f"{layer}\n"), finished.stderr


def test_the_workqueue_layer_is_guarded_by_one_lock(
    family: KernelFamily, programs: ProgramCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba

    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    made = CpuKernel(make_kernel(family, programs, threads=2).program)
    done = threading.Event()
    arguments = [np.ones(shape, "float32") for shape in ((4, 5), (5, 6), (4, 6))]
    with forking.WORKQUEUE:
        thread = threading.Thread(target=lambda: (made(*arguments), done.set()))
        thread.start()
        assert not done.wait(0.2)
    thread.join(10)
    assert done.is_set()


def test_bad_source_is_a_compile_error_of_one_line(
    family: KernelFamily, programs: ProgramCache
) -> None:
    candidate = suspect("does_not_compile")
    with pytest.raises(CompileError, match="no_such_attribute") as caught:
        load_kernel(family, candidate.configuration, Gemm(4, 5, 6), programs)
    assert "\n" not in str(caught.value)
    assert "(line " in str(caught.value)


def make_evaluator(
    family: KernelFamily, programs: ProgramCache, problem: Gemm | None = None, **changes: Any
) -> CpuEvaluator:
    arguments: dict[str, Any] = {"effort": QUICK, "workers": 1, **changes}
    device = arguments.pop("device", None) or read_cpu()
    beside = arguments.pop("beside", None)
    problem = problem or Gemm(24, 30, 20)
    work = Work(problem, {family.name: family}, device, programs, **arguments)
    return CpuEvaluator(work, beside)


@pytest.mark.cold
def test_candidates_that_differ_at_run_time_share_one_program(
    family: KernelFamily, tmp_path: Path
) -> None:
    programs = ProgramCache(tmp_path / "programs")
    with make_evaluator(family, programs) as evaluator:
        evaluator.prepare([suspect(step=step) for step in (1, 2, 3)])
        (program,) = programs.folder.rglob("suspect_*.py")
        details = [evaluator.evaluate(suspect(step=step), None).details for step in (2, 3)]
        assert {each["program"] for each in details} == {program.stem}  # that it was one compile
        assert details[0]["compile_s"] == details[1]["compile_s"] > 0
        evaluator.prepare([suspect(step=step) for step in (1, 2, 3)])
    with make_evaluator(family, programs) as evaluator:
        kept = evaluator.evaluate(suspect(step=2), None)
        assert kept.ok
        assert "compile_s" not in kept.details


def test_a_compile_that_does_not_end_is_a_timeout(
    family: KernelFamily, programs: ProgramCache
) -> None:
    effort = replace(QUICK, compile_timeout_s=0.5)
    with make_evaluator(family, programs, effort=effort) as evaluator:
        measurement = evaluator.evaluate(suspect("compiles_forever"), None)
        assert measurement.outcome is Outcome.TIMEOUT
        assert measurement.reason == "compiler: no result within 0.5 s: killed"
        assert evaluator.evaluate(suspect("compiles_forever"), None) == measurement


@pytest.fixture(scope="module")
def host(family: KernelFamily, programs: ProgramCache) -> Iterator[CpuEvaluator]:
    """Its processes serve the evaluators beside it."""
    with make_evaluator(family, programs) as evaluator:
        yield evaluator


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("float32", "nn"), ("float32", "nt"), ("float64", "tn"), ("float64", "tt")],
)
def test_layouts_and_dtypes(
    dtype: str, layout: str, family: KernelFamily, programs: ProgramCache, host: CpuEvaluator
) -> None:
    problem = Gemm(9, 11, 10, dtype=dtype, layout=layout)
    with make_evaluator(family, programs, problem, beside=host) as evaluator:
        measurement = evaluator.evaluate(suspect(), None)
        assert measurement.ok, measurement
        finals = evaluator.finals([suspect()])
        assert finals.measurements[0].ok
        assert finals.ratios[0] is not None


def test_a_cap_on_threads_binds_kernels_and_baseline(
    family: KernelFamily, programs: ProgramCache
) -> None:
    device = read_cpu()
    assert isinstance(device.limits, CpuLimits)
    two: Device = replace(device, limits=replace(device.limits, max_threads=2))
    one: Device = replace(device, limits=replace(device.limits, max_threads=1))
    with make_evaluator(family, programs, Gemm(8, 8, 8, threads=1), device=two) as evaluator:
        baseline = evaluator.baseline()
        assert baseline is not None
        assert baseline.threads == 1
        assert "1 thread)" in baseline.name
    with make_evaluator(family, programs, device=one) as evaluator:
        assert evaluator.evaluate(suspect(threads=2), None).outcome is Outcome.REJECTED


def test_a_broken_template_is_the_familys_fault(programs: ProgramCache, tmp_path: Path) -> None:
    family = write_suspects(tmp_path)
    (tmp_path / "suspect.py.j2").write_text("{{ no_such_name }}")
    with (
        make_evaluator(family, programs) as evaluator,
        pytest.raises(FamilyError, match="no_such_name"),
    ):
        evaluator.evaluate(suspect(), None)


@pytest.mark.thorough
@pytest.mark.cold
def test_no_process_is_left(family: KernelFamily, tmp_path: Path) -> None:
    programs = ProgramCache(tmp_path)

    def children() -> set[str]:
        return {
            pid
            for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()
        }

    before = children()

    def interrupted(processes: int) -> None:
        with make_evaluator(family, programs) as evaluator:
            assert evaluator.evaluate(suspect(), None).ok
            assert len(children() - before) == processes
            raise KeyboardInterrupt

    for processes in (2, 1):  # none compiles what is compiled
        with pytest.raises(KeyboardInterrupt):
            interrupted(processes)
        assert children() <= before


@pytest.mark.slow
def test_a_hopeless_candidate_is_not_run_at_full_size(programs: ProgramCache) -> None:
    families = load_families(target="cpu")
    problem = Gemm(600, 600, 600, threads=1)  # rows of no power of two, which caches keep
    slow = Candidate("loops", Configuration({"order": "kji", "threads": 1}))

    best_s = 1.1 * PROBE_BEST_S  # the product has 0.2 s of work for a core, one element at a time
    with CpuEvaluator(
        Work(problem, families, read_cpu(), programs, effort=QUICK, workers=1)
    ) as evaluator:
        measurement = evaluator.evaluate(slow, best_s=best_s)
    assert measurement.outcome is Outcome.ABANDONED
    assert "sizes divided by" in measurement.reason
    assert measurement.median_s is not None
    assert measurement.median_s > PROBE_RATIO * best_s
    assert measurement.error is not None
