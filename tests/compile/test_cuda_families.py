"""CUDA families compiled for real, and what was predicted held against the binaries."""

from __future__ import annotations

import multiprocessing
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from epilogue_families import write_families, write_operations
from operation_examples import LARGE, example, family_of

from autotune.core.configuration import Configuration, Value
from autotune.core.limits import GpuLimits
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import architecture_of, kernel_layout
from autotune.families.rendering import render
from autotune.gpu.compiling import SPILL_LIMIT
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import Compiled, compile_cuda, supported_architectures
from autotune.operations.problem import Gemm
from autotune.targets.families import catalog, load_families

pytestmark = pytest.mark.slow

FAMILIES = load_families(target="cuda")
DEVICES = ("t4", "a100", "rtx4090", "h200", "b200")
SAMPLES = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration for one problem, and all the names it gives values to."""

    family: KernelFamily
    configuration: Configuration
    problem: Gemm
    names: dict[str, Value]

    @classmethod
    def of(
        cls, family: KernelFamily, configuration: Configuration, problem: Gemm, limits: GpuLimits
    ) -> Case:
        return cls(family, configuration, problem, family.values(configuration, problem, limits))

    @property
    def architecture(self) -> str:
        return architecture_of(self.family, f"sm_{self.names['compute_capability']}")

    def source(self) -> str:
        problem = self.problem
        return render(
            self.family,
            self.configuration,
            dtype=problem.dtype,
            layout=problem.layout,
            out_dtype=problem.out_dtype,
        ).text


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    # Processes: the compiler does not run in several threads at once.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as workers:
        yield workers


def compiled(pool: ProcessPoolExecutor, cases: Sequence[Case]) -> Iterator[tuple[Case, Compiled]]:
    sources = [case.source() for case in cases]
    architectures = [case.architecture for case in cases]
    yield from zip(cases, pool.map(compile_cuda, sources, architectures), strict=True)


def sampled(family: KernelFamily, problem: Gemm, limits: GpuLimits, count: int) -> list[Case]:
    space = family.space(problem, limits)
    rows = space.sample(count, np.random.default_rng(0))
    return [Case.of(family, space[int(row)], problem, limits) for row in rows]


def spread(family: KernelFamily, problem: Gemm, limits: GpuLimits) -> list[Case]:
    """A sample, thinned evenly from the one with the least registers to the one with the most."""
    drawn = sampled(family, problem, limits, 120)
    drawn.sort(key=lambda case: int(case.names["registers"]))
    return [drawn[int(place)] for place in np.linspace(0, len(drawn) - 1, 4)]


def cases(family: KernelFamily, limits: GpuLimits) -> list[Case]:
    """The default, and samples that take turns in dtypes, those of results too, and layouts."""
    first = Gemm(m=4096, n=4096, k=4096, dtype=family.dtypes[0])
    found = [Case.of(family, family.default(first, limits), first, limits)]
    dtypes = [(dtype, result) for dtype in family.dtypes for result in family.results(dtype)]
    for number in range(max(len(dtypes), len(family.layouts))):
        dtype, out_dtype = dtypes[number % len(dtypes)]
        problem = Gemm(
            m=4096,
            n=4096,
            k=4096,
            dtype=dtype,
            layout=family.layouts[number % len(family.layouts)],
            out_dtype=out_dtype,
        )
        found += sampled(family, problem, limits, SAMPLES)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_valid_configurations_compile_and_need_what_was_predicted(
    pool: ProcessPoolExecutor, family: KernelFamily, device: str
) -> None:
    limits = find_gpu(device).limits
    assert limits.architecture in supported_architectures()
    if not family.space(Gemm(4096, 4096, 4096, family.dtypes[0]), limits).size:
        demands = [
            restriction.text
            for restriction in family.restrictions
            if "compute_capability" in restriction.expression.names
        ]
        assert demands, f"{family.name} is empty on {device}"
        pytest.skip(f"{family.name} needs {' and '.join(demands)}")
    assert family.launch is not None
    for case, binary in compiled(pool, cases(family, limits)):
        where = f"{case.configuration} {case.problem.label}"
        kernel = binary.kernels["gemm"]
        dynamic = family.launch.shared_bytes.evaluate(case.names)
        assert kernel.shared_bytes + int(dynamic) == case.names["shared_bytes"], where
        block = [extent.evaluate(case.names) for extent in family.launch.block]
        assert np.prod([int(extent) for extent in block]) == case.names["threads"], where
        if "register_cap" in case.names:
            assert kernel.registers <= int(case.names["register_cap"]), where
        else:
            assert kernel.max_threads is not None, where  # __launch_bounds__
            assert kernel.max_threads >= int(case.names["threads"]), where
        for auxiliary in (*family.launch.before, *family.launch.after):
            if auxiliary.when.holds(case.names):
                assert auxiliary.kernel in binary.kernels, where


@pytest.mark.skipif("block" not in FAMILIES, reason="there is no family block")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # What waits in registers for its turn in shared memory takes half as many of 16 bits.
    [("float32", 0.15), ("float64", 0.15), ("float16", 0.2), ("bfloat16", 0.2)],
)
def test_registers_of_block_are_estimated(
    pool: ProcessPoolExecutor, dtype: str, tolerance: float
) -> None:
    limits = find_gpu("h200").limits
    drawn = spread(FAMILIES["block"], Gemm(4096, 4096, 4096, dtype), limits)
    errors = {
        f"{case.configuration} {case.problem.dtype}": (
            int(case.names["registers"]) / binary.kernels["gemm"].registers
        )
        for case, binary in compiled(pool, drawn)
    }
    assert {name: error for name, error in errors.items() if abs(error - 1) > tolerance} == {}


GEMM_FAMILIES = load_families(target="cuda", operation="gemm")
LIMITS = find_gpu("h200").limits
PROBLEMS = {
    "skinny": (
        Gemm(1, 4096, 4096),
        Gemm(4096, 4096, 3, layout="nt"),
        Gemm(8, 4096, 4096, dtype="float64", layout="tt"),
        Gemm(4096, 4096, 2, layout="tn"),
        Gemm(2, 4096, 4096, dtype="bfloat16", out_dtype="float32"),
    ),
    "outer": (
        Gemm(4096, 1, 4096),
        Gemm(4096, 7, 4096, layout="tt"),
        Gemm(4096, 16, 4096, dtype="float64", layout="tn"),
        Gemm(4096, 32, 4096, layout="nt"),
    ),
}
PRESETS = [(name, preset) for name in PROBLEMS for preset in GEMM_FAMILIES[name].presets]


def drawn() -> Iterator[tuple[str, Gemm, Configuration]]:
    """A configuration for each problem."""
    rng = np.random.default_rng(4)
    for name, problems in PROBLEMS.items():
        for problem in problems:
            space = GEMM_FAMILIES[name].space(problem, LIMITS)
            yield name, problem, space[int(space.sample(1, rng)[0])]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "problem", "configuration"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].label}") for each in drawn()],
)
def test_binaries_need_what_was_predicted(
    name: str, problem: Gemm, configuration: Configuration
) -> None:
    family = GEMM_FAMILIES[name]
    assert family.launch is not None
    names = family.values(configuration, problem, LIMITS)
    source = render(
        family,
        configuration,
        dtype=problem.dtype,
        layout=problem.layout,
        out_dtype=problem.out_dtype,
    )
    kernel = compile_cuda(source.text, "sm_90").kernels["gemm"]
    dynamic = int(family.launch.shared_bytes.evaluate(names))
    assert kernel.shared_bytes + dynamic == names["shared_bytes"]
    assert kernel.max_threads == names["threads"]
    assert kernel.registers <= int(names["registers_allowed"])
    assert 0.7 < kernel.registers / int(names["registers"]) < 1.4


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "preset"), PRESETS)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_presets_spill_nothing(name: str, preset: str, layout: str) -> None:
    family = GEMM_FAMILIES[name]
    configuration = family.presets[preset].configuration
    dtype = "bfloat16" if preset.endswith("16-bits") else "float32"
    text = render(family, configuration, dtype=dtype, layout=layout).text
    compiled = compile_cuda(text, "sm_90")
    assert compiled.spill_bytes.get("gemm", 0) <= SPILL_LIMIT
    assert compiled.kernels["gemm"].local_bytes == 0


ABLE = [name for name, family in catalog("cuda").items() if family.epilogue]


LAYERS = ["layer_bias_gelu", "layer_row_scale_silu_multiply", "layer_gelu_tanh_residual"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", ["linear_relu", "gated", *LAYERS])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*ABLE, "plain"])
def test_defaults_compile(name: str, dtype: str, operation: str, tmp_path: Path) -> None:
    folders = [write_operations(tmp_path / "operations"), write_families(tmp_path / "families")]
    family = catalog("cuda", operation, folders)[name]
    if dtype not in family.dtypes:
        pytest.skip(f"{name} is for {', '.join(family.dtypes)}")
    limits = find_gpu("h200").limits
    problem = family.defined.at((512, 256, 384), dtype=dtype)
    layout = kernel_layout(family, "nn")
    source = render(family, family.default(problem, limits), dtype=dtype, layout=layout)
    architecture = architecture_of(family, limits.architecture)
    assert operation in compile_cuda(source.text, architecture).kernels


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", ["t4", "a100", "h200"])
@pytest.mark.parametrize("name", LARGE)
def test_example_operations_compile_and_need_what_was_predicted(
    name: str, device: str, dtype: str
) -> None:
    family, operation, limits = family_of(name, "cuda"), example(name), find_gpu(device).limits
    assert family.launch is not None
    rng = np.random.default_rng(zlib.crc32(f"{name} {device} {dtype}".encode()))
    problem = operation.at(LARGE[name], dtype=dtype)
    space = family.space(problem, limits)
    drawn = [space[int(row)] for row in space.sample(1, rng)]
    for configuration in (family.default(problem, limits), *drawn):
        source = render(family, configuration, dtype=dtype)
        binary = compile_cuda(source.text, limits.architecture)
        names = family.values(configuration, problem, limits)
        kernel = binary.kernels[name]
        dynamic = int(family.launch.shared_bytes.evaluate(names))
        assert kernel.shared_bytes + dynamic == names["shared_bytes"], configuration
        block = [int(extent.evaluate(names)) for extent in family.launch.block]
        assert np.prod(block) == names["threads"], configuration
        assert kernel.max_threads is not None
        assert kernel.max_threads >= int(names["threads"]), configuration
        assert binary.spill_bytes[name] <= 64, configuration
        assert 0.5 < int(names["registers"]) / kernel.registers < 2.0, configuration
        for auxiliary in (*family.launch.before, *family.launch.after):
            if auxiliary.when.holds(names):
                assert auxiliary.kernel in binary.kernels, configuration
