"""What measuring on a GPU needs no GPU for: plans, memory layouts, when to stop, kept binaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Candidate, Value
from autotune.core.dtypes import DTYPES
from autotune.core.errors import AutotuneError, SpaceError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.gpu.launch import (
    LaunchPlan,
    LaunchStep,
    kernel_layout,
)
from autotune.families.gpu.planning import Planner
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.gpu.compiling import (
    CompileReply,
    CompileRequest,
    Refused,
    compile_kept,
    compile_worker,
)
from autotune.gpu.launch.code import support_source
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.gpu.measure.memory import lay_out, rotation_sets
from autotune.gpu.measure.support import pack_signs
from autotune.gpu.measure.timing import (
    GRAPH_BELOW_S,
    GRAPH_LAUNCHES,
    batch_launches,
    steady_s,
    time_batches,
)
from autotune.gpu.nvidia import vendor as compilers
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import Compiled
from autotune.measuring.effort import Baseline, Work, relative_speed, silent
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.messages import Series
from autotune.measuring.rounds import MIN_ROUNDS, conclude, hold_rounds, take_turns
from autotune.measuring.sharing import WorkerPool
from autotune.measuring.timing import Stop
from autotune.operations.cases import cases_of
from autotune.operations.guarded import GUARD_BYTES
from autotune.operations.problem import GEMM, Gemm
from autotune.space import SearchSpace
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMITS = find_gpu("h200").limits
BLOCK = load_families(target="cuda")["block"]
PROBLEM = Gemm(1000, 500, 300)
SPACES: dict[str, SearchSpace] = {}


def test_a_plan_covers_the_result() -> None:
    configuration = BLOCK.default(PROBLEM, LIMITS)
    planner = Planner(BLOCK, configuration, PROBLEM.dtype, LIMITS)
    plan = planner.plan(PROBLEM)
    (step,) = plan.steps
    tiles = math.ceil(1000 / configuration["sm"]) * math.ceil(300 / configuration["sk"])
    assert math.prod(step.grid) == tiles
    threads = configuration["sm"] // configuration["ty"] * configuration["sk"]
    assert step.threads == threads // configuration["tx"]
    assert plan.sizes == (1000, 500, 300)
    assert plan.workspace_bytes is None
    assert planner.resident_blocks(PROBLEM) == configuration["min_blocks"]


def test_auxiliary_kernels_run_when_they_are_needed() -> None:
    family = load_families(target="cuda")["pipelined"]
    space = family.space(PROBLEM, LIMITS)
    plans = {}
    for splits in (1, 4):
        row = space.nearest({**family.default(PROBLEM, LIMITS), "splits": splits}, excluded=())
        assert row is not None
        assert space[row]["splits"] == splits
        plans[splits] = Planner(family, space[row], PROBLEM.dtype, LIMITS).plan(PROBLEM)
    assert len(plans[1].steps) == 1
    assert len(plans[4].steps) == 2
    assert plans[4].steps[0].kernel == "gemm"
    assert plans[4].workspace_bytes == 4 * 1000 * 300 * 4


def is_valid(drawn: Mapping[str, Value]) -> bool:
    return Planner(BLOCK, drawn, "float32", LIMITS).find(PROBLEM) is not None


def test_validity_is_what_the_space_says() -> None:
    space = BLOCK.space(PROBLEM, LIMITS)
    rng = np.random.default_rng(1)
    names = {p.name: p.values for p in BLOCK.parameters}
    for _ in range(300):
        drawn = {name: values[rng.integers(len(values))] for name, values in names.items()}
        assert is_valid(drawn) == (drawn in space), drawn


def test_every_family_is_verified_at_several_sizes() -> None:
    """Configurations that only large sizes allow, too."""
    rng = np.random.default_rng(3)
    for family in load_families(target="cuda").values():
        space = family.space(Gemm(8192, 8192, 8192), LIMITS)
        for row in space.sample(50, rng):
            planner = Planner(family, space[row], "float32", LIMITS)
            valid = [
                case
                for case in cases_of(Gemm(1, 1, 1))
                if planner.find(Gemm(*case.sizes)) is not None
            ]
            assert len(valid) >= 2, (family.name, space[row])
            assert any(case.scalars_of(GEMM)["beta"] for case in valid)
            assert any(all(size % 32 for size in case.sizes) for case in valid)


def test_a_configuration_of_another_space_has_no_plan() -> None:
    with pytest.raises(SpaceError, match="must be one of"):
        Planner(BLOCK, {**BLOCK.default(PROBLEM, LIMITS), "sm": 100}, "float32", LIMITS)


@settings(max_examples=60)
@given(
    name=st.sampled_from(["naive", "tiled", "block", "pipelined"]),
    sizes=st.tuples(*[st.integers(1, 5000)] * 3),
    chosen=st.integers(0, 2**31),
)
def test_plans_are_valid_where_every_restriction_holds(
    name: str, sizes: tuple[int, int, int], chosen: int
) -> None:
    family = load_families(target="cuda")[name]
    space = SPACES.setdefault(name, family.space(PROBLEM, LIMITS))
    configuration = space[chosen % len(space)]
    problem = PROBLEM.with_sizes(*sizes)
    planner = Planner(family, configuration, "float32", LIMITS)
    found = planner.find(problem)
    assert planner.valid(problem) == (found is not None)
    try:
        known = family.values(configuration, problem, LIMITS)
    except SpaceError:
        assert found is None
        return
    held = all(each.expression.holds(known) for each in family.restrictions)
    assert (found is not None) == held
    if found is not None:
        assert found == planner.plan(problem)


def test_programs_are_equal_when_they_do_the_same() -> None:
    step = LaunchStep("gemm", (4, 1, 1), (64, 1, 1), 1024)
    plan = LaunchPlan((8, 8, 8), (step,), 64)
    program = GpuProgram(b"code", plan, "float32")
    assert program.digest == GpuProgram(b"code", plan, "float32", support=b"other").digest
    different = [
        GpuProgram(b"Code", plan, "float32"),
        GpuProgram(b"code", LaunchPlan((8, 8, 8), (step, step), 64), "float32"),
        GpuProgram(b"code", LaunchPlan((8, 8, 8), (step,), None), "float32"),
        GpuProgram(b"code", plan, "float32", layout="tn"),
    ]
    assert program.digest not in {other.digest for other in different}
    assert different[3].flips == (True, False)
    assert kernel_layout(BLOCK, "tt") == "nn"


@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    padding=st.integers(0, 5),
    itemsize=st.sampled_from([4, 8]),
)
def test_operands_and_their_guard_zones_do_not_overlap(
    sizes: tuple[int, int, int], padding: int, itemsize: int
) -> None:
    dtype = {2: "float16", 4: "float32", 8: "float64"}[itemsize]
    layout = lay_out(Gemm(*sizes, dtype).operands, padding)
    end = 0
    for placement in layout.placements.values():
        assert placement.offset - GUARD_BYTES >= end
        assert placement.offset % itemsize == 0
        assert (placement.offset % 256 == 0) == (padding == 0)
        end = placement.offset + placement.elements * itemsize + GUARD_BYTES
        assert placement.end == end
    assert layout.size >= end
    assert layout.size % 256 == 0


def test_the_sets_exceed_the_cache_and_fit_the_memory() -> None:
    l2, plenty = 60 * 2**20, 2**37
    one = 3 * 1024 * 1024 * 4
    assert rotation_sets(one, l2, plenty) * one > 2 * l2
    assert rotation_sets(2**30, l2, plenty) == 1
    assert rotation_sets(one, l2, 2 * one) == 1
    assert rotation_sets(12, l2, plenty) == 2048


def test_signs_are_packed_by_column() -> None:
    vectors = np.random.default_rng(2).choice([-1.0, 1.0], (30, 16))
    packed = pack_signs(vectors)
    assert packed.dtype == np.uint16
    for j, v in np.ndindex(30, 16):
        assert bool(packed[j] >> v & 1) == (vectors[j, v] < 0)


@pytest.mark.parametrize(
    ("expected_s", "sets", "launches"),
    [(3e-6, 1, 20), (3e-6, 12, 24), (3e-6, 764, 764), (1e-4, 12, 24), (3e-4, 12, 4), (0.02, 3, 1)],
)
def test_batches(expected_s: float, sets: int, launches: int) -> None:
    assert batch_launches(expected_s, sets) == launches
    if expected_s < GRAPH_BELOW_S:
        assert launches % sets == 0
        assert launches >= GRAPH_LAUNCHES


class IdleDevice:
    """A stopwatch of a device whose launches wait for the host unless others are before them.

    Args:
        kernel_s: what a launch takes the device.
        host_s: what it takes the host.
        first_s: what the first one takes besides.
    """

    stream = None

    def __init__(self, kernel_s: float, host_s: float, first_s: float = 0.0) -> None:
        self.kernel_s, self.host_s, self.first_s = kernel_s, host_s, first_s
        self.launched = 0

    def launch(self, number: int, stream: object) -> None:
        self.launched += 1

    def samples(self, enqueue: Callable[[], None], launches: int, count: int) -> list[float]:
        found = []
        for _ in range(count):
            before = self.launched
            enqueue()
            assert self.launched - before == launches
            waited_s = 0.0 if before else self.first_s
            step_s = max(self.host_s, self.kernel_s)
            found.append((waited_s + self.host_s + launches * step_s) / launches)
        return found

    def steady(self) -> float:
        alone_s = self.samples(lambda: self.launch(0, None), 1, 1)[0]
        return steady_s(self.launch, self, alone_s)  # type: ignore[arg-type]


def test_what_is_short_is_known_as_short_however_long_its_first_launch_took() -> None:
    for first_s in (0.0, 80e-6, 1e-3, 4e-3):
        assert IdleDevice(6e-6, 60e-6, first_s).steady() < GRAPH_BELOW_S
    assert IdleDevice(3e-4, 6e-5).steady() == pytest.approx(3e-4, rel=0.1)
    slow = IdleDevice(0.02, 6e-5)
    assert slow.steady() == pytest.approx(0.02, rel=0.01)
    assert slow.launched == 1


class FakeDevice:
    """Batches whose times are given by their number."""

    def __init__(self, times: Sequence[float]) -> None:
        self.times = times
        self.count = 0

    def sample(self, count: int) -> list[float]:
        fresh = [self.times[(self.count + i) % len(self.times)] for i in range(count)]
        self.count += count
        return fresh


def run(device: FakeDevice, **changes: float) -> Series:
    arguments = {"launches": 1, "expected_s": 1e-3} | changes
    launches, expected_s = int(arguments.pop("launches")), arguments.pop("expected_s")
    stop = Stop(**{"budget_s": 0.15, "interval": 0.02, "deadline_s": 10.0} | arguments)  # type: ignore[arg-type]
    return time_batches(device.sample, launches, expected_s, stop)


def test_steady_batches_are_timed_until_the_interval_is_narrow() -> None:
    device = FakeDevice([1e-3])
    series = run(device)
    assert (series.median_s, series.interval_s) == (1e-3, (1e-3, 1e-3))
    assert 10 <= device.count < 20
    assert series.calls == device.count


def test_very_slow_launches_stop_at_the_deadline() -> None:
    assert run(FakeDevice([6.0]), expected_s=6.0).calls == 2
    assert run(FakeDevice([6.0]), expected_s=6.0, deadline_s=0.0).calls == 1


def test_a_wrong_expectation_does_no_harm() -> None:
    device = FakeDevice([0.5])
    run(device, expected_s=1e-9, launches=20)
    assert device.count == 32
    assert run(FakeDevice([1e-6]), expected_s=1.0, launches=20).median_s == 1e-6


def a_series(median_s: float) -> Series:
    return Series(median_s, (median_s, median_s), 10)


def test_everybody_takes_turns_until_the_time_is_spent() -> None:
    order: list[str] = []

    def visitor(name: str, median_s: float):  # type: ignore[no-untyped-def]
        def visit(budget_s: float) -> Series:
            order.append(name)
            return a_series(median_s)

        return visit

    turns = take_turns([visitor("x", 1e-3), visitor("y", 2e-3)], budget_s=0.3)
    assert order == ["x", "y"] * (len(order) // 2)
    assert [len(each) for each in turns] == [10, 10]  # type: ignore[arg-type]
    assert len(take_turns([visitor("x", 9.0)], budget_s=0.3)[0]) == MIN_ROUNDS  # type: ignore[arg-type]
    assert take_turns([], budget_s=0.0) == []


def test_who_fails_is_out_and_the_rounds_still_end() -> None:
    failure = Measurement(Outcome.LAUNCH_FAILED, reason="gone")
    visits = [lambda _: failure, lambda _: a_series(1e-3)]
    first, second = take_turns(visits, budget_s=0.3)
    assert first is failure
    assert isinstance(second, list)
    assert take_turns([lambda _: failure], budget_s=0.3) == [failure]


def test_the_rounds_give_medians_and_ratios() -> None:
    right = Measurement(Outcome.OK, 9.0, (9.0, 9.0), 1, 0.1)
    wrong = Measurement(Outcome.WRONG_RESULT, reason="wrong")
    lost = Measurement(Outcome.LAUNCH_FAILED, reason="gone")
    baseline = Baseline("cuBLAS", 9.0, (9.0, 9.0), 1, {})
    finals = conclude(
        [right, wrong, right],
        [[a_series(s) for s in (1.0, 2.0, 3.0)], None, lost],
        baseline,
        [a_series(s) for s in (2.0, 4.0, 9.0)],
    )
    first, second, third = finals.measurements
    assert (first.median_s, first.interval_s, first.repeats) == (2.0, (1.0, 3.0), 30)
    assert first.error == 0.1
    assert second is wrong
    assert third is lost
    assert finals.ratios == (2.0, None, None)
    assert finals.baseline is not None
    assert finals.baseline.median_s == 4.0


@pytest.mark.parametrize(
    ("alone_s", "turns", "disturbed"),
    [
        (1.0, (1.1, 1.2, 9.0), False),
        (1.0, (1.9, 1.9, 2.0), False),
        (1.0, (2.1, 2.2, 2.3), True),  # as fast as it was nobody saw it again
        (9.0, (1.0, 435.0, 400.0), True),
    ],
)
def test_nothing_is_compared_with_a_library_far_from_its_best(
    alone_s: float, turns: tuple[float, ...], disturbed: bool
) -> None:
    right = Measurement(Outcome.OK, 9.0, (9.0, 9.0), 1, 0.1)
    baseline = Baseline("NumPy", alone_s, (alone_s, alone_s), 1, {})
    own = [a_series(1.0)] * 3
    finals = conclude([right], [own], baseline, [a_series(s) for s in turns])
    assert finals.baseline is not None
    assert bool(finals.baseline.noise) is disturbed
    assert (finals.ratios == (None,)) is disturbed
    assert (relative_speed(right, finals.baseline) is None) is disturbed
    if disturbed:
        assert finals.baseline.noise.startswith("the library was disturbed: it took")


def test_who_fails_after_the_rounds_has_lost() -> None:
    right = Measurement(Outcome.OK, 9.0, (9.0, 9.0), 1, 0.1, details={"registers": 40})
    wrong = Measurement(Outcome.WRONG_RESULT, reason="wrong, in the end")
    gone = Measurement(Outcome.WRONG_RESULT, reason="wrong, in its turn")
    visited: list[int] = []
    asked: list[int] = []

    def visit(position: int) -> Callable[[float], Series | Measurement]:
        def take(_: float) -> Series | Measurement:
            assert not asked
            visited.append(position)
            return gone if position == 2 else a_series(1.0)

        return take

    def confirm(position: int) -> Measurement:
        asked.append(position)
        return wrong if position == 1 else Measurement(Outcome.OK, error=0.4, details={"q": 7})

    visits = {position: visit(position) for position in (0, 1, 2)}
    finals = hold_rounds([right, right, right, wrong], visits, None, None, 0.3, confirm)
    assert asked == [0, 1]
    first, *others = finals.measurements
    assert (first.median_s, first.error, first.details) == (1.0, 0.4, {"registers": 40, "q": 7})
    assert others == [wrong, gone, wrong]


def a_source(body: str) -> Source:
    text = f'extern "C" __global__ void gemm(float* c) {{ {body} }}\n'
    return Source(text, "gemm", (), "cuda")


def test_binaries_are_kept_beside_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ProgramCache(tmp_path)
    request = CompileRequest(a_source("*c = 1;"), "demo", "sm_90")
    compiled = compile_kept(programs, request)
    assert isinstance(compiled, Compiled)

    def refuse(*_: object) -> Compiled:
        raise AssertionError("compiled again")

    with monkeypatch.context() as patched:
        patched.setattr(compilers, "compile_cuda", refuse)
        kept = compile_kept(programs, request)
        assert isinstance(kept, Compiled)
        assert (kept.cubin, kept.kernels) == (compiled.cubin, compiled.kernels)
        assert (kept.spill_bytes, kept.log) == (compiled.spill_bytes, compiled.log)
        with pytest.raises(AssertionError):
            compile_kept(programs, CompileRequest(request.source, "demo", "sm_80"))
    (cubin,) = (tmp_path / "cuda").glob("*.cubin")
    cubin.write_bytes(compiled.cubin[:100])
    again = compile_kept(programs, request)
    assert isinstance(again, Compiled)
    assert again.cubin == cubin.read_bytes() == compiled.cubin


def compiles_of(evaluator: GpuEvaluator) -> Iterator[Future[CompileReply]]:
    """Those of its candidates, and of its own kernels."""
    backend = evaluator.backend
    return map(backend._compiling, [*backend._requests.values(), backend._support])


@pytest.mark.cold
def test_what_is_kept_waits_for_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = replace(make_target("cuda").device(None, "h200"), toolchain={"cuda": "13.0"})
    families = load_families(target="cuda", operation="gemm")
    problem, programs = Gemm(64, 64, 64), ProgramCache(tmp_path)
    chosen = Candidate("naive", families["naive"].default(problem, device.limits))
    with GpuEvaluator(Work(problem, families, device, programs, workers=1)) as first:
        # Nobody measures: there is no GPU.
        monkeypatch.setattr(first.backend.processes.worker, "begin", lambda *_: None)
        first.prepare([chosen])
        reply, support = (future.result() for future in compiles_of(first))
        assert isinstance(reply, Compiled)

        def refuse(*_: object) -> None:
            raise AssertionError("asked of a compiler")

        monkeypatch.setattr(WorkerPool, "submit", refuse)
        other = Gemm(96, 64, 64)
        with GpuEvaluator(Work(other, families, device, programs, workers=1)) as second:
            monkeypatch.setattr(second.backend.processes.worker, "begin", lambda *_: None)
            second.prepare([chosen])
            assert second.is_ready(chosen)
            kept, kept_support = (future.result() for future in compiles_of(second))
            assert (kept.cubin, kept.kernels) == (reply.cubin, reply.kernels)
            # Seconds are those of compilers, and say of which program.
            made, again = (
                evaluator.backend.prepared(chosen, evaluator.deadline, silent)
                for evaluator in (first, second)
            )
            (program,) = (tmp_path / "cuda").glob("naive_*.cu")
            assert made.details["compile_s"] == reply.seconds > 0
            assert made.details["program"] == program.stem
            assert not {"compile_s", "program"} & again.details.keys()
            assert kept_support.cubin == support.cubin
            halves = Gemm(64, 64, 64, "float16")
            with pytest.raises(AssertionError, match="asked of a compiler"):
                GpuEvaluator(Work(halves, families, device, programs, workers=1), beside=first)


@pytest.mark.cold
def test_problems_of_a_run_have_their_compiles_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = replace(make_target("cuda").device(None, "h200"), toolchain={"cuda": "13.0"})
    families = load_families(target="cuda", operation="gemm")
    problems, programs = [Gemm(64 * n, 64, 64) for n in (1, 2, 3)], ProgramCache(tmp_path)
    chosen = Candidate("naive", families["naive"].default(problems[0], device.limits))
    futures: list[Future[CompileReply]] = []

    def submit(pool: WorkerPool, request: CompileRequest, timeout_s: float) -> object:
        futures.append(Future())
        return futures[-1]

    monkeypatch.setattr(WorkerPool, "submit", submit)
    works = [Work(problem, families, device, programs, workers=1) for problem in problems]
    with GpuEvaluator(works[0]) as host, GpuEvaluator(works[2], beside=host) as third:
        with GpuEvaluator(works[1], beside=host) as second:
            for evaluator in (second, third):
                evaluator.compile_ahead([chosen])
                evaluator.compile_ahead([chosen])
            support, first = futures
            assert list(compiles_of(second)) == list(compiles_of(third)) == [first, support]
            assert not second.is_ready(chosen)
        # The one that asked has gone, and with it its compile: others ask for themselves.
        assert (first.cancelled(), support.cancelled()) == (True, False)
        assert not third.is_ready(chosen)
        _, _, again = futures
        again.set_result(Refused("for a test"))
        assert third.is_ready(chosen)
        assert len(futures) == 3


def test_a_refused_source_has_a_reason_of_one_line(tmp_path: Path) -> None:
    request = CompileRequest(a_source("undeclared();"), "demo", "sm_90")
    reply = compile_kept(ProgramCache(tmp_path), request)
    assert isinstance(reply, Refused)
    assert "undeclared" in reply.reason
    assert "\n" not in reply.reason
    assert not list(tmp_path.rglob("*.cubin"))


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [(name, None) for name in DTYPES] + [("float16", "float32"), ("bfloat16", "float32")],
)
def test_the_evaluators_own_kernels_compile(
    dtype: str, out_dtype: str | None, tmp_path: Path
) -> None:
    source = support_source(dtype, out_dtype)
    reply = compile_kept(ProgramCache(tmp_path), CompileRequest(source, "support", "sm_90"))
    assert isinstance(reply, Compiled), reply
    sized = {f"{name}_{size}" for name in ("fill", "inspect") for size in (2, 4, 8)}
    names = {*sized, "compare", "project", "take", "transpose", "transpose_apart"}
    names |= {"copy_rows", "copy_rows_of_two"}
    assert set(reply.kernels) == names
    assert set(reply.spill_bytes.values()) == {0}


def test_a_pool_compiles_in_the_background_and_outlives_bad_sources(tmp_path: Path) -> None:
    endless = (
        "\n#pragma unroll\n".join(
            ["float t = 0;", "for (int i = 0; i < 64; ++i)", "for (int j = 0; j < 64; ++j)"]
        )
        + "t = t * t + c[(i * 7919 + j * 31) % (int)c[0]]; *c = t;"
    )
    pool = WorkerPool(
        compile_worker, ProgramCache(tmp_path), ("cuda",), count=2, replies=CompileReply
    )
    try:
        bodies = {"good": "*c = 1;", "bad": "undeclared();", "endless": endless}
        futures = {
            name: pool.submit(
                CompileRequest(a_source(body), name, "sm_90"), 1.5 if name == "endless" else 30.0
            )
            for name, body in bodies.items()
        }
        assert isinstance(futures["good"].result(), Compiled)
        assert isinstance(futures["bad"].result(), Refused)
        reply = futures["endless"].result()
        assert isinstance(reply, Failure), reply
        assert reply.kind is FailureKind.TIMED_OUT
        following = pool.submit(CompileRequest(a_source("*c = 2;"), "next", "sm_90"), 4.0)
        assert isinstance(following.result(), Compiled)
    finally:
        pool.close()


def test_closing_a_pool_ends_what_it_is_doing(tmp_path: Path) -> None:
    pool = WorkerPool(
        compile_worker, ProgramCache(tmp_path), ("cuda",), count=1, replies=CompileReply
    )
    body = (
        "\n#pragma unroll\n".join(
            ["float t = 0;", "for (int i = 0; i < 64; ++i)", "for (int j = 0; j < 64; ++j)"]
        )
        + "t = t * t + c[(i * 7919 + j * 31) % (int)c[0]]; *c = t;"
    )
    first = pool.submit(CompileRequest(a_source("*c = 1;"), "first", "sm_90"), 600.0)
    assert isinstance(first.result(), Compiled)
    running = pool.submit(CompileRequest(a_source(body), "running", "sm_90"), 600.0)
    waiting = pool.submit(CompileRequest(a_source("*c = 3;"), "waiting", "sm_90"), 600.0)
    pool.close()
    assert waiting.cancelled()
    if not running.cancelled():
        error = running.exception()
        assert isinstance(error, AutotuneError) or isinstance(running.result(), Failure)
