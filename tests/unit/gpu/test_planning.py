"""Compiled plans are what the expressions say; spaces of thin products and tensor maps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Configuration
from autotune.core.errors import SpaceError
from autotune.cpu.identity import read_cpu
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import LaunchPlan, MappedOperand
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.model.portfolio import Units
from autotune.operations.cases import cases_of
from autotune.operations.problem import GEMM, Gemm
from autotune.space.compiled import UndecidedError
from autotune.targets.families import load_families, read_family

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily


LIMITS = find_gpu("h200").limits
CUDA = load_families(target="cuda")
CPU = load_families(target="cpu")
SIZES = st.integers(1, 20000) | st.sampled_from([1, 2, 16, 4096, 2**31, 2**62, 2**63 - 1])


def undecided(*_: int) -> None:
    raise UndecidedError


def interpreter(
    family: KernelFamily, values: Mapping[str, Value], dtype: str, limits: DeviceLimits
) -> Planner:
    """A planner that evaluates the expressions themselves, one by one."""
    planner = Planner(family, values, dtype, limits)
    planner.__dict__.update(_valid=undecided, _launches=undecided)
    return planner


def planned(planner: Planner, problem: Gemm, runtime: tuple[int, ...] | None) -> LaunchPlan | str:
    try:
        return planner.plan(problem, runtime)
    except SpaceError as error:
        return str(error)


def drawn(data: st.DataObject, family: KernelFamily) -> dict[str, Value]:
    """Any values: valid together at some sizes, at none, or with divisions that are not whole."""
    declared = {each.name: each.default for each in family.parameters}
    changed = data.draw(st.sets(st.sampled_from(sorted(declared)), max_size=4))
    values = {each.name: st.sampled_from(each.values) for each in family.parameters}
    return {
        name: data.draw(values[name]) if name in changed or default is None else default
        for name, default in declared.items()
    }


def agree(data: st.DataObject, family: KernelFamily, problem: Gemm, limits: DeviceLimits) -> None:
    values = drawn(data, family)
    planner = Planner(family, values, problem.dtype, limits)
    runtime = None
    if family.runtime_parameters and data.draw(st.booleans()):
        others = drawn(data, family)
        runtime = tuple(int(others[name]) for name in family.runtime_parameters)
        values |= zip(family.runtime_parameters, runtime, strict=True)
    truth = interpreter(family, values, problem.dtype, limits)
    expected, valid = planned(truth, problem, None), truth.valid(problem)
    assert planned(planner, problem, runtime) == expected
    assert planner.valid(problem, runtime) == valid
    launched = valid and isinstance(expected, LaunchPlan)
    assert planner.find(problem, runtime) == (expected if launched else None)


@settings(max_examples=150)
@given(st.data(), st.sampled_from(sorted(CUDA)), SIZES, SIZES, SIZES)
def test_plans_are_what_the_expressions_say(
    data: st.DataObject, name: str, m: int, n: int, k: int
) -> None:
    problem = Gemm(m, n, k, dtype=data.draw(st.sampled_from(CUDA[name].dtypes)))
    agree(data, CUDA[name], problem, LIMITS)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(CPU)), SIZES, SIZES, SIZES)
def test_families_without_a_launch_are_valid_or_not(
    data: st.DataObject, name: str, m: int, n: int, k: int
) -> None:
    problem = Gemm(m, n, k, dtype=data.draw(st.sampled_from(CPU[name].dtypes)))
    agree(data, CPU[name], problem, read_cpu().limits)


FAMILY = """
family = "odd"
operation = "gemm"
target = "cuda"
template = "odd.cu.j2"
accuracy = "ieee"
summary = "Everything that a launch may depend on"
dtypes = ["float32", "float64"]
layouts = ["nn"]

[parameters]
sm = { values = [16, 24, 32], default = 16 }
kind = { values = ["one", "two"], default = "one" }
parts = { values = [1, 2, 3, 8], default = 1, runtime = true }
depth = { values = [4, 64], default = 4, runtime = true }

[derived]
rows = "ceildiv(M, sm)"
inner = "N / parts"
share = "K // (depth - 4)"
threads = "sm * (depth // 4)"
registers = "32"
shared_bytes = "inner * itemsize / 3"

[[restrictions]]
expr = "kind == 'one' or parts > 1"
reason = "two takes several parts"

[[restrictions]]
expr = "N % (parts - 1) == 0"
reason = "undefined for one part"

[launch]
grid = ["rows", "parts", "K - 10"]
block = ["sm", "depth // 4", "1"]
shared_bytes = "shared_bytes"
workspace_bytes = "(parts > 1) * rows * K * itemsize"

[[launch.before]]
kernel = "first"
when = "N % (parts - 1) == 1"
grid = ["share", "1", "1"]
block = ["32", "1", "1"]

[[launch.after]]
kernel = "last"
when = "parts > 1"
grid = ["M - 3", "1", "1"]
block = ["32", "1", "1"]
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> KernelFamily:
    folder: Path = tmp_path_factory.mktemp("odd")
    (folder / "odd.toml").write_text(FAMILY)
    (folder / "odd.cu.j2").write_text("__global__ void gemm() {}\n")
    return read_family(folder / "odd.toml", (folder,), (folder,))


@settings(max_examples=300)
@given(data=st.data(), m=st.integers(1, 40), n=st.integers(1, 40), k=st.integers(1, 40))
def test_plans_with_parameters_of_the_call(
    odd: KernelFamily, data: st.DataObject, m: int, n: int, k: int
) -> None:
    agree(data, odd, Gemm(m, n, k), LIMITS)


def test_a_value_of_no_parameter_is_refused(odd: KernelFamily) -> None:
    default: dict[str, Value] = {"sm": 16, "kind": "one", "parts": 2, "depth": 64}
    planner = Planner(odd, default, "float32", LIMITS)
    problem = Gemm(16, 48, 16)
    assert planner.plan(problem, (8, 64)).runtime == (8, 64)
    assert not planner.valid(problem, (5, 64))
    assert planner.find(problem, (5, 64)) is None
    with pytest.raises(SpaceError, match=r"odd\.parts must be one of 1, 2, 3, 8, got 5"):
        planner.plan(problem, (5, 64))


@pytest.mark.parametrize(
    ("name", "shape", "changes", "told"),
    [
        ("tiled", (200_000, 2, 200_000), {"tile": 4}, "gemm 2500000000 x 1 x 1$"),
        ("block", (1, 16, 1), {}, ""),
        # 64 GiB of an operand are copied, 16 bytes a thread.
        (
            "pipelined",
            (16, 131_073, 131_073),
            {"realign": 1, "transpose_through": "registers"},
            "realign_operands numbers its threads in 32 bits",
        ),
    ],
)
def test_what_no_device_launches_is_refused(
    name: str, shape: tuple[int, int, int], changes: dict[str, Value], told: str
) -> None:
    family, problem = CUDA[name], Gemm(*shape)
    values = {**family.default(Gemm(4096, 4096, 4096), LIMITS), **changes}
    planner = Planner(family, values, problem.dtype, LIMITS)
    if told:
        assert planner.find(problem) is None
        with pytest.raises(SpaceError, match=told):
            planner.plan(problem)
    else:
        assert planner.plan(problem).steps


@pytest.mark.parametrize(
    ("shape", "through", "useful"),
    [
        ((174, 5953, 15872), "copies", False),  # B's rows are aligned, A's are read singly anyway
        ((174, 5953, 15872), "registers", True),
        ((174, 5952, 15871), "copies", True),
        ((174, 5952, 15872), "registers", False),
    ],
)
def test_operands_are_realigned_that_vectors_could_not_be_read_of(
    shape: tuple[int, int, int], through: str, useful: bool
) -> None:
    family, problem = CUDA["pipelined"], Gemm(*shape)
    changes: dict[str, Value] = {"realign": 1, "transpose_through": through}
    values = {**family.default(Gemm(4096, 4096, 4096), LIMITS), **changes}
    assert Planner(family, values, problem.dtype, LIMITS).valid(problem) is useful


def test_sizes_that_kernels_cannot_count_are_refused() -> None:
    for sizes in ((1, 2**31 - 1, 1), (2**31, 1, 1), (1, 1, 2**40)):
        for family in CUDA.values():
            if family.unsupported(Gemm(8, 8, 8)) is None:
                assert "counts in 32 bits" in str(family.unsupported(Gemm(*sizes)))
    assert CUDA["naive"].unsupported(Gemm(2**31 - 2**16, 1, 1)) is None
    assert CPU["goto"].unsupported(Gemm(2**40, 1, 1)) is None


FAMILIES = load_families(target="cuda", operation="gemm")
PROBLEMS = {
    "skinny": [
        Gemm(1, 4096, 4096),
        Gemm(4096, 4096, 1),
        Gemm(8, 16384, 777),
        Gemm(16, 65536, 16),
        Gemm(9001, 40, 5),
    ],
    "outer": [Gemm(4096, 1, 4096), Gemm(1000, 13, 70), Gemm(33, 32, 16384)],
}
CASES = [(name, problem) for name, problems in PROBLEMS.items() for problem in problems]


def configurations(family: KernelFamily, problem: Gemm, count: int) -> Iterator[Configuration]:
    space = family.space(problem, LIMITS)
    rng = np.random.default_rng(problem.m + problem.k)
    yield from (space[int(row)] for row in space.sample(count, rng))


@pytest.mark.parametrize(("name", "problem"), CASES, ids=[f"{n}-{p.label}" for n, p in CASES])
def test_every_program_is_verified_at_several_sizes(name: str, problem: Gemm) -> None:
    for configuration in configurations(FAMILIES[name], problem, 40):
        planner = Planner(FAMILIES[name], configuration, "float32", LIMITS)
        cases = [
            case for case in cases_of(problem) if planner.valid(problem.with_sizes(*case.sizes))
        ]
        assert len(cases) >= 4, configuration
        assert any(case.scalars_of(GEMM)["beta"] for case in cases), configuration


@pytest.mark.parametrize(("name", "problem"), CASES, ids=[f"{n}-{p.label}" for n, p in CASES])
def test_the_model_counts_the_blocks_that_are_launched(name: str, problem: Gemm) -> None:
    family = FAMILIES[name]
    assert family.free_parameters == family.runtime_parameters
    for configuration in configurations(family, problem, 40):
        plan = Planner(family, configuration, "float32", LIMITS).plan(problem)
        unit = Units(family, configuration, "float32", LIMITS).of(configuration)
        rows, columns, steps = unit.tile
        # What tiles have in common where rows are no whole vectors is left to the kernel.
        overlap = int(family.values(configuration, problem, LIMITS).get("overlap", 0))
        if configuration.get("side") == "columns":
            tiles = math.ceil(problem.m / (rows - overlap)) * math.ceil(problem.k / columns)
        else:
            tiles = math.ceil(problem.m / rows) * math.ceil(problem.k / (columns - overlap))
        (step,) = plan.steps
        assert math.prod(step.grid) == tiles * unit.parts, configuration
        assert steps >= 1


@pytest.mark.parametrize("shape", [(1, 1, 1), (5000, 5000, 5000), (1, 1, 100000), (65, 3, 65)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_problem_has_an_empty_space(name: str, dtype: str, shape: tuple[int, int, int]) -> None:
    assert FAMILIES[name].space(Gemm(*shape, dtype=dtype), LIMITS).size > 0


WGMMA, TF32 = FAMILIES["wgmma"], FAMILIES["wgmma_tf32"]
H200 = find_gpu("h200").limits
LARGE = Gemm(4096, 4096, 4096, "float16", accuracy="native")


def test_every_warp_group_has_two_boxes_of_its_own() -> None:
    space = WGMMA.space(LARGE, H200)
    seen = set()
    for number in range(0, space.size, 41):
        chosen = space[number]
        stored = {
            store: WGMMA.values({**chosen, "store": store}, LARGE, H200)
            for store in ("direct", "tma")
        }
        direct, boxes = (int(stored[store]["tiles_bytes"]) for store in ("direct", "tma"))
        assert boxes - direct == chosen["consumers"] * 2 * 64 * 128
        needed = int(stored[str(chosen["store"])]["shared_bytes"])
        assert needed <= H200.shared_bytes_per_block // int(chosen["min_blocks"])
        seen.add(chosen["store"])
    assert seen == {"direct", "tma"}


def test_rows_have_lines_where_tiles_leave_room_for_all_of_them() -> None:
    seen = set()
    for preset in WGMMA.presets.values():
        chosen = preset.configuration
        values = WGMMA.values(chosen, LARGE, H200)
        lines = int(chosen["consumers"]) * 4 * 8 * (256 + 16)
        extra = int(values["shared_bytes"]) - int(values["tiles_bytes"])
        room = H200.shared_bytes_per_block // int(chosen["min_blocks"])
        if chosen["cluster_n"] == 1 and int(values["tiles_bytes"]) + lines <= room:
            assert extra == lines
        else:
            assert extra == 0
        seen.add((int(chosen["cluster_n"]) > 1, extra > 0))
    assert seen == {(True, False), (False, True), (False, False)}


def test_what_has_no_room_for_boxes_is_rejected() -> None:
    space = WGMMA.space(LARGE, H200)
    fits = Configuration({**WGMMA.presets["three"].configuration, "store": "direct"})
    assert space.rejection(fits) is None
    rejected = space.rejection(Configuration({**fits, "store": "tma"}))
    assert rejected is not None
    assert "shared memory that one block can opt in to" in str(rejected)


@pytest.mark.parametrize("preset", ["large-tma", "turns-tma"])
@pytest.mark.parametrize(("out_dtype", "columns"), [(None, 64), ("float32", 32)])
def test_the_map_of_results_has_their_type(
    preset: str, out_dtype: str | None, columns: int
) -> None:
    problem = Gemm(1000, 500, 300, "bfloat16", out_dtype=out_dtype, accuracy="native")
    planner = Planner(WGMMA, WGMMA.presets[preset].configuration, "bfloat16", H200)
    assert planner.plan(problem).maps[2:] == (MappedOperand("C", False, (64, columns), 128),)
    for splits in (1, 2):
        assert len(planner.plan(problem, (8, splits)).maps) == 3  # the kernel is the same


def test_tf32_has_it_too() -> None:
    planner = Planner(TF32, TF32.presets["large-tma"].configuration, "float32", H200)
    problem = Gemm(1000, 500, 300, layout="nt", accuracy="tf32")
    assert planner.plan(problem).maps[2] == MappedOperand("C", False, (64, 32), 128)


@pytest.mark.parametrize(
    ("preset", "boxed"), [("large", True), ("large-tma", True), ("steps-of-32", False)]
)
def test_sources_have_what_they_use(preset: str, boxed: bool) -> None:
    configuration = WGMMA.presets[preset].configuration
    text = render(WGMMA, configuration, dtype="float16", out_dtype="float32").text
    for word in ("c_map", "fence.proxy.async", "bulk_group", "BOX_COLUMNS", "mapped"):
        assert (word in text) == boxed, word
    half = render(WGMMA, configuration, dtype="float16").text
    assert ("stmatrix" in half) == boxed
    assert "stmatrix" not in text
    assert ("boxes[CONSUMERS]" in half) == (preset == "large-tma")


@pytest.mark.parametrize("name", [each for each in FAMILIES if each.startswith("split")])
@pytest.mark.parametrize("side", [300, 1024, 5000])
def test_the_device_is_filled_with_all_products_of_all_tiles(name: str, side: int) -> None:
    """A unit of the model is a cluster's product of a tile: one of each modulus."""
    family = FAMILIES[name]
    problem = Gemm(side, side, side, family.dtypes[0], accuracy=family.accuracy)
    for preset in family.presets.values():
        configuration = preset.placed(family.space(problem, H200))
        unit = Units(family, configuration, problem.dtype, H200).of(configuration)
        rows, columns, _ = unit.tile
        units = math.ceil(side / rows) * math.ceil(side / columns) * unit.parts
        cluster = int(configuration.get("cluster_m", 1))
        plan = Planner(family, configuration, problem.dtype, H200).plan(problem)
        grid = next(each.grid for each in plan.steps if each.kernel == "gemm")
        persistent = "cluster_m" in configuration
        most = H200.multiprocessor_count // cluster if persistent else units
        assert grid == (min(most, units) * cluster, 1, 1)
