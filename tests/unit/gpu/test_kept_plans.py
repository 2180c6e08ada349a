"""What is made of an operand that stays as it is: said by families, planned once."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.errors import FamilyError
from autotune.families.family import KernelFamily
from autotune.families.gpu.keeping import kept_plan
from autotune.families.gpu.planning import planner_of
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families, read_family

KEEPS = """\
[launch.keeps]
operand = "B"
kernel = "split"
grid = ["ceildiv(K, 8)", "1", "1"]
rest = ["M", "2", "1"]
bytes = "4 * K"
"""
FAMILY = (
    """\
family = "halves"
operation = "gemm"
target = "cuda"
template = "halves.cu.j2"
accuracy = "ieee"
summary = "Operands that are split before the product"
dtypes = ["float32"]
include = ["shared.toml"]

[parameters]
sm = { values = [32, 64], default = 64 }
split = { values = [0, 1], default = 1 }

[derived]
threads = "128"
registers = "64"
shared_bytes = "0"

[launch]
grid = ["ceildiv(M, sm)", "1", "1"]
block = ["128", "1", "1"]
shared_bytes = "0"
workspace_bytes = "4 * (M + K)"

[[launch.before]]
kernel = "first"
when = "1"
grid = ["1", "1", "1"]
block = ["32", "1", "1"]

[[launch.before]]
kernel = "split"
when = "split"
grid = ["M + K", "1", "1"]
block = ["64", "1", "1"]
shared_bytes = "256"

"""
    + KEEPS
)
SHARED = "[parameters]\ngroup = { values = [1, 8], default = 8, runtime = true }\n"
H200 = find_gpu("h200").limits
PROBLEM = Gemm(100, 70, 30)


def halves(folder: Path, text: str = FAMILY, shared: str = SHARED) -> KernelFamily:
    (folder / "halves.toml").write_text(text)
    (folder / "shared.toml").write_text(shared)
    (folder / "halves.cu.j2").write_text("")
    return read_family(folder / "halves.toml", (folder,), (folder,))


def test_it_is_made_once_and_all_else_at_every_call(tmp_path: Path) -> None:
    family = halves(tmp_path)
    configuration = family.default(PROBLEM, H200)
    plan = planner_of(family, configuration, "float32", H200).plan(PROBLEM)
    found = kept_plan(family, configuration, PROBLEM, H200, "B")
    assert found is not None
    first, split, main = plan.steps
    assert [step.grid for step in plan.steps] == [(1, 1, 1), (130, 1, 1), (2, 1, 1)]
    assert found.bytes == 120
    assert found.keep.sizes == (0, 70, 30)
    (kept,) = found.keep.steps
    assert (kept.kernel, kept.grid) == ("split", (4, 1, 1))
    assert found.call.sizes == plan.sizes
    assert [found.call.steps[0], found.call.steps[2]] == [first, main]
    rest = found.call.steps[1]
    assert (rest.kernel, rest.grid) == ("split", (100, 2, 1))
    for step in (kept, rest):
        assert (step.block, step.shared_bytes) == (split.block, split.shared_bytes)
    for each in (found.keep, found.call):
        assert (each.workspace_bytes, each.runtime) == (plan.workspace_bytes, plan.runtime)


def test_nothing_is_kept(tmp_path: Path) -> None:
    family = halves(tmp_path)
    configuration = family.default(PROBLEM, H200)
    assert kept_plan(family, configuration, PROBLEM, H200, "A") is None
    unsplit = family.conform({**configuration, "split": 0})
    assert kept_plan(family, unsplit, PROBLEM, H200, "B") is None
    plain = halves(tmp_path, FAMILY.replace(KEEPS, ""))
    assert kept_plan(plain, configuration, PROBLEM, H200, "B") is None


def test_an_included_file_may_say_it(tmp_path: Path) -> None:
    family = halves(tmp_path, FAMILY.replace(KEEPS, ""), SHARED + KEEPS)
    assert family.launch is not None
    assert family.launch.keeps == halves(tmp_path).launch.keeps  # type: ignore[union-attr]


def test_families_that_split_keep_b() -> None:
    for family in load_families(target="cuda", operation="gemm").values():
        problem = Gemm(2000, 2001, 1999, family.dtypes[0], accuracy=family.accuracy)
        found = kept_plan(family, family.default(problem, H200), problem, H200, "B")
        has_planes = any(each.name == "plane" for each in family.parameters)
        assert (found is not None) == has_planes
        if found is not None:
            assert found.keep.sizes == (0, 2001, 1999)
            assert 0 < found.bytes < (found.call.workspace_bytes or 0)
            assert found.bytes % 128 == 0
            plan = planner_of(family, family.default(problem, H200), problem.dtype, H200).plan(
                problem
            )
            grids = [each.steps[0].grid[0] for each in (found.keep, found.call, plan)]
            assert grids[0] + grids[1] == grids[2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'kernel = "split"\ngrid',
            'kernel = "splits"\ngrid',
            r"keeps\.kernel must be one of first",
        ),
        ('operand = "B"', 'operand = "C"', r"launch\.keeps\.operand must be one of A, B, got"),
        ('rest = ["M", "2", "1"]\n', "", r"launch\.keeps\.rest is missing"),
        ('bytes = "4 * K"', 'bytes = "4 * K"\nmore = 1', r"launch\.keeps\.more is not a key"),
        ('bytes = "4 * K"', 'bytes = "4 * L"', r"launch\.keeps\.bytes"),
        ('workspace_bytes = "4 * (M + K)"\n', "", r"launch\.keeps must have the start of a work"),
        ('(M + K)"\n', '(M + K)"\nzeroed_bytes = "4"\n', r"of which no bytes are zeroed"),
    ],
)
def test_faults_name_file_key_and_expectation(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FAMILY
    with pytest.raises(FamilyError, match=message):
        halves(tmp_path, FAMILY.replace(old, new, 1))


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (KEEPS, r"shared\.toml: launch\.keeps must not be there twice"),
        ('[launch]\ngrid = ["1", "1", "1"]\n', r"shared\.toml: launch\.grid is not a key"),
    ],
)
def test_included_files_say_nothing_else(tmp_path: Path, shared: str, message: str) -> None:
    with pytest.raises(FamilyError, match=message):
        halves(tmp_path, FAMILY, SHARED + shared)
