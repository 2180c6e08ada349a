"""Operations that are gemm with an epilogue: how formulas are split, and who computes them."""

from __future__ import annotations

import builtins
import functools
import json
import keyword
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from epilogue_families import GATED, LINEAR_RELU, write_families, write_operations
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from operation_examples import entry_values

from autotune import find_operation, load
from autotune.cli import main
from autotune.core.errors import FamilyError, InputError
from autotune.core.toml_table import Table
from autotune.families.epilogue_text import NUMBA_LACKS, cuda_epilogue, numba_epilogue
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import kernel_layout
from autotune.families.modules import load_module
from autotune.families.operation_file import read_operation
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.operations.cases import cases_of, special_cases
from autotune.operations.epilogue import GATES, Epilogue, epilogue_of
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.problem import FACTORS, GEMM, Gemm
from autotune.operations.verification import Check
from autotune.targets.families import catalog, find_families
from autotune.targets.registry import make_target

A, B, C = FACTORS
FURTHER = (Operand("bias", ("K",)), Operand("down", ("M", "1")), Operand("residual", ("M", "K")))
PRODUCTS = (
    "A @ B",
    "alpha * A @ B",
    "alpha * (A @ B)",
    "A @ B * alpha",
    "alpha * A @ B + beta * C",
    "C * beta + A @ (B * alpha)",
    "(A @ B + beta * C)",
    "A @ B - -beta * C",
)


def operation(text: str, **changed: Any) -> Operation:
    """The operation with this formula, and those operands and scalars that it mentions."""
    names = Formula(text).names
    fields: dict[str, Any] = {
        "name": "wrapped",
        "sizes": GEMM.sizes,
        "operands": (A, B, *(each for each in FURTHER if each.name in names), C),
        "result": Formula(text),
        "flops": "2 * M * N * K",
        "scalars": tuple((n, 1.0) for n in ("alpha", "beta", "scale", "slope") if n in names),
        "product": "gemm",
    }
    return Operation(**{**fields, **changed})


def split(text: str, **changed: Any) -> Epilogue:
    found = epilogue_of(operation(text, **changed))
    assert found is not None
    return found


def wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["bias", "down", "residual", "scale", "slope", "0.5", "2", "-1.25"])
    others = leaves | st.builds("tanh({} - {})".format, leaves, leaves)
    return st.one_of(
        st.builds("{}({})".format, st.sampled_from(["relu", "tanh", *GATES]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["maximum", "minimum"]), inner, others),
        st.builds("{}({}, {})".format, st.sampled_from(["maximum", "minimum"]), others, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), others),
        st.builds("({} {} {})".format, others, st.sampled_from("+-*"), inner),
        st.builds("{} + {} - {}".format, others, inner, others).map(lambda text: f"({text})"),
        st.builds("(-{})".format, inner),
    )


formulas = st.recursive(st.sampled_from(PRODUCTS).map("({})".format), wrapped, max_leaves=4)


@given(formulas)
def test_a_split_formula_means_what_the_whole_one_means(text: str) -> None:
    found = split(text)
    rng = np.random.default_rng(3)
    shapes = {"A": (5, 4), "B": (4, 3), "C": (5, 3)}
    shapes |= {"bias": (3,), "down": (5, 1), "residual": (5, 3)}
    values: dict[str, Any] = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    values |= {"alpha": 0.75, "beta": -1.5, "scale": 0.5, "slope": 2.0}
    expected = Formula(text).evaluate(values)
    gemm = {**values, **dict(found.absent)}
    value = gemm["alpha"] * values["A"] @ values["B"] + gemm["beta"] * values["C"]
    assert found.formula.names.isdisjoint({"A", "B", "C", "alpha", "beta"})
    got = found.formula.evaluate({**values, "value": value})
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@given(formulas)
def test_numba_s_text_computes_the_same_for_each_element(text: str) -> None:
    assume(NUMBA_LACKS.isdisjoint(Formula(text).functions))
    found = split(text)
    written = numba_epilogue(found)
    if written is None:
        assert found.formula.text == "value"
        return
    rng = np.random.default_rng(5)
    rows, columns = 4, 3
    arrays = {"bias": rng.normal(size=columns), "down": rng.normal(size=rows)}
    residual, value = rng.normal(size=(2, rows, columns))
    scope = {"exp": np.exp, "tanh": np.tanh, "maximum": np.maximum, "minimum": np.minimum}
    scalars = {"REAL": np.float64, "_scale": 0.5, "_slope": 2.0}
    read = {f"_{name}": array for name, array in arrays.items()}
    for row in range(rows):
        for column in range(columns):
            names = {"row": row, "column": column, "value": value[row, column]}
            with np.errstate(over="ignore"):
                got = eval(
                    written.expression,
                    {**scope, **scalars, **read, **names, "_residual": residual[row]},
                )
            expected = found.formula.evaluate(
                {
                    "value": value[row, column],
                    "bias": arrays["bias"][column],
                    "down": arrays["down"][row],
                    "residual": residual[row, column],
                    "scale": 0.5,
                    "slope": 2.0,
                }
            )
            assert got == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relu(bias + residual)", "must have one product A @ B, and has 0"),
        ("A @ B + relu(A @ B)", "must have one product A @ B, and has 2"),
        ("tril(A @ B)", "must be elementwise around the product, of .*, got tril"),
        ("A @ relu(B)", r"must multiply A @ B, and B is 'relu\(B\)' there"),
        ("A @ B + C", "must use C in .* alone, once"),
        ("relu(A @ B) + beta * C", "must use beta in .* alone, once"),
        ("alpha * A @ B * alpha", "must use alpha in .* alone, once"),
        ("scale * A @ B + beta * C", r"must add beta \* C to .* itself"),
        ("A @ B - beta * C", r"must add beta \* C to .* itself"),
        ("beta * A @ B", "must use beta in .* alone, once"),
    ],
)
def test_other_formulas_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^result {message}") as caught:
        split(text)
    assert "\n" not in str(caught.value)


def test_other_parts_are_refused_in_one_line() -> None:
    for changed, message in (
        ({"product": "gemv"}, "^product must be one of gemm, got 'gemv'"),
        ({"operands": (A, B, Operand("bias", ("1", "K")), C)}, r"^operands.bias.shape must be"),
        ({"operands": (A, B, *FURTHER[:2], C)}, "^operands must be part of result, and down"),
        ({"baselines": (("cuda", "cublas.gemm"),)}, "^baseline must be left out"),
        ({"scalars": (("scale", 1.0),)}, "^scalars must be part of result, and scale"),
        (
            {"operands": (A, B, FURTHER[0], Operand("D", ("M", "K"), True))},
            r'^operands must have C = \{ shape = \["M", "K"\], role = "out" \}, as gemm has',
        ),
    ):
        with pytest.raises(InputError, match=message):
            split("A @ B + bias", **changed)
    value = Operand("value", ("K",))
    with pytest.raises(InputError, match=r"^operands must not be called 'value'"):
        split("A @ B + value", operands=(A, B, value, C))


def test_what_templates_are_given_in_either_language() -> None:
    found = split(
        "scale * maximum(A @ B + bias, -1) - relu(down) * residual + exp(2.5e-8 - -bias)"
    )
    assert found.absent == (("alpha", 1), ("beta", 0))
    cuda, numba = cuda_epilogue(found, "T"), numba_epilogue(found)
    assert cuda is not None
    assert numba is not None
    row = "static_cast<long long>(row)"
    assert cuda.expression == (
        "scale_ * maximum(value + bias_[column], -T(1)) - "
        f"maximum(down_[{row} * lddown_], T(0)) * residual_[{row} * ldresidual_ + column] + "
        "exp(T(2.5e-08) - -bias_[column])"
    )
    assert numba.expression.startswith("_scale * maximum(value + _bias[column], -REAL(1))")
    assert "maximum(_down[row], REAL(0)) * _residual[column]" in numba.expression
    assert numba.functions == cuda.functions == ("exp", "maximum")
    assert cuda.scalars == ("scale_",)
    assert [(each.name, each.stride, each.along) for each in cuda.operands] == [
        ("bias_", None, "column"),
        ("down_", "lddown_", "row"),
        ("residual_", "ldresidual_", "matrix"),
    ]
    short = cuda_epilogue(split("A @ B + -(-bias)"), "Operand")
    assert short is not None
    assert short.expression == "value + T(bias_[column])"
    assert short.operands[0].c_type == "Operand"


def test_gemm_has_none_and_its_text_does_not_speak_of_it(tmp_path: Path) -> None:
    assert epilogue_of(GEMM) is None
    family = catalog("cpu", extra=[write_families(tmp_path)])["plain"]
    text = render(family, {"threads": 1}).text
    assert "def gemm(m, n, k, alpha, a_address" in text
    assert "c[column] = value\n" in text


def test_the_catalog_offers_families_that_say_so(tmp_path: Path) -> None:
    operations = write_operations(tmp_path / "operations")
    able = write_families(tmp_path / "able")
    unable = write_families(tmp_path / "unable", "other", epilogue=False)
    extra = [operations, able, unable]
    for target in ("cpu", "cuda"):
        offered = catalog(target, "linear_relu", extra)
        shipped = {name for name, each in catalog(target).items() if each.epilogue}
        assert {*offered} == shipped | {"plain"}
        family = offered["plain"]
        assert family.adopted
        assert family.defined == find_operation("linear_relu", extra)
        assert family.digest != catalog(target, extra=extra)["plain"].digest
    kept = tmp_path / "kept"
    before = catalog("cpu", "linear_relu", extra, kept).digests["plain"]
    assert catalog("cpu", "linear_relu", extra, kept).digests["plain"] == before
    file = operations / "linear_relu" / "operation.toml"
    file.write_text(LINEAR_RELU.replace("relu(", "tanh("))
    assert catalog("cpu", "linear_relu", extra, kept).digests["plain"] != before
    assert {(each.name, each.operation) for each in find_families(extra)} >= {
        ("plain", "gemm"),
        ("plain", "gated"),
        ("plain", "linear_relu"),
        ("other", "gemm"),
    }
    assert "gated" not in catalog("cpu", extra=extra)
    assert catalog("cpu", "no_such", extra) == {}


def test_an_operation_may_lie_in_any_of_the_usual_places(tmp_path: Path) -> None:
    flat, tree = tmp_path / "flat", tmp_path / "tree"
    for folder in (flat, tree / "search_spaces" / "linear_relu"):
        folder.mkdir(parents=True)
        (folder / "operation.toml").write_text(LINEAR_RELU)
    for folder in (flat, tree):
        assert find_operation("linear_relu", [folder]).product == "gemm"
        find_families([folder])
    (tree / "search_spaces" / "linear_relu" / "operation.toml").write_text(
        LINEAR_RELU.replace("relu(", "tanh(")
    )
    with pytest.raises(InputError, match="families that disagree"):
        find_operation("linear_relu", [flat, tree])


def test_faults_are_said_of_the_file(tmp_path: Path) -> None:
    families = write_families(tmp_path / "families")
    file = tmp_path / "operations" / "operation.toml"
    file.parent.mkdir()
    for old, new, message in (
        ('product = "gemm"', 'product = "conv"', "product must be one of gemm, got 'conv'"),
        ("relu(alpha", "tril(alpha", "result must be elementwise"),
        ("bias", "double", "operands must not be called 'double', a keyword of C or C\\+\\+"),
        ("linear_relu", "elements", "operation must have another name"),
    ):
        file.write_text(LINEAR_RELU.replace(old, new))
        with pytest.raises(FamilyError, match=message) as caught:
            find_families([file.parent, families])
        assert str(caught.value).startswith(f"{file}: ")
    text = (families / "plain_cpu.toml").read_text()
    (families / "plain_cpu.toml").write_text(text.replace('"cpu"', '"mpi"'))
    with pytest.raises(FamilyError, match="epilogue must be false, but for families of gemm on"):
        find_families([families])


def emitted(family: KernelFamily, defined: Operation | str) -> str:
    """What a family emits for its default and an operation, or the one that has a formula."""
    here = replace(family, defined=operation(defined) if isinstance(defined, str) else defined)
    device = "h200" if family.target == "cuda" else None
    problem = Gemm(512, 512, 512, dtype=family.dtypes[0], accuracy=family.accuracy)
    limits = make_target(family.target).device(problem, device).limits
    layout = kernel_layout(family, problem.layout)
    configuration = here.default(problem, limits)
    return render(here, configuration, dtype=problem.dtype, layout=layout).text


def words(text: str) -> list[str]:
    """The tokens of a source; where its lines are broken does not matter."""
    return re.findall(r'\w+|[^\w\s"]', text)


READING = "relu(scale * (A @ B) + down) - residual * bias"


@functools.cache
def offering() -> dict[tuple[str, str], KernelFamily]:
    """All shipped families that apply epilogues, by target and name."""
    return {
        (target, family.name): family
        for target in ("cpu", "cuda")
        for family in catalog(target).values()
        if family.epilogue
    }


@functools.cache
def identifiers() -> list[str]:
    """What occurs in their sources, and words of their languages."""
    found = {word for family in offering().values() for word in words(emitted(family, READING))}
    found |= {*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "int", "double", "threadIdx"}
    return sorted(each for each in found if re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,31}", each))


def reading(old: str, name: str) -> Operation:
    """The operation that has `name` where another has `old`, an operand or a scalar."""

    def called(each: str) -> str:
        return name if each == old else each

    return operation(
        re.sub(rf"\b{old}\b", name, READING),
        operands=(A, B, *(Operand(called(each.name), each.shape) for each in FURTHER), C),
        scalars=((called("scale"), 1.0),),
    )


@settings(max_examples=50)
@given(
    st.deferred(lambda: st.sampled_from(sorted(offering()))),
    st.deferred(lambda: st.sampled_from(identifiers())),
    st.sampled_from(["bias", "scale"]),
)
def test_names_of_what_is_read_meet_none_of_a_template_s(
    key: tuple[str, str], name: str, old: str
) -> None:
    """A name is refused when it is read, or is in the source where nothing else has it."""
    name = name if old == "bias" else name.lower()
    assume((old, name) != ("scale", "alpha"))  # gemm's own factor
    refusal = ""
    try:
        defined = reading(old, name)
        assert epilogue_of(defined) is not None
    except InputError as error:
        refusal = str(error)
    if refusal:
        event("refused")
        assert name.lower() in refusal.lower()
        assert "\n" not in refusal
        return
    # Of the same length, so that lines are broken alike.
    other = next(one * len(name) for one in "qzjvwxyuotsl" if one * len(name) not in identifiers())
    plain = words(emitted(offering()[key], reading(old, other)))
    own = re.compile(f"_?(ld)?{other}(_|_address|_here|_given)?")
    renamed = {each: each.replace(other, name.lower()) for each in plain if own.fullmatch(each)}
    in_comment = {other: name}
    wanted = [{**renamed, **in_comment}.get(each, each) for each in plain]
    assert words(emitted(offering()[key], defined)) == wanted
    in_code = {made for each, made in renamed.items() if each != other}
    assert in_code
    assert in_code.isdisjoint(plain)


def test_a_module_that_has_a_function_of_that_name_is_refused(tmp_path: Path) -> None:
    families = write_families(tmp_path)
    (tmp_path / "operation.toml").write_text(LINEAR_RELU.replace("linear_relu", "minimum"))
    family = catalog("cpu", "minimum", [families])["plain"]
    with pytest.raises(FamilyError, match="emits a function 'minimum' of its own"):
        render(family, {"threads": 1})


@pytest.mark.parametrize("text", [LINEAR_RELU, GATED], ids=["linear_relu", "gated"])
def test_a_cpu_kernel_is_right_at_every_case(text: str, tmp_path: Path) -> None:
    (tmp_path / "operation.toml").write_text(text)
    defined = read_operation(Table.read(tmp_path / "operation.toml"))
    family = catalog("cpu", defined.name, [write_families(tmp_path)])["plain"]
    source = render(family, {"threads": 1}, dtype="float64")
    path = ProgramCache(tmp_path / "programs").write(source, family.name)
    kernel = getattr(load_module(path), defined.name)
    problem = defined.at((30, 20, 10), dtype="float64")
    cases = cases_of(problem)[:4]
    for case in (*cases, *special_cases(problem, cases)):
        check = Check(case, problem, np.random.default_rng(7), sealed=True)
        values = entry_values(defined, case.sizes, check.operands, case.scalars_of(defined))
        check.prepare()
        kernel(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in values))
        verdict = check.judge("ieee")
        assert verdict.right, (str(case), verdict.reason)


def test_commands_take_it_as_they_take_any_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_operations(tmp_path / "operations"), write_families(tmp_path / "families")]
    where = [word for folder in folders for word in ("--families", str(folder))]
    assert main(["families", "--target", "cpu", *where]) == 0
    listed = capsys.readouterr().out
    assert listed.count("One element of C at a time") == 1
    assert "gated  (gemm with an epilogue, on cpu: scale * tanh(A @ B + shift_of_row)" in listed
    about = ["--operation", "gated", "--shape", "30x20x10", *where, "--json", "-q"]
    assert main(["emit", "plain", "--target", "cuda", "--device", "h200", *about]) == 0
    emitted = json.loads(capsys.readouterr().out)
    assert "void gated(int m, int n, int k, float scale_, const" in emitted["source"]
    cache = ["--cache", str(tmp_path / "cache")]
    words = ["--target", "cpu", "--shape", "30x20x10", "--trials", "1", *cache, *where]
    assert main(["tune", "gated", "--family", "plain", *words]) == 0
    assert main(["cache", "verify", *cache, *where]) == 0
    gated = find_operation("gated", folders)
    kernel = load(
        gated.at((30, 20, 10)), target="cpu", cache=tmp_path / "cache", extra_families=folders
    )
    rng = np.random.default_rng(0)
    shapes = ((30, 20), (20, 10), (30, 1), (30, 10))
    a, b, down, residual = (rng.normal(size=shape).astype("f4") for shape in shapes)
    expected = 0.5 * np.tanh(a @ b + down) - np.minimum(residual, 0.5)
    np.testing.assert_allclose(
        kernel(a, b, down, residual, scale=0.5), expected, rtol=1e-4, atol=1e-5
    )
