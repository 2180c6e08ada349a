"""Compiled plans are what the expressions say one by one, at all sizes, errors included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import SpaceError
from autotune.cpu.identity import read_cpu
from autotune.families.gpu.launch import LaunchPlan
from autotune.families.gpu.planning import Planner
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
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
SIZES = st.integers(1, 20000) | st.sampled_from([1, 2, 16, 4096, 2**31, 2**62, 2**63, 2**70])


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
