"""Every family's emitted program on real ranks, against NumPy."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_grids import grid_of
from mpiexec import run_ranks

from autotune.core.configuration import Configuration
from autotune.core.errors import FamilyError
from autotune.core.limits import MpiLimits
from autotune.distributed.grid import factorisations
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

CHECK = Path(__file__).with_name("check_programs.py")
FAMILIES = {
    "cannon",
    "grid",
    "master_worker",
    "overlapped",
    "reduction",
    "rows",
    "shared_memory",
    "summa",
}
NEEDS_TWO = {"reduction", "shared_memory"}
SQUARES_FIT = {4, 6, 8}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ranks", "count"), [(1, 8), (2, 8), (3, 3), (4, 4), (6, 1), (8, 1)])
def test_products_are_right_wherever_the_operands_are(
    ranks: int, count: int, tmp_path: Path
) -> None:
    done = run_ranks(ranks, str(CHECK), str(tmp_path), str(count))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    expected = FAMILIES if ranks in SQUARES_FIT else FAMILIES - {"cannon"}
    assert set(report["families"]) == (expected if ranks > 1 else expected - NEEDS_TWO)


@pytest.mark.parametrize("ranks", [5, 7, 12, 30, 61, 64])
@pytest.mark.parametrize(
    ("name", "layers"),
    [("grid", False), ("summa", False), ("shared_memory", False), ("reduction", True)],
)
def test_every_grid_of_a_count_of_ranks_can_be_had(name: str, layers: bool, ranks: int) -> None:
    space = load_families(target="mpi")[name].space(
        Gemm(4096, 4096, 4096), MpiLimits(ranks, nodes=1, cores=ranks)
    )
    found = {grid_of(space[row]) for row in range(len(space))}
    expected = set(factorisations(ranks, layers=layers))
    if layers:
        expected = {grid for grid in expected if grid.reduction > 1}
    assert {grid for grid in found if grid.size == ranks} == expected


def test_ranks_of_several_nodes_share_no_memory() -> None:
    family = load_families(target="mpi")["shared_memory"]
    space = family.space(Gemm(64, 64, 64), MpiLimits(4, nodes=2, cores=4))
    assert space.size == 0
    shared = {"panels": 1, "wait": "yield", "threads": 1, "rows": 2, "columns": 2}
    rejection = space.rejection(Configuration(shared))
    assert "only ranks of one node share memory" in str(rejection)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_emitted_programs_run_by_themselves(name: str, tmp_path: Path) -> None:
    family = load_families(target="mpi")[name]
    chosen = {parameter.name: parameter.default for parameter in family.parameters}
    extents = {"rows": 1, "columns": 1, "side": 1, "reduction": 2, "panel": 16}
    chosen.update({extent: value for extent, value in extents.items() if extent in chosen})
    if name in ("rows", "grid", "shared_memory", "summa"):
        chosen["rows"] = 2
    program = tmp_path / "program.py"
    program.write_text(render(family, chosen, dtype="float64").text)  # type: ignore[arg-type]
    done = run_ranks(2, str(program), "40", "50", "30")
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(r"[\d.]+ ms, largest error ([\d.e-]+) times n eps\n", done.stdout)
    assert told is not None, done.stdout
    assert float(told[1]) < 1


def test_an_element_type_that_mpi_does_not_have_is_refused() -> None:
    family = load_families(target="mpi")["rows"]
    half = dataclasses.replace(family, dtypes=("float16",))
    with pytest.raises(FamilyError, match="cannot have dtype float16: MPI has no such type"):
        render(half, {"rows": 2, "threads": 1}, dtype="float16")


def test_a_plan_needs_its_ranks(tmp_path: Path) -> None:
    family = load_families(target="mpi")["rows"]
    program = tmp_path / "program.py"
    program.write_text(render(family, {"rows": 3, "threads": 1}, dtype="float64").text)
    done = run_ranks(2, str(program))
    assert done.returncode != 0
    assert "the grid takes 3 ranks, and there are 2" in done.stderr


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_emitted_programs_are_lean_python(name: str, tmp_path: Path) -> None:
    family = load_families(target="mpi")[name]
    program = tmp_path / "program.py"
    for index, values in enumerate(
        zip(*(_ends(p.values) for p in family.parameters), strict=True)
    ):
        names = [parameter.name for parameter in family.parameters]
        text = render(family, dict(zip(names, values, strict=True))).text
        program.write_text(text)
        subprocess.run([sys.executable, "-m", "py_compile", str(program)], check=True)
        assert max(map(len, text.splitlines())) <= 120, index


def _ends(values: tuple[object, ...]) -> tuple[object, object]:
    return values[0], values[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("ranks", "arguments", "told"),
    [
        (1, "64 64 64", "the grid takes 2 ranks, and there are 1: mpiexec -n 2"),
        (2, "64 x 64", "three sizes M N K are needed, at least 1 each, got: 64 x 64"),
        (2, "64 64", "three sizes M N K are needed, at least 1 each, got: 64 64"),
        (2, "64 -3 64", "three sizes M N K are needed, at least 1 each, got: 64 -3 64"),
    ],
)
def test_what_a_program_cannot_do_is_one_line(
    tmp_path: Path, ranks: int, arguments: str, told: str
) -> None:
    family = load_families(target="mpi")["summa"]
    two = family.default(Gemm(64, 64, 64), MpiLimits(2, nodes=1, cores=2))
    (tmp_path / "summa.py").write_text(render(family, two).text)
    done = run_ranks(ranks, str(tmp_path / "summa.py"), *arguments.split())
    assert done.returncode != 0
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if told in line] == [told]
    assert "Traceback" not in done.stderr
