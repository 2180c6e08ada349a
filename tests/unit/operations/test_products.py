"""An operation of one's own, from its two files to a tuned kernel: the triangular example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune import load, tune
from autotune.cli import main
from autotune.core.configuration import Candidate
from autotune.core.errors import FamilyError, NotTunedError, UnknownNameError
from autotune.core.measurement import Outcome
from autotune.core.paths import CacheLocations
from autotune.cpu import CpuEvaluator
from autotune.families.family import KernelFamily
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort, Work
from autotune.operations.formula import Formula
from autotune.operations.problem import GEMM, Product
from autotune.targets.families import find_operation, load_families
from autotune.targets.registry import make_target

FOLDER = Path(__file__).parents[3] / "examples" / "triangular"
QUICK = Effort(budget_s=0.02, finals_s=0.1)


@pytest.fixture(scope="module")
def families() -> Mapping[str, KernelFamily]:
    return load_families(target="cpu", operation="trmm", extra=[FOLDER])


def problem(m: int, n: int, k: int, dtype: str = "float32") -> Product:
    return Product(m, n, k, dtype=dtype, defined=find_operation("trmm", [FOLDER]))


def test_a_problem_knows_its_operation(families: Mapping[str, KernelFamily]) -> None:
    square = problem(4, 4, 3)
    assert (square.operation, square.flops) == ("trmm", 2 * 3 * (1 + 2 + 3 + 4))
    assert problem(5, 2, 1).flops == 2 * (1 + 2 + 2 + 2 + 2)
    assert problem(2, 9, 1).flops == 2 * (1 + 2)
    assert square.key()["formula"] == "alpha * tril(A) @ B + beta * C"
    assert json.loads(json.dumps(square.key())) == square.key()
    assert square.with_sizes(8, 8, 8).defined == square.defined
    assert families["rows"].unsupported(square) is None


def test_families_of_another_formula_do_not_serve_it(
    families: Mapping[str, KernelFamily], tmp_path: Path
) -> None:
    text = (FOLDER / "trmm.toml").read_text().replace("tril", "triu")
    (tmp_path / "upper.toml").write_text(text)
    (tmp_path / "trmm.py.j2").write_text((FOLDER / "trmm.py.j2").read_text())
    upper = find_operation("trmm", [tmp_path])
    reason = families["rows"].unsupported(Product(4, 4, 4, defined=upper))
    assert reason is not None
    assert "rows computes alpha * tril(A)" in reason
    with pytest.raises(FamilyError, match="there is a family 'rows' for trmm on cpu already"):
        find_operation("trmm", [FOLDER, tmp_path])


def test_a_family_with_a_formula_may_be_for_finite_operands_alone(tmp_path: Path) -> None:
    text = (FOLDER / "trmm.toml").read_text()
    (tmp_path / "trmm.py.j2").write_text((FOLDER / "trmm.py.j2").read_text())
    for written, kept in (("", False), ("finite = false\n", False), ("finite = true\n", True)):
        (tmp_path / "trmm.toml").write_text(text.replace("flops =", f"{written}flops ="))
        assert find_operation("trmm", [tmp_path]).finite is kept


def test_operations_nobody_defines_are_unknown() -> None:
    with pytest.raises(UnknownNameError, match=r"'trmm' has no family .* --families"):
        find_operation("trmm", [])
    assert find_operation("gemm") is GEMM


FAULTS = {
    "no formula": ('formula = "alpha * tril(A) @ B + beta * C"\n', "", "formula is missing"),
    "formula": ("tril(A)", "inv(A)", r"formula must say what C becomes: .*'inv\(A\)'"),
    "flops": ("min(M, N) * (", "min(L, N) * (", "flops = .* the names there are: K, M, N"),
    "finite": ("flops", 'finite = "yes"\nflops', "finite must be true or false, got 'yes'"),
    "mpi": ('target = "cpu"', 'target = "mpi"', "operation must be gemm on mpi: others are for"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_definition_that_is_wrong_is_refused(fault: str, tmp_path: Path) -> None:
    before, after, message = FAULTS[fault]
    text = (FOLDER / "trmm.toml").read_text()
    assert before in text
    (tmp_path / "trmm.toml").write_text(text.replace(before, after))
    (tmp_path / "trmm.py.j2").write_text((FOLDER / "trmm.py.j2").read_text())
    with pytest.raises(FamilyError, match=message):
        load_families(target="cpu", operation="trmm", extra=[tmp_path])


@pytest.mark.thorough
def test_kernels_are_verified_against_the_formula(
    families: Mapping[str, KernelFamily], warm_cache: Path
) -> None:
    wanted = replace(problem(70, 70, 40, "float64"), threads=1)
    device = make_target("cpu").device(wanted)
    # The same kernel under a formula that it does not compute.
    lie = replace(wanted.defined, result=Formula("maximum(alpha * A @ B + beta * C, 0)"))
    family = families["rows"]
    candidate = Candidate("rows", family.default(wanted, device.limits))
    asked = replace(wanted, defined=lie)
    known = {"rows": replace(family, defined=lie)}
    programs = ProgramCache(CacheLocations.at(warm_cache).programs)
    with CpuEvaluator(Work(asked, known, device, programs, QUICK)) as evaluator:
        assert evaluator.evaluate(candidate, None).outcome is Outcome.WRONG_RESULT


@pytest.mark.thorough
def test_it_is_tuned_stored_and_loaded(warm_cache: Path, tmp_path: Path) -> None:
    wanted = replace(problem(96, 96, 64), threads=1)
    result = tune(
        wanted, extra_families=[FOLDER], trials=2, effort=QUICK, cache=warm_cache, target="cpu"
    )
    assert result.best.operation == "trmm"
    kernel = load(wanted, "cpu", cache=warm_cache, extra_families=[FOLDER])
    rng = np.random.default_rng(0)
    a, b = rng.random((96, 96), np.float32), rng.random((96, 64), np.float32)
    a[np.triu_indices(96, 1)] = np.nan  # what is above the diagonal is nobody's business
    np.testing.assert_allclose(kernel(a, b), np.tril(a) @ b, rtol=1e-4)
    other = replace(problem(50, 50, 20), threads=1)
    nearest = load(other, "cpu", cache=warm_cache, extra_families=[FOLDER], match="nearest")
    np.testing.assert_allclose(
        nearest(a[:50, :50], b[:50, :20]), np.tril(a[:50, :50]) @ b[:50, :20], rtol=1e-4
    )
    untuned = load(other, "cpu", cache=tmp_path / "none", extra_families=[FOLDER], match="nearest")
    assert untuned.candidate.family == "rows"


def test_the_command_line_tunes_it(warm_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "64x64x32", "--threads", "1"]
    small = ["--trials", "1", "--cache", str(warm_cache), "--target", "cpu"]
    assert main(["tune", "trmm", *shape, *small, "--json"]) == 2
    assert "must be one of bmm, gemm, grouped, " in capsys.readouterr().err
    folder = ["--families", str(FOLDER)]
    assert main(["tune", "trmm", *shape, *small, *folder, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["problem"]["formula"] == "alpha * tril(A) @ B + beta * C"
    assert result["best"]["family"] == "rows"
    with pytest.raises(NotTunedError, match="autotune tune trmm --shape 50x50x20"):
        load(problem(50, 50, 20), "cpu", cache=warm_cache, extra_families=[FOLDER])
