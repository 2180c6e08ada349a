from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda_suspects import suspect, write_suspects
from test_evaluator import EvaluatorConformance

from autotune.core.configuration import Candidate
from autotune.core.errors import LaunchError
from autotune.core.measurement import Outcome, Series
from autotune.families.gpu.launch import architecture_of, kernel_layout
from autotune.families.gpu.planning import Planner
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.compiling import CompileRequest, compile_kept
from autotune.gpu.driver import activated, driver
from autotune.gpu.launch.code import support_source
from autotune.gpu.launch.kernel import GpuKernel
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.gpu.nvidia.nvrtc import Compiled
from autotune.measuring.effort import Effort, Work
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.messages import DescribeBaseline
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families, read_family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily

QUICK = Effort(budget_s=0.02, finals_s=0.2, timeout_s=20.0)
FAMILIES = sorted(load_families(target="cuda"))


class TestCudaEvaluator(EvaluatorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(
        cls, gpu: Device, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Evaluator]:
        folder = tmp_path_factory.mktemp("suspects")
        family = write_suspects(folder)
        with GpuEvaluator(
            Work(
                Gemm(40, 30, 50),
                {family.name: family},
                gpu,
                ProgramCache(folder / "programs"),
                effort=Effort(budget_s=0.02, timeout_s=60.0, finals_s=0.2, compile_timeout_s=20.0),
                workers=2,
            )
        ) as evaluator:
            yield evaluator

    @pytest.fixture
    def candidates(self) -> Mapping[str, Candidate]:
        return {
            "right": suspect(),
            "right too": suspect(step=2),
            "invalid": suspect(step=1000),
            "does not compile": suspect("does_not_compile"),
            "raises": suspect("trap"),
            "crashes": suspect("illegal"),
            "hangs": suspect("hangs"),
            "wrong": suspect("wrong"),
            "wrong at ragged sizes": suspect("ragged"),
            "writes part of C": suspect("partial"),
            "writes past C": suspect("overrun"),
            "writes before C": suspect("underrun"),
            "reads C when beta is 0": suspect("reads_c"),
            "modifies A": suspect("modifies_a"),
            "stops computing": suspect("stops"),
        }

    def test_finalists_are_verified_after_their_last_timed_launch(
        self, evaluator: Evaluator
    ) -> None:
        late = suspect("errs_when_fresh")
        assert evaluator.evaluate(late, None).ok  # it has not met other operands so far
        finals = evaluator.finals([late, suspect()])
        wrong, right = finals.measurements
        assert wrong.outcome is Outcome.WRONG_RESULT
        assert wrong.reason.endswith(", after the finals")
        assert right.ok
        assert right.details["checked_calls"] >= 2


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> KernelFamily:
    return write_suspects(tmp_path_factory.mktemp("family"))


def make_evaluator(
    families: Mapping[str, KernelFamily],
    gpu: Device,
    programs: ProgramCache,
    problem: Gemm,
    **changes: Any,
) -> GpuEvaluator:
    arguments: dict[str, Any] = {"effort": QUICK, "workers": 2, **changes}
    return GpuEvaluator(Work(problem, families, gpu, programs, **arguments))


@pytest.mark.parametrize(
    ("sizes", "dtype", "layout"),
    [
        ((200, 300, 260), "float32", "nn"),
        ((129, 257, 65), "float64", "nn"),
        ((100, 70, 90), "float32", "nt"),
        ((70, 100, 90), "float64", "tn"),
        ((1300, 1290, 1300), "float32", "tt"),
    ],
)
def test_shipped_families_are_verified_and_timed(
    sizes: tuple[int, int, int], dtype: str, layout: str, gpu: Device, programs: ProgramCache
) -> None:
    problem = Gemm(*sizes, dtype=dtype, layout=layout)
    shipped = load_families(target="cuda")
    families = {n: each for n, each in shipped.items() if each.unsupported(problem) is None}
    candidates = [
        Candidate(name, each.default(problem, gpu.limits)) for name, each in families.items()
    ]
    with make_evaluator(families, gpu, programs, problem) as evaluator:
        evaluator.prepare(candidates)
        for candidate in candidates:
            measurement = evaluator.evaluate(candidate, None)
            assert measurement.ok, (candidate, measurement)
            assert measurement.details["registers"] > 0
            assert measurement.details["operand_sets"] >= 1
        finals = evaluator.finals(candidates[:2])
        assert all(measurement.ok for measurement in finals.measurements)


def test_short_kernels_rotate_through_more_than_the_cache(
    family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    problem = Gemm(64, 64, 64)
    with make_evaluator({"suspect": family}, gpu, programs, problem) as evaluator:
        measurement = evaluator.evaluate(suspect(), None)
        assert measurement.ok, measurement
        sets = measurement.details["operand_sets"]
        assert sets * 3 * 64 * 64 * 4 > 2 * gpu.limits.names()["l2_bytes"] or sets == 2048
        finals = evaluator.finals([suspect(), suspect(step=2)])
        assert all(each.ok for each in finals.measurements)


def test_equal_binaries_are_measured_once(
    family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    with make_evaluator({"suspect": family}, gpu, programs, Gemm(40, 30, 50)) as evaluator:
        first = evaluator.evaluate(suspect(label=0), None)
        second = evaluator.evaluate(suspect(label=1), None)
        assert first.ok
        assert second.median_s == first.median_s
        assert second.details["same_binary_as"] == str(suspect(label=0))
        assert "same_binary_as" not in first.details
        assert evaluator.evaluate(suspect(step=2), None).details.get("same_binary_as") is None


def test_a_workspace_and_opted_in_shared_memory_are_provided(
    family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    with make_evaluator({"suspect": family}, gpu, programs, Gemm(40, 30, 50)) as evaluator:
        measurement = evaluator.evaluate(suspect(more_workspace=1, more_shared=60_000), None)
        # The largest of the sizes that are verified needs more than 1 MiB.
        assert measurement.ok or "4133x70x140" in measurement.reason, measurement


def test_the_baseline_is_cublas(family: KernelFamily, gpu: Device, programs: ProgramCache) -> None:
    for dtype, layout in itertools.product(("float32", "float64"), ("nn", "tt")):
        problem = Gemm(70, 90, 110, dtype=dtype, layout=layout)
        with make_evaluator({"suspect": family}, gpu, programs, problem) as evaluator:
            baseline = evaluator.baseline()
            assert baseline is not None, "neither CuPy nor PyTorch nor nvmath is installed"
            assert baseline.details["library"] in ("cuBLAS", "cuBLASLt")
            assert "{library} {version} (".format(**baseline.details) in baseline.name


@pytest.mark.parametrize(
    "problem",
    [
        Gemm(300, 200, 520, "float32", layout="tn"),
        Gemm(301, 203, 517, "float64", layout="nt"),
        Gemm(300, 200, 520, "float32", accuracy="tf32"),
        Gemm(304, 200, 520, "bfloat16", layout="nt"),
        Gemm(301, 203, 517, "bfloat16", layout="tn"),
        Gemm(304, 200, 520, "float16", layout="tt", out_dtype="float32"),
    ],
    ids=str,
)
def test_every_library_is_right_and_the_fastest_is_the_baseline(
    problem: Gemm, family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    with make_evaluator({"suspect": family}, gpu, programs, problem) as evaluator:
        found = evaluator._insist(DescribeBaseline())
        assert {each.details["library"] for each in found} == {"cuBLAS", "cuBLASLt"}
        turns = [evaluator._visit(each, "ieee", 0.02) for each in found]
        assert all(isinstance(turn, Series) for turn in turns)
        baseline = evaluator.baseline()
        assert baseline is not None
        assert baseline.name in {each.name for each in found}


def test_reading_the_gpu_does_not_occupy_it() -> None:
    script = (
        "from autotune.gpu.nvidia.device import load_driver, read_gpu\n"
        "read_gpu()\n"
        "driver = load_driver()\n"
        "print(int(driver.cuCtxGetCurrent()[1]))\n"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "0\n"


def make_program(
    family: KernelFamily, candidate: Candidate, problem: Gemm, gpu: Device, programs: ProgramCache
) -> GpuProgram:
    layout = kernel_layout(family, problem.layout)
    sources = [
        render(family, candidate.configuration, dtype=problem.dtype, layout=layout),
        support_source(problem.dtype),
    ]
    device = gpu.limits.architecture  # type: ignore[attr-defined]
    compiled = []
    for source, architecture in zip(
        sources, (architecture_of(family, device), device), strict=True
    ):
        reply = compile_kept(programs, CompileRequest(source, "test", architecture))
        assert isinstance(reply, Compiled), reply
        compiled.append(reply.cubin)
    plan = Planner(family, candidate.configuration, problem.dtype, gpu.limits).plan(problem)
    return GpuProgram(
        compiled[0], plan, problem.dtype, problem.layout, layout, support=compiled[1]
    )


class OnDevice:
    """Operands of a problem, in a context that is current for as long as the test runs."""

    def __init__(self, problem: Gemm) -> None:
        rng = np.random.default_rng(5)
        self.driver = driver()
        self.problem = problem
        self.a, self.b, self.c = (
            rng.uniform(-1, 1, shape).astype(problem.dtype)
            for shape in (problem.a_shape, problem.b_shape, problem.c_shape)
        )
        self.memory = []
        for array in (self.a, self.b, self.c):
            self.memory.append(self.driver.allocate(array.nbytes))
            self.driver.upload(int(self.memory[-1]), array)

    @property
    def arguments(self) -> tuple[int, ...]:
        a, b, c = map(int, self.memory)
        return a, self.a.shape[1], b, self.b.shape[1], c, self.c.shape[1]

    def check(self, alpha: float = 1.0, beta: float = 0.0) -> None:
        out = np.empty_like(self.c)
        self.driver.download(out, int(self.memory[2]))
        a = self.a.T if self.problem.layout[0] == "t" else self.a
        b = self.b.T if self.problem.layout[1] == "t" else self.b
        expected = alpha * (a.astype(float) @ b) + beta * self.c
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize("stream", ["default", "the driver's", "another library's", "zero"])
def test_a_kernel_runs_on_any_stream(
    stream: str, layout: str, family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    problem = Gemm(33, 20, 41, layout=layout)
    program = make_program(family, suspect(more_workspace=1), problem, gpu, programs)
    with activated(0):
        operands = OnDevice(problem)
        kernel = GpuKernel(program)
        own = operands.driver.stream()
        chosen = {"default": None, "the driver's": own, "another library's": own.handle, "zero": 0}
        kernel.launch(*operands.arguments, alpha=2.0, beta=-0.5, stream=chosen[stream])
        operands.driver.synchronize()
        operands.check(2.0, -0.5)
        kernel.close()


def test_a_kernel_runs_in_a_thread_without_a_context(
    family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    problem = Gemm(33, 20, 41)
    kernel = GpuKernel(make_program(family, suspect(), problem, gpu, programs))
    with activated(0):
        operands = OnDevice(problem)
    thread = threading.Thread(target=lambda: kernel.launch(*operands.arguments))
    thread.start()
    thread.join()
    kernel.launch(*operands.arguments)
    with activated(0):
        operands.driver.synchronize()
        operands.check()
        operands.memory.clear()
    kernel.close()


def test_a_closed_kernel_is_not_launched(
    family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    kernel = GpuKernel(make_program(family, suspect(), Gemm(8, 8, 8), gpu, programs))
    launch = kernel.launch
    kernel.close()
    with pytest.raises(LaunchError, match="closed"):
        launch(0, 8, 0, 8, 0, 8)


def test_a_damaged_binary_is_a_launch_error(
    family: KernelFamily, gpu: Device, programs: ProgramCache
) -> None:
    program = make_program(family, suspect(), Gemm(8, 8, 8), gpu, programs)
    damaged = GpuProgram(b"no binary at all\0" * 8, program.plan, "float32")
    with pytest.raises(LaunchError, match="CUDA_ERROR_"):
        GpuKernel(damaged)


def test_binaries_are_kept(family: KernelFamily, gpu: Device, tmp_path: Path) -> None:
    programs = ProgramCache(tmp_path)
    with make_evaluator({"suspect": family}, gpu, programs, Gemm(8, 8, 8)) as evaluator:
        assert evaluator.evaluate(suspect(), None).ok
    kept = sorted(path.suffix for path in (tmp_path / "cuda").glob("suspect_*"))
    assert kept == [".cu", ".cubin", ".json"]


def test_a_kernel_that_is_not_in_the_source_is_named(gpu: Device, tmp_path: Path) -> None:
    write_suspects(tmp_path)
    file = tmp_path / "suspect.toml"
    file.write_text(
        file.read_text()
        + '[[launch.after]]\nkernel = "gem"\nwhen = "step == 2 and M >= 1"\n'
        + 'grid = ["1", "1", "1"]\nblock = ["32", "1", "1"]\n'
    )
    family = read_family(file, (tmp_path,))
    programs = ProgramCache(tmp_path / "programs")
    with make_evaluator({family.name: family}, gpu, programs, Gemm(40, 30, 50)) as evaluator:
        measurement = evaluator.evaluate(suspect(step=2), None)
        assert measurement.outcome is Outcome.COMPILE_FAILED
        assert "launch.after[1].kernel must be a kernel of the emitted" in measurement.reason
        assert evaluator.evaluate(suspect(), None).ok
