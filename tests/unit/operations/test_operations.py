"""Operations with operands of their own: what a file says of one, and all that follows from it."""

from __future__ import annotations

import json
import math
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import find_operation, load, tune
from autotune.cli import main
from autotune.core.errors import FamilyError, InputError, OperandError, ProblemError
from autotune.cpu.call import HostKernel, NumpyKernel
from autotune.measuring.effort import Effort
from autotune.measuring.harness import affordable
from autotune.operations.cases import Case, cases_of
from autotune.operations.formula import Formula
from autotune.operations.guarded import GuardedArray
from autotune.operations.operation import Operation
from autotune.operations.parts import Kind, Operand, plain_strides
from autotune.operations.problem import GEMM, Gemm
from autotune.operations.python_reference import PythonReference
from autotune.operations.verification import Check
from autotune.serving.invocation import Invocation
from autotune.store.matching import problem_sizes
from autotune.targets.families import load_families

FOLDER = Path(__file__).parents[3] / "examples" / "operations"
SHAPES = {
    "gemv": (70, 90),
    "batched_gemm": (3, 20, 30, 17),
    "gemm_bias_relu": (33, 20, 40),
    "stencil": (40, 50),
    "row_sum": (70, 90),
}
QUICK = Effort(budget_s=0.02, finals_s=0.1)


def operation(name: str) -> Operation:
    return find_operation(name, [FOLDER])


def problem(name: str, **fields: Any) -> Any:
    return operation(name).at(SHAPES[name], threads=1, **fields)


def operands(asked: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=each.shape).astype(each.dtype) for each in asked.operands]


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("gemv", "m n alpha beta a lda x y"),
        (
            "batched_gemm",
            "p m n k alpha beta a a_stride lda b b_stride ldb c c_stride ldc",
        ),
        ("gemm_bias_relu", "m n k a lda b ldb bias c ldc"),
        ("row_sum", "m n a lda y"),
    ],
)
def test_an_entry_follows_from_the_operands(name: str, entry: str) -> None:
    assert [each.name for each in operation(name).arguments] == entry.split()
    names = "m n k alpha a lda b ldb beta c ldc"
    assert [each.name for each in GEMM.arguments] == names.split()


@pytest.mark.parametrize("name", SHAPES)
def test_a_problem_is_data(name: str) -> None:
    asked = problem(name, dtype="float64")
    key = asked.key()
    assert json.loads(json.dumps(key)) == key
    assert key["operation"] == name
    assert asked.defined.problem_from_key(key) == asked
    assert pickle.loads(pickle.dumps(asked)) == asked
    assert len({asked, replace(asked, threads=2)}) == 2
    assert tuple(problem_sizes(asked).values()) == SHAPES[name]
    assert asked.traffic == 8 * sum(math.prod(each.shape) for each in asked.operands)
    assert asked.with_sizes(*(2 * size for size in asked.shape)).flops > asked.flops
    other = replace(asked.defined, result=Formula(f"2 * ({asked.defined.result.text})"))
    with pytest.raises(ProblemError, match="computes"):
        other.problem_from_key(key)


def test_a_problem_names_its_sizes() -> None:
    gemv = operation("gemv")
    assert gemv.problem(M=4, N=5, dtype="double").sizes["N"] == 5
    for fields, message in (
        ({"M": 4}, "N is missing"),
        ({"M": 4, "N": 0}, "N must be a whole number >= 1"),
        ({"M": 4, "N": 2**63}, r"N must be a whole number < 2\^63, got 9223372036854775808"),
        ({"M": 4, "N": 5, "layout": "nt"}, "takes M, N, dtype"),
    ):
        with pytest.raises(ProblemError, match=message):
            gemv.problem(**fields)
    assert GEMM.problem(M=1, N=2, K=3, layout="tn") == Gemm(1, 2, 3, layout="tn")


@pytest.mark.parametrize("name", SHAPES)
def test_cases_are_ragged_and_use_every_scalar(name: str) -> None:
    asked = problem(name)
    for cases in (cases_of(asked), cases_of(replace(asked, defined=without_cases(asked)))):
        assert len(cases) >= 6
        assert any(case.padding for case in cases)
        assert any(max(case.sizes) > 4000 for case in cases) or name == "batched_gemm"
        for scalar, default in asked.defined.scalars:
            values = {dict(case.scalars).get(scalar, default) for case in cases}
            assert len(values) > 2
    small = affordable(asked, 2**20, padded=False)
    assert all(not case.padding for case in small)
    assert small


def without_cases(asked: Any) -> Operation:
    return replace(asked.defined, cases=())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NaN and infinity
@pytest.mark.parametrize("name", SHAPES)
def test_numpy_passes_and_its_faults_do_not(name: str) -> None:
    rng = np.random.default_rng(1)
    for case in affordable(problem(name), 2**20):
        check = Check(case, problem(name), rng, others=("normal",))
        right = NumpyKernel(check.problem)
        assert check.run(right, "ieee").right
        check.turn()
        assert check.run(right, "ieee").right

        def off_by_one(*given: Any, check: Check = check, right: NumpyKernel = right) -> None:
            right(*given)
            number = np.flatnonzero(np.isfinite(check.output))[-1]
            check.output.flat[number] = 2 * check.output.flat[number] + 1

        assert "error is" in check.run(off_by_one, "ieee").reason
        scalars = case.scalars_of(check.problem.defined)
        told = "error is" if check.problem.defined.reads_output(scalars) else "unwritten"
        assert told in check.run(lambda *given: None, "ieee").reason

        def meddling(*given: Any, check: Check = check, right: NumpyKernel = right) -> None:
            right(*given)
            check.operands[0].flat[0] = 7

        assert "modified" in check.run(meddling, "ieee").reason


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    padding=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
)
def test_guards_lie_around_arrays_of_any_shape(shape: list[int], padding: int, dtype: str) -> None:
    made = GuardedArray(tuple(shape), dtype, padding)
    made.array[...] = 1
    assert made.damage() is None
    assert made.unwritten() == 0
    assert made.array.shape == tuple(shape)
    strides = [step // made.array.itemsize for step in made.array.strides]
    assert plain_strides(shape, strides) is not None
    written = int((made.words != made.words[0]).sum())
    assert written == math.prod(shape)
    if padding and len(shape) > 1 and shape[-2] > 1:
        np.lib.stride_tricks.as_strided(
            made.array, (made.array.size + 1,), (made.array.itemsize,)
        )[shape[-1]] = 3
        assert made.damage() == "past the end of a row"


def test_integers_of_an_operand_are_bounded_and_ascend() -> None:
    source = "def taken(A, ends): return A[ends.astype(int) - 1]"
    rows = Operation(
        "rows",
        ("M", "N", "E"),
        (
            Operand("A", ("M", "N")),
            Operand("ends", ("E",), dtype="int32", most="M", ascending=True),
            Operand("C", ("E", "N"), written=True),
        ),
        PythonReference("taken", source),
        "E * N",
    )
    assert [each.dtype for each in rows.arguments if each.kind is Kind.ADDRESS] == [
        "",
        "int32",
        "",
    ]
    asked, rng = rows.problem(M=50, N=3, E=40), np.random.default_rng(0)
    assert [each.dtype for each in asked.operands] == ["float32", "int32", "float32"]
    for distribution in ("uniform", "normal"):
        case = Case(50, 3, 40, padding=3, distribution=distribution)
        check = Check(case, asked, rng)
        _, ends, _ = check.operands
        assert ends.dtype == np.int32
        assert (np.diff(ends) >= 0).all()
        assert ends[0] >= 0
        assert ends[-1] <= 50
        assert (ends[-1] == 50) or distribution == "normal"
        taken = check.run(lambda a, ends, c: np.copyto(c, a[ends - 1]), "ieee")
        assert taken.right, taken.reason


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dtype": "int3"}, "operands.x.dtype must be one of"),
        ({"most": "M"}, "operands.x.most must be left out"),
        ({"dtype": "float32", "most": "M"}, "operands.x.most must be left out"),
        ({"dtype": "int32", "most": "Q"}, "operands.x.most = 'Q': a name must be"),
        ({"dtype": "int32", "ascending": True}, "operands.x.ascending must be left out"),
    ],
)
def test_elements_that_there_cannot_be_are_refused(said: dict[str, Any], message: str) -> None:
    operands = Operand("x", ("M",), **said), Operand("y", ("M",), written=True)
    with pytest.raises(InputError, match=re.escape(message)):
        Operation("copied", ("M",), operands, Formula("x"), "M")


def test_strides_that_kernels_take() -> None:
    assert plain_strides((3, 4), (4, 1)) == (4, 1)
    assert plain_strides((3, 4), (9, 1)) == (9, 1)
    assert plain_strides((1, 4), (0, 1)) == (4, 1)
    assert plain_strides((2, 3, 4), (99, 5, 1)) == (99, 5, 1)
    assert plain_strides((2, 3, 4), (5, 20, 1)) == (5, 20, 1)  # side by side
    assert plain_strides((2, 3, 4), (3, 20, 1)) is None
    assert plain_strides((5, 3, 4), (5, 20, 1)) is None
    assert plain_strides((2, 3, 4), (0, 4, 1)) is None
    assert plain_strides((2, 3, 4), (0, 4, 1), shared=True) == (0, 4, 1)
    assert plain_strides((3, 4), (0, 1), shared=True) is None
    assert plain_strides((4, 3), (1, 4)) is None
    assert plain_strides((4,), (2,)) is None


def matrix(name: str, *shape: str, written: bool = False) -> Operand:
    return Operand(name, shape, written)


FAULTS = {
    "sizes": ({"sizes": ("M", "n", "N")}, "sizes must not repeat 'N'"),
    "no out": ({"operands": (matrix("A", "M", "N"),)}, 'of role "out"'),
    "shape": ({"operands": (matrix("A", "M", "Q"),)}, "operands.A.shape = 'Q'"),
    "dimensions": (
        {"operands": (matrix("A", *"MNMNMN"), matrix("y", "M", written=True))},
        "1 to 5 dimensions",
    ),
    "size of nothing": ({"sizes": ("M", "N", "L")}, "sizes must be dimensions of operands"),
    "result": ({"result": Formula("A @ z")}, "result must mention operands and scalars"),
    "shapes": (
        {"result": Formula("A @ A")},
        "result must fit its operands, and 'A @ A' does not fit: A is M x N",
    ),
    "shapes of a negated operand": (
        {"result": Formula("relu(-(A @ A))")},
        "'A @ A' does not fit: A is M x N",
    ),
    "shapes of a function": (
        {"result": Formula("A @ x + maximum(-A, -x @ A)")},
        "'-x @ A' does not fit: -x is N, A is M x N",
    ),
    "other shape": ({"result": Formula("A")}, "result must have the shape M of y"),
    "flops": ({"flops": "2 * Q"}, "flops = '2 [*] Q'"),
    "scalar": ({"scalars": (("lda", 1.0),)}, "leave names of arguments apart"),
    "entry": ({"entry": ("M", "N", "A", "x")}, "entry must name every size"),
    "cases": ({"cases": ((1, 2, 3),)}, "cases must be shapes MxN"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_that_do_not_fit_together_are_refused(fault: str) -> None:
    fields, message = FAULTS[fault]
    with pytest.raises(InputError, match=message):
        replace(operation("gemv"), **fields)


def test_names_that_a_key_has_already_are_refused() -> None:
    """Of a problem whose size was called like a field, no record could be read back."""
    gemv = operation("gemv")
    for field in gemv.at((3, 4)).key().keys() - {"m", "n"}:
        shapes = (
            replace(each, shape=tuple(size.replace("M", field.upper()) for size in each.shape))
            for each in gemv.operands
        )
        with pytest.raises(InputError, match="sizes must not be called"):
            replace(gemv, sizes=(field.upper(), "N"), operands=tuple(shapes), entry=())


@pytest.mark.parametrize("name", ["padding", "distribution", "sizes", "scalars", "shape"])
def test_a_scalar_may_be_called_as_a_case_calls_its_own(name: str) -> None:
    row_sum = operation("row_sum")
    scaled = replace(
        row_sum, result=Formula(f"{name} * sum(A, 1)"), scalars=((name, 1.0),), entry=()
    )
    asked = scaled.at((70, 90))
    for cases in (cases_of(asked), [case.without_padding() for case in cases_of(asked)]):
        assert len({case.scalars_of(scaled)[name] for case in cases}) > 2
    assert scaled.problem_from_key(asked.key()) == asked


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    spaces = FOLDER / "search_spaces" / "gemv"
    text = (spaces / "operation.toml").read_text()
    (family,) = (spaces / "cpu").glob("*.toml")
    (tmp_path / family.name).write_text(family.read_text())
    for before, after, message in (
        ('"out"', '"both"', "operands.y.role must be one of in, out"),
        ("alpha * A @ x", "alpha * A @ z", "result must mention"),
        ("alpha = 1.0", 'alpha = "1"', "scalars.alpha must be a number"),
        ('flops = "2 * M * N"', 'flops = "2 * M * Q"', "flops = "),
        ('"1x7"', '"1x7x3"', "a shape is MxN"),
        ('operation = "gemv"', 'operation = "other"', "operation must be other"),
    ):
        assert before in text
        (tmp_path / "operation.toml").write_text(text.replace(before, after))
        with pytest.raises(FamilyError, match=message):
            find_operation("gemv", [tmp_path])


def test_a_call_names_what_does_not_fit() -> None:
    asked = problem("gemv")
    kernel = HostKernel(asked, NumpyKernel(asked))
    a, x, y = operands(asked)
    expected = a @ x
    np.testing.assert_allclose(kernel(a, x), expected, rtol=1e-4)
    np.testing.assert_allclose(kernel(a, x, alpha=2.0), 2 * expected, rtol=1e-4)
    before = y.copy()
    assert kernel(a, x, out=y, beta=-1.0) is y
    np.testing.assert_allclose(y, expected - before, rtol=1e-4, atol=1e-4)
    for inputs, options, message in (
        ((a,), {}, "gemv takes 2 inputs, A, x, got 1"),
        ((a, x), {"gamma": 1.0}, "takes the scalars alpha, beta, got gamma"),
        ((a, x), {"beta": 1.0}, "beta = 1.0 scales what out holds"),
        ((a, x[:-1]), {}, r"x must have shape \(90,\)"),
        ((a, x), {"out": a[0, :70]}, "out overlaps a"),
        ((a, x), {"alpha": "one"}, "alpha must be a real number"),
    ):
        with pytest.raises(OperandError, match=message):
            kernel(*inputs, **options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_tuned_stored_verified_and_loaded(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = problem(name)
    options = {"cache": tmp_path, "target": "cpu", "extra_families": [FOLDER]}
    result = tune(asked, trials=2, effort=QUICK, **options)
    assert result.best.operation == name
    kernel = load(asked, **options)
    given = operands(asked)
    out, inputs = given[-1], given[:-1]
    expected = np.empty_like(out)
    NumpyKernel(asked)(*inputs, expected, *dict(asked.defined.scalars).values())
    np.testing.assert_allclose(kernel(*inputs), expected, rtol=1e-4, atol=1e-4)
    assert kernel(*inputs, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    again = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_allclose(again(*inputs), expected, rtol=1e-4, atol=1e-4)
    smaller = asked.with_sizes(*(max(1, size // 2) for size in asked.shape))
    nearest = load(smaller, match="nearest", **options)
    assert nearest.record is not None
    folder = ["--families", str(FOLDER)]
    assert main(["cache", "verify", *folder, "--cache", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["records"]
    assert row["status"] == "ok"
    assert main(["cache", "list", "--cache", str(tmp_path)]) == 0
    assert f"{name} {'x'.join(map(str, asked.shape))}-float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        # All families of products, which tests of epilogues and of spaces are about.
        pytest.param(each, marks=pytest.mark.thorough if each == "gemm_bias_relu" else [])
        for each in SHAPES
    ],
)
def test_it_is_counted_and_emitted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "x".join(map(str, SHAPES[name])), "--families", str(FOLDER)]
    for target in ("cpu", "cuda"):
        where = ["--operation", name, "--target", target]
        where += ["--device", "h200"] if target == "cuda" else []
        assert main(["space", *where, *shape, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert all(each["operation"] == name for each in document)
        assert all(each["valid"] > 0 or "not float32" in each["unsupported"] for each in document)
        family, *_ = load_families(target=target, operation=name, extra=[FOLDER])
        assert main(["emit", family, *where, *shape, "--json", "-q"]) == 0
        emitted = json.loads(capsys.readouterr().out)
        assert emitted["operation"] == name
        assert emitted["problem"]["operation"] == name
        assert emitted["source"].count(name)


def test_the_command_that_tunes_it_and_the_lines_that_load_it() -> None:
    from autotune.core.device import DeviceFingerprint
    from autotune.targets.registry import make_target

    asked = problem("gemv")
    here = DeviceFingerprint("cpu", "any", {})
    invocation = Invocation.of(asked, make_target("cpu"), here, extra_families=[str(FOLDER)])
    assert invocation.command().startswith("autotune tune gemv --shape 70x90 --target cpu")
    scope: dict[str, Any] = {"load": lambda found, **options: found}
    lines = [line for line in invocation.load_lines(1000) if not line.startswith("from")]
    exec("from autotune import find_operation\n" + "\n".join(lines), scope)
    assert scope["kernel"] == asked


def test_other_commands_say_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    gemv = ["gemv", "--families", str(FOLDER)]
    for words, message in (
        ([], "needs --shape MxN"),
        (["--shape", "4x4x4"], "a shape is MxN with two whole numbers"),
        (["--shape", "4x4", "--layout", "nt", "--target", "cpu"], "--layout is for matrix"),
        (["--shape", "4x4", "--target", "mpi"], "none for target mpi"),
    ):
        assert main(["tune", *gemv, *words]) == 2
        assert message in capsys.readouterr().err


def test_a_case_is_said_in_one_line() -> None:
    assert str(Case(3, 4, scalars={"beta": -0.5}, padding=2)) == "3x4 beta=-0.5"
    assert Case(3, 4, scalars={"alpha": 2.0}).scalars_of(operation("gemv")) == {
        "alpha": 2.0,
        "beta": 0.0,
    }


def test_operations_that_come_along_have_layouts() -> None:
    for name in ("bmm", "grouped", "grouped_masked"):
        defined = find_operation(name)
        shape = (2, 33, 24, 40)
        for layout in ("nn", "nt", "tn", "tt"):
            asked = defined.at(shape, dtype="float16", layout=layout)
            assert asked.product_sizes == (33, 24, 40)
            assert defined.problem_from_key(asked.key()) == asked
            assert json.loads(json.dumps(asked.key())) == asked.key()
            check = Check(Case(*shape, padding=3), asked, np.random.default_rng(0))
            values = asked.named({name: each.array for name, each in check.guarded.items()})
            if name != "bmm":
                check.prepare()
                values["C"] = check.output.copy()
                exact = {key: values[key] for key in defined.result.names}
                check.output[...] = defined.result.evaluate(
                    {key: np.asarray(each, np.float32) for key, each in exact.items()}
                )
            else:
                check.prepare()
                np.copyto(check.output, values["A"].astype(np.float32) @ values["B"])
            verdict = check.judge("native")
            assert verdict.right, verdict.reason
    with pytest.raises(ProblemError, match="layout must be one of nn, nt, tn, tt"):
        find_operation("bmm").problem(P=1, M=1, N=1, K=1, layout="n")
    with pytest.raises(InputError, match="layouts must be false"):
        replace(operation("gemv"), layouts=True)
