"""Kernels of one's own with several outputs, in place, with integers, on operands of theirs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_kernels import BRIEF
from structured_kernels import DESCRIBED, FUNCTIONS, made, operands, sparse

import autotune
from autotune.arrays.host import check_operands
from autotune.cli import main
from autotune.core.errors import InputError, OperandError, OperandTypeError, ProblemError
from autotune.cpu.call import bound_kernel
from autotune.exporting.exportable import ROW
from autotune.families.rendering import render
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.cases import Case, cases_of, special_cases
from autotune.operations.contents import Drawn
from autotune.operations.verification import Check
from autotune.own.tracing import restriction_text
from autotune.space import Expression
from autotune.targets.families import catalog

FEW = ("decayed", "squared")
"""Several outputs, in place, complex numbers."""


def verdict(name: str, kernel: Any, tmp_path: Path, *sizes: int, **changed: Any) -> Any:
    """Of a function of the operands and scalars, as kernels are judged."""
    operation = made(name, "cpu", tmp_path, **changed).operation
    dtype = "complex128" if name == "squared" else "float64"
    case = Case(*sizes, padding=3)
    return Check(case, operation.at(sizes, dtype=dtype), np.random.default_rng(5)).run(
        kernel, "ieee"
    )


def largest(x: Any, K: int) -> Any:
    return np.sort(x)[::-1][:K]


@pytest.fixture
def ranked() -> Any:
    """The K largest elements; K is a dimension of the output alone."""

    @autotune.kernel(
        operands={"x": ("K + R",)},
        out={"y": "K"},
        reference=largest,
        parameters={"start": [0]},
        dtypes=["float64"],
        **BRIEF,
    )
    def top(x: Any, y: Any, start: Any) -> None:
        left = x.copy()
        for i in range(start, y.shape[0]):
            at = left.argmax()
            y[i] = left[at]
            left[at] = -np.inf

    return top


# ---- Tuned, verified, cached and loaded


def test_a_reference_and_a_call_take_sizes_by_name(ranked: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(3).permutation(40) / 7
    ranked.tune(x, K=5)
    made = np.empty(5)
    assert ranked(x, out=made) is made
    assert [*made] == [*ranked(x, K=5)] == [*ranked(x, K=5)] == sorted(x, reverse=True)[:5]
    with pytest.raises(OperandError, match="no input says what K is: pass K= or out=y"):
        ranked(x)
    with pytest.raises(OperandError, match="y has K = 5, and the call has K = 4"):
        ranked(x, K=4, out=made)
    with pytest.raises(ProblemError, match="K must be a whole number >= 1, got 0"):
        ranked(x, K=0)
    record = ranked.load(R=35, K=5).record
    # NumPy has computed it too, and is told unless other work disturbed it.
    assert record.baseline is not None or "the library was disturbed" in record.noise
    folder = tmp_path / "exported"
    assert main(["export", record.id, str(folder), "--format", "python"]) == 0
    (file,) = folder.glob("*.expected")
    rows = np.frombuffer(file.read_bytes(), ROW)
    assert len(rows) == 5
    assert (np.diff(rows["expected"]) <= 0).all()


def test_operands_that_inputs_leaves_hold_nan_and_infinity(tmp_path: Path) -> None:
    problem = made("spmv", "cpu", tmp_path).problem(M=50, N=40, Z=300, dtype="float64")
    (case, *_) = special_cases(problem, cases_of(problem))
    check = Check(case, problem, np.random.default_rng(2))
    indptr, _, values, *_ = check.operands
    assert (np.diff(indptr) >= 0).all()
    assert np.isnan(values).any()

    def right(indptr: Any, indices: Any, values: Any, x: Any, y: Any) -> None:
        with np.errstate(all="ignore"):
            FUNCTIONS["spmv"](indptr, indices, values, x, y, 1)

    def careless(indptr: Any, indices: Any, values: Any, x: Any, y: Any) -> None:
        right(indptr, indices, np.nan_to_num(values), x, y)

    assert check.run(right, "ieee").right
    assert "say finite = true" in check.run(careless, "ieee").reason

    def whole(rng: Any, M: Any, N: Any, Z: Any) -> Any:
        return {**sparse(rng, M, N, Z), "values": rng.random(Z), "x": rng.random(N)}

    for said in ({"finite": True}, {"inputs": whole}):
        problem = made("spmv", "cpu", tmp_path, **said).problem(M=50, N=40, Z=300)
        assert special_cases(problem, cases_of(problem)) == ()


def test_a_call_gives_the_outputs_that_it_was_given(tmp_path: Path) -> None:
    @autotune.kernel(
        operands={"x": "N"},
        out={"twice": "N", "total": "[]"},
        reference=lambda x: (2 * x, x.sum()),
        parameters={"by": [1]},
        cache=tmp_path,
    )
    def summed(x: Any, twice: Any, total: Any, by: int) -> None:
        twice[:] = 2 * x
        total[()] = x.sum()

    def raw(x: Any, twice: Any, total: Any) -> None:
        twice[:], total[0] = 2 * x, x.sum()

    kernel = bound_kernel(summed.problem(N=3, dtype="float64"), raw)
    out = np.empty(3), np.empty(())
    for found, given in zip(kernel(np.ones(3), out=out), out, strict=True):
        assert found is given
    _, total = kernel(np.ones(3))
    assert total.shape == ()
    assert total == out[1] == 3


def test_nan_of_one_operand_does_not_hide_that_of_another(tmp_path: Path) -> None:
    """NaN in x makes all of A @ x NaN: a case has it in A alone, the other in x alone."""

    @autotune.kernel(
        operands={"A": "MxN", "x": "N"},
        out={"y": "M"},
        reference="A @ x",
        parameters={"by": [1]},
        cache=tmp_path,
    )
    def matvec(A: Any, x: Any, y: Any, by: int) -> None:
        y[:] = A @ x

    problem = matvec.problem(M=50, N=60, dtype="float64")
    checks = [
        Check(case, problem, np.random.default_rng(seed))
        for seed in range(3)
        for case in special_cases(problem, cases_of(problem))
    ]

    def right(A: Any, x: Any, y: Any) -> None:
        with np.errstate(all="ignore"):
            y[:] = A @ x

    def one(A: Any, x: Any, y: Any) -> None:
        right(np.where(np.isnan(A), 0, A), x, y)

    def other(A: Any, x: Any, y: Any) -> None:
        right(A, np.where(np.isnan(x), 0, x), y)

    assert all(check.run(right, "ieee").right for check in checks)
    for careless in (one, other):
        assert not all(check.run(careless, "ieee").right for check in checks)


@pytest.mark.parametrize("made", [0.5, 2**40, math.nan])
def test_inputs_of_integers_must_be_integers(tmp_path: Path, made: float) -> None:
    """Cast to integers they would be others: zeros, say, of which most kernels are right."""

    @autotune.kernel(
        operands={"x": "int32[N]"},
        out={"y": "int32[N]"},
        reference=lambda x: 2 * x,
        inputs=lambda N: {"x": np.full(N, made)},
        parameters={"by": [1]},
        cache=tmp_path,
    )
    def doubled(x: Any, y: Any, by: int) -> None:
        y[:] = 2 * x

    with pytest.raises(InputError, match=r"x must be of int32, got .*64 with elements that"):
        Drawn.of(Case(8), doubled.problem(N=8), np.random.default_rng(0))


def test_what_says_a_size_of_several_outputs_is_all_of_them(tmp_path: Path) -> None:
    operation = made("normalised", "cpu", tmp_path, out={"Y": "MxN", "mean": "K", "scale": "K"})
    with pytest.raises(OperandError, match=r"pass K= or out=\(Y, mean, scale\)"):
        operation(np.ones((3, 4)))


def test_what_a_reference_takes_is_there() -> None:
    with pytest.raises(InputError, match="it must be one of state, drive, steps, N, got 'K'"):
        made("decayed", "cpu", Path(), reference=largest)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in FEW else pytest.mark.thorough) for each in DESCRIBED],
)
def test_kernels_of_every_structure_are_tuned_and_called(name: str, tmp_path: Path) -> None:
    kernel = made(name, "cpu", tmp_path)
    inputs, scalars, expected = operands(name)
    before = [each.copy() for each in inputs]
    found = kernel(*inputs, **scalars)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
        assert got.shape == np.shape(want)
    if name == "decayed":
        assert found is inputs[0]
        with pytest.raises(OperandError, match="out of decayed must be left out"):
            kernel(*inputs, out=inputs[0])
        with pytest.raises(OperandTypeError, match=r"steps must be an integer, got 1\.5"):
            kernel(*inputs, steps=1.5)
        with pytest.raises(OperandError, match=r"state overlaps drive in memory"):
            kernel(inputs[0], inputs[0])
    else:
        assert all(map(np.array_equal, inputs, before))
    # Another process would load it: this one forgets.
    again = made(name, "cpu", tmp_path, tune=False)
    again(*before, **scalars)


def test_outputs_are_given_or_made(tmp_path: Path) -> None:
    kernel = made("normalised", "cpu", tmp_path)
    (X,), _, expected = operands("normalised")
    outs = tuple(np.empty_like(each) for each in expected)
    found = kernel(X, out=outs)
    assert all(map(np.shares_memory, found, outs))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    with pytest.raises(OperandError, match=r"must be the outputs Y, mean, scale, got ndarray"):
        kernel(X, out=outs[0])
    for wrong in (outs[:1], (*outs, outs[0])):
        with pytest.raises(OperandError, match=rf"Y, mean, scale, got tuple of {len(wrong)}$"):
            kernel(X, out=wrong)
    with pytest.raises(OperandError, match=r"mean overlaps scale in memory"):
        kernel(X, out=(outs[0], outs[1], outs[1]))
    with pytest.raises(OperandError, match=r"mean must have dtype float64"):
        kernel(X, out=(outs[0], outs[1].astype(np.float32), outs[2]))


# ---- Verdicts


def test_every_output_is_judged_and_named(tmp_path: Path) -> None:
    reference = DESCRIBED["normalised"]["reference"]

    def wrong(X, Y, mean, scale, eps):
        Y[...], mean[...], scale[...] = reference(X, eps)
        scale[2] += 1e-3

    def left(X, Y, mean, scale, eps):
        Y[...], mean[...], _ = reference(X, eps)

    told = verdict("normalised", wrong, tmp_path, 5, 40)
    assert "at 5x40 (M=5, N=40): scale[2] is " in told.reason
    told = verdict("normalised", left, tmp_path, 5, 40)
    assert "left 5 of 5 elements of scale unwritten" in told.reason


def test_integers_are_exact_unless_a_tolerance_is_given(tmp_path: Path) -> None:
    def off(by):
        def kernel(X, Q, scale):
            values, scale[...] = DESCRIBED["quantised"]["reference"](X)
            Q[...] = values
            Q[0, 0] += by

        return kernel

    assert verdict("quantised", off(1), tmp_path, 5, 40).right
    told = verdict("quantised", off(2), tmp_path, 5, 40)
    assert "what tolerance of Q allows" in told.reason
    assert not verdict("quantised", off(1), tmp_path, 5, 40, tolerance=0.0).right


def test_what_holds_the_poison_by_right_is_written(tmp_path: Path) -> None:
    # Of 256 values of a byte one is what guard zones hold.
    @autotune.kernel(
        operands={"x": "uint8[N]"},
        out={"y": "uint8[N]"},
        reference=lambda x: x,
        inputs=lambda N: {"x": np.arange(N)},
        parameters={"way": [1]},
        cache=tmp_path,
    )
    def same(x, y, way):
        y[...] = x

    problem = same.operation.at((256,), dtype="uint8")
    check = Check(Case(256), problem, np.random.default_rng(0))

    def copies(x, y):
        y[...] = x

    assert check.run(copies, "ieee").right
    assert "left 255 of 256" in check.run(lambda x, y: None, "ieee").reason
    place = (0xA5,)
    check.run(copies, "ieee")
    check.spoil(place)
    assert check.spoilt(place)
    copies(*check.operands)
    assert not check.spoilt(place)


def test_in_place_operands_are_restored(tmp_path: Path) -> None:
    def kernel(state, drive, steps):
        for _ in range(steps):
            state[...] = state / 2 + drive

    assert verdict("decayed", kernel, tmp_path, 33).right
    assert not verdict("decayed", lambda state, drive, steps: None, tmp_path, 33).right


def test_a_function_may_judge(tmp_path: Path) -> None:
    def pair(x, most, place):
        most[0], place[0] = x.max() + 0.1, x.argmax()

    assert not verdict("largest", pair, tmp_path, 33).right
    accept = {"accept": lambda expected, got: abs(expected[0] - got[0]) < 0.2}
    assert verdict("largest", pair, tmp_path, 33, **accept).right
    accept = {"accept": lambda expected, got: abs(expected[0] - got[0]) < 0.01}
    told = verdict("largest", pair, tmp_path, 33, **accept)
    assert told.reason.endswith("(accept refused it)")


def test_floats_within_a_tolerance_are_right(tmp_path: Path) -> None:
    reference = DESCRIBED["normalised"]["reference"]

    def rough(X, Y, mean, scale, eps):
        Y[...], mean[...], scale[...] = reference(X, eps)
        Y *= 1 + 1e-6

    assert not verdict("normalised", rough, tmp_path, 5, 40).right
    assert verdict("normalised", rough, tmp_path, 5, 40, tolerance={"Y": 1e-5}).right
    assert verdict("normalised", rough, tmp_path, 5, 40, tolerance=1e-5).right
    assert not verdict("normalised", rough, tmp_path, 5, 40, tolerance={"mean": 1e-5}).right


# ---- Operands of one's own


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda M: {"values": np.zeros(M)}, r"values must have shape \(7,\), got \(5,\)"),
        (lambda M: {"value": np.zeros(M)}, r"must be one of .*values.*'value'"),
        (lambda M: [1], "must be a dictionary of operands, got list"),
        (lambda M: 1 // 0, r"'inputs' fails: ZeroDivisionError.*restrictions say which"),
    ],
)
def test_operands_that_do_not_fit_are_one_line(inputs: Any, message: str, tmp_path: Path) -> None:
    operation = made("spmv", "cpu", tmp_path, inputs=inputs).operation
    with pytest.raises(InputError, match=f"^inputs of spmv at .*M=5.*{message}"):
        Check(Case(5, 7, 6), operation.at((5, 7, 6)), np.random.default_rng(0))


def test_a_number_is_said_with_and_without_a_type(tmp_path: Path) -> None:
    for said, dtype in (("[]", ""), ((), ""), (" int64[]", "int64")):
        kernel = made("largest", "cpu", tmp_path, out={"most": "[]", "place": said})
        assert [each.shape for each in kernel.operation.outputs] == [(), ()]
        assert [each.dtype for each in kernel.operation.outputs] == ["", dtype]


def test_sizes_follow_from_expressions(tmp_path: Path) -> None:
    kernel = made("spmv", "cpu", tmp_path, tune=False)
    inputs, _, _ = operands("spmv")
    assert kernel.operation.sizes == ("M", "Z", "N")
    with pytest.raises(autotune.NotTunedError, match="--shape 50x300x40"):
        kernel(*inputs)
    wrong = [inputs[0].astype(np.int64), *inputs[1:]]
    problem = kernel.operation.at((50, 300, 40), dtype="float64")
    with pytest.raises(OperandError, match=r"indptr must have dtype int32"):
        check_operands(problem, wrong, None, {})


# ---- On a GPU


@pytest.mark.parametrize("name", DESCRIBED)
def test_sources_of_every_structure_compile(name: str, tmp_path: Path) -> None:
    kernel = made(name, "cuda", tmp_path)
    family = catalog("cuda", name, [kernel.folder])[name]
    cpu = made(name, "cpu", tmp_path).operation
    found = {each.name: (each.dtype, each.written, each.read) for each in cpu.operands}
    if name != "squared":
        declared = {
            each.name: (each.dtype, each.written, each.read) for each in kernel.operation.operands
        }
        assert declared == found
    source = render(family, {"THREADS": 64}, dtype=family.dtypes[0])
    assert compile_cuda(source.text, "sm_90")


# ---- Restrictions that are functions

VALUES: dict[str, list[Any]] = {"x": [16, 32, 64], "y": [1, 2, 4, 8], "z": [0, 3], "w": ["a", "b"]}

ARITHMETIC = [
    lambda p: p["x"] * p["y"] <= 128,
    lambda x, y: (x * y <= 256 and x % 32 == 0) or y > 4,
    lambda p: 32 <= p["x"] * p["y"] <= 256,
    lambda p: p["z"] == 0 or (p["x"] >= 32 and p["y"] != 1),
    lambda p: (p["x"] if p["z"] else p["y"]) > 4,
    lambda p: p["x"] in (16, 64) and p["w"] != "b",
    lambda p: np.log2(p["x"]) + abs(p["y"] - 4) < 8,
    lambda p: (p["x"] & (p["x"] - 1)) == 0 and p["y"] >> 1 > 0,
    lambda p: max(p["x"], p["y"] * 8) < 60,
    lambda p: any(p["x"] % k == 0 for k in (24, 32)),
    lambda x, N: x <= N,
]
BY_ROWS = [
    lambda p: math.log2(p["x"]).is_integer() and p["y"] < 8,
    lambda p: {16: 3, 32: 0, 64: 3}[p["x"]] == p["z"],
    lambda w, z: ord(w) + z > 97,
    lambda p: str(p["x"])[0] == "1" or p["z"] == None,  # noqa: E711
]


@pytest.mark.parametrize("function", [*ARITHMETIC, *BY_ROWS])
def test_a_function_restricts_as_its_text_would(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="autotune.own")
    expression = Expression.parse(restriction_text(function, VALUES, ["N"]))
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    for row in itertools.product(*VALUES.values()):
        point = dict(zip(VALUES, row, strict=True)) | {"N": 40}
        wanted = function(point) if names == ("p",) else function(*[point[n] for n in names])
        assert expression.holds(point) == bool(wanted)
    assert ("is no arithmetic" in caplog.text) is (function in BY_ROWS)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p, q: True, "must take parameters by name, or one dictionary of them"),
        (lambda p: p["x"] + [1], "fails: TypeError"),
        (lambda x, N: str(N) == "3", "must be arithmetic, as N is a size of any value"),
        (
            lambda p: p["v"] == 3,
            "fails: KeyError: 'v'; p is no parameter but a dictionary of x, y",
        ),
        (lambda xs: xs > 1, "fails: .*; xs is no parameter but .* x, y, z, w; did you mean 'x'"),
        (lambda xs, y: True, "must take .*, and xs is none of x, .*, N; did you mean 'x'"),
        (lambda x: 1 / 0, "fails: ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_that_restricts_nothing_is_one_line(function: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"^restriction <lambda>\(.*\) {message}"):
        restriction_text(function, VALUES, ["N"])


def test_restrictions_of_any_form_are_those_of_the_family(tmp_path: Path) -> None:
    restricted: dict[Any, str] = {lambda p: p["way"] * 2 <= 2: "as asked", "way <= M": "rows"}
    kernel = made("spmv", "cpu", tmp_path, restrictions=restricted)
    family = catalog("cpu", "spmv", [kernel.folder])["spmv"]
    assert [(each.text, each.reason) for each in family.restrictions] == [
        ("way * 2 <= 2", "as asked"),
        ("way <= M", "rows"),
    ]
    single = made("spmv", "cpu", tmp_path, restrictions=lambda way, M: way <= M)
    family = catalog("cpu", "spmv", [single.folder])["spmv"]
    assert [each.text for each in family.restrictions] == ["way <= M"]


@pytest.mark.parametrize(
    "grid",
    [
        lambda THREADS, M: (-(-M // THREADS), 1),
        lambda p: math.ceil(p["M"] / p["THREADS"]),
        lambda p: max(1, -(-p["M"] // p["THREADS"])),
        lambda p: -(-p["M"] // {32: 32, 64: 64, 128: 128, 256: 256}[p["THREADS"]]),
        [lambda M, THREADS: (M + THREADS - 1) // THREADS, "1"],
    ],
)
def test_a_function_says_the_grid(grid: Any, tmp_path: Path) -> None:
    kernel = made("spmv", "cuda", tmp_path, grid=grid, block=lambda p: (p["THREADS"],))
    family = catalog("cuda", "spmv", [kernel.folder])["spmv"]
    assert family.launch is not None
    known = {"M": 1000, "THREADS": 64}
    assert [each.evaluate(known) for each in family.launch.grid] == [16, 1, 1]
    assert [each.evaluate(known) for each in family.launch.block] == [64, 1, 1]
    with pytest.raises(InputError, match="must be arithmetic of THREADS, M"):
        made("spmv", "cuda", tmp_path, grid=lambda p: len(str(p["M"])))


def powers(N: int, rng: np.random.Generator) -> dict[str, Any]:
    if N & (N - 1):
        raise ValueError("N must be a power of two")
    return {"A": rng.normal(size=(N // 16, N))}


@pytest.mark.parametrize(
    ("restriction", "inputs", "sizes"),
    [
        pytest.param("N >= 4", None, (6, 7), marks=pytest.mark.thorough),
        ("ispow2(N)", powers, (4, 64)),
    ],
)
def test_kernels_for_some_sizes_alone_are_tuned(
    restriction: str, inputs: Any, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """A reference, or what makes operands, knows no others."""

    def fours(A: Any, v: Any, way: int) -> None:
        for row in range(A.shape[0]):
            for column in range(4):
                v[row, column] = 2 * A[row, column]

    kernel = autotune.kernel(
        fours,
        operands={"A": "MxN" if inputs is None else ("N // 16", "N")},
        out={"v": "Mx4" if inputs is None else ("N // 16", "4")},
        reference=lambda A: A[:, :4] * 2,
        inputs=inputs,
        restrictions=[restriction],
        cases=["5x7", "3x4"] if inputs is None else ["64", "32"],
        parameters={"way": [1, 2]},
        cache=tmp_path,
        **BRIEF,
    )
    rows = np.arange(math.prod(sizes), dtype=np.float32).reshape(sizes)
    np.testing.assert_array_equal(kernel(rows), 2 * rows[:, :4])


# ---- On operands of a call


def test_a_kernel_is_tuned_on_the_operands_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = made("spmv", "cpu", tmp_path)
    inputs, _, _ = operands("spmv")
    asked: list[Any] = []

    def tuned(problem: Any, **options: Any) -> Any:
        rng = np.random.default_rng(0)
        for case in (Case(*problem.shape), Case(*problem.shape, distribution="normal")):
            check = Check(case, problem, rng)
            assert all(map(np.array_equal, check.operands, inputs))
        # At other shapes operands are made as ever.
        check = Check(Case(5, 7, 6), problem, rng)
        assert check.operands[0].shape == (6,)
        assert problem.key() == kernel.problem(M=50, Z=300, N=40, dtype="float64").key()
        asked.append(problem)

    monkeypatch.setattr("autotune.tuning.tuner.tune", tuned)
    kernel.tune(*inputs)
    assert asked
    with pytest.raises(OperandError, match="spmv takes 4 inputs"):
        kernel.tune(inputs[0])
