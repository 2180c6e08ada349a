"""Every family's emitted program on real ranks, against NumPy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpiexec import run_ranks

from autotune.catalog import load_families
from autotune.rendering import render

CHECK = Path(__file__).with_name("check_programs.py")
FAMILIES = {"cannon", "grid", "master_worker", "overlapped", "reduction", "rows", "summa"}
SQUARES_FIT = {4, 6, 8}


@pytest.mark.parametrize(("ranks", "count"), [(1, 8), (2, 8), (3, 3), (4, 4), (6, 1), (8, 1)])
def test_products_are_right_wherever_the_operands_are(
    ranks: int, count: int, tmp_path: Path
) -> None:
    done = run_ranks(ranks, str(CHECK), str(tmp_path), str(count))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    expected = FAMILIES if ranks in SQUARES_FIT else FAMILIES - {"cannon"}
    assert set(report["families"]) == (expected if ranks > 1 else expected - {"reduction"})


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_emitted_programs_run_by_themselves(name: str, tmp_path: Path) -> None:
    family = load_families(target="mpi")[name]
    chosen = {parameter.name: parameter.default for parameter in family.parameters}
    extents = {"rows": 1, "columns": 1, "side": 1, "reduction": 2, "panel": 16}
    chosen.update({extent: value for extent, value in extents.items() if extent in chosen})
    if name in ("rows", "grid", "summa"):
        chosen["rows"] = 2
    program = tmp_path / "program.py"
    program.write_text(render(family, chosen, dtype="float64").text)  # type: ignore[arg-type]
    done = run_ranks(2, str(program), "40", "50", "30")
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(r"[\d.]+ ms, largest error ([\d.e-]+) times n eps\n", done.stdout)
    assert told is not None, done.stdout
    assert float(told[1]) < 1


def test_a_plan_needs_its_ranks(tmp_path: Path) -> None:
    family = load_families(target="mpi")["rows"]
    program = tmp_path / "program.py"
    program.write_text(render(family, {"rows": 3, "threads": 1}, dtype="float64").text)
    done = run_ranks(2, str(program))
    assert done.returncode != 0
    assert "the grid takes 3 ranks, the communicator has 2" in done.stderr


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
