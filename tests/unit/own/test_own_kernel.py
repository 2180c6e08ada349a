"""Kernels of one's own before they are tuned: what is read, written and refused."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_kernels
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_kernels import DOTS, FLAT, damping, dots, gemv

import autotune
from autotune.arrays.device import DeviceArray, check_place
from autotune.core.configuration import Configuration
from autotune.core.errors import (
    AutotuneError,
    CacheError,
    FamilyError,
    InputError,
    OperandError,
    TuningFailedError,
)
from autotune.core.file_lock import alone
from autotune.cpu.direct import direct_call
from autotune.cpu.evaluator import cased
from autotune.cpu.identity import read_cpu
from autotune.cpu.kernel import CpuKernel, CpuProgram, write_program
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.cases import Case, cases_of
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.python_reference import PythonReference
from autotune.operations.verification import Check
from autotune.own.call_sizes import sizes_of_call
from autotune.own.cuda_text import cuda_text
from autotune.own.definition import toml_lines, write_folder
from autotune.own.own_kernel import OwnKernel
from autotune.own.trying import try_functions
from autotune.targets.families import catalog, find_operation
from autotune.tuning.progress import Progress, ProgressLine

BASIC: dict[str, Any] = {
    "operands": {"A": "MxN", "x": "N"},
    "out": {"y": "M"},
    "reference": "A @ x",
    "parameters": {"rows": [1, 2]},
}


def product(A, x, y, rows):
    for i in range(A.shape[0]):
        y[i] = (A[i] * x).sum() * (rows // rows)


# ---- Functions


def test_a_function_becomes_an_ordinary_family(tmp_path: Path) -> None:
    kernel = damping(cache=tmp_path)
    assert kernel.folder.parent == tmp_path / "own"
    names = {path.name for path in kernel.folder.iterdir()}
    assert names == {"operation.toml", "damped_rows.toml", "damped_rows.py.j2", "reference.py"}
    family = catalog("cpu", "damped_rows", [kernel.folder])["damped_rows"]
    assert family.runtime_parameters == ("tile",)
    assert [each.text for each in family.restrictions] == ["threads <= max_threads"]
    assert family.summary == "Every element damped."
    assert damping(cache=tmp_path).folder == kernel.folder


@pytest.mark.parametrize("threads", [1, 2])
def test_the_text_of_a_function_is_emitted_as_it_was_written(tmp_path: Path, threads: int) -> None:
    text = damping(cache=tmp_path).emit(threads=threads, order="rooted", dtype="float64")
    written = Path(own_kernels.__file__).read_text()
    body = written[written.index('        """Every element damped."""') :]
    lines = body[: body.index("    return damped_rows")].rstrip().splitlines()
    assert "\n".join(line.removeprefix("    ") for line in lines) in text
    for part in (
        'order = "rooted"\n',
        "\nEPSILON = 1e-06\n",
        "import math\nfrom math import sqrt\n",
        "def square(value: float) -> float:\n    return value * value\n",
        '@njit(**{**CALLED, "fastmath": True, "error_model": "python"})\ndef damped(',
        "def damped_rows_of_arrays(A, B, bias, alpha, tile):\n",
        "view(np.int64(a_address), m * n).reshape((m, n)),\n",
    ):
        assert part in text
    options = "parallel=True, **CALLED" if threads == 2 else "**CALLED"
    assert f"@njit({options})\ndef damped_rows_of_arrays(" in text
    assert len(re.findall(r"import.* prange", text)) == 1


def test_making_a_kernel_imports_no_searcher_and_no_compiler() -> None:
    script = (
        "import sys, autotune; autotune.kernel;"
        "print(*({'optuna', 'scipy', 'numba', 'jinja2', 'cuda'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_reference_is_taken_along(tmp_path: Path) -> None:
    kernel = damping(cache=tmp_path)
    result = kernel.operation.result
    assert isinstance(result, PythonReference)
    assert result.names == {"A", "bias", "alpha"}
    values = {"A": np.array([[3.0]]), "bias": np.array([1.0]), "alpha": 2.0}
    expected = own_kernels.damp(**values)
    assert np.array_equal(result.evaluate(values), expected)


def outer_scope() -> Callable[..., None]:
    table = np.arange(3.0)

    def kernel(A, x, y, rows):
        y[0] = table[0]

    return kernel


def of_module(A, x, y, rows):
    y[0] = os.getpid()


def unknown(A, x, y, rows):
    y[0] = not_there  # noqa: F821


def assigning(A, x, y, rows):
    rows = 3  # noqa: F841


def too_few(A, y, rows):
    pass


def stranger(A, x, y, rows, columns):
    pass


def with_default(A, x, y, rows=2):
    pass


def no_loop(A, x, y, rows, threads):
    pass


view = 3.0


def of_the_module(A, x, y, rows):
    y[0] = view


rows = 7.0


def helping():
    return rows


def helped(A, x, y, rows):
    y[0] = helping()


THREADED = {"parameters": {"rows": [1], "threads": [1, 2]}}


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [
        (outer_scope(), {}, r"uses table, a ndarray, which cannot be taken along"),
        (of_module, {}, r"os is the module os, which cannot be taken along"),
        (unknown, {}, r"uses not_there, which is defined neither in it nor in its module"),
        (assigning, {}, r"assigns rows, which is a constant"),
        (of_the_module, {}, r"uses the name view, which the emitted module has for something"),
        (helped, {}, r"uses the name rows, which the emitted module has for something"),
        (product, {"operands": {"A": "MxNP", "x": "NP"}}, r"uses the name np, which"),
        (too_few, {}, r"too_few must take x as an argument"),
        (stranger, {}, r"an argument must be one of A, x, y, M, N, rows, got 'columns'"),
        (with_default, {}, r"must take plain arguments"),
        (no_loop, THREADED, r"no loop that they share: use prange"),
        (lambda A: None, {}, r"must be a function made with def"),
        (product, {"reference": "A @ z"}, r"kernel product: result must mention .* got 'z'"),
        (product, {"reference": "y + A @ x"}, r"give the scalar that multiplies it the default 0"),
        (product, {"reference": 3}, r"reference must be a formula like"),
        (product, {"parameters": {}}, r"at least one parameter"),
        (product, {"parameters": {"rows": []}}, r"rows must have at least one value"),
        (product, {"parameters": {"rows": range(10**9)}}, r"rows must have 10000 values at most"),
        (product, {"parameters": {"rows": 4}}, r"rows must be a list of values, got 4"),
        (product, {"parameters": {"rows": {"value": [1]}}}, r"did you mean 'values'"),
        (product, {"restrictions": [3]}, r'must be expressions like "rows <= M", or functions'),
        (product, {"restrictions": ["rows <"]}, r"kernel product: restriction 'rows <'"),
        (product, {"restrictions": ["lines <= M"]}, r"uses 'lines'; the names there are: .*rows"),
        (product, {"operands": {"A": "MxN", "x": "N N"}}, r'x must have a shape like "MxN"'),
        (product, {"out": {}}, r"out must name what is written"),
        (
            product,
            {"dtypes": ["float16"]},
            r"dtypes on cpu must be one of float32, float64, int8, .*, got 'float16'",
        ),
        (product, {"target": "cuda"}, r"kernel product: target must be cpu for a function"),
        (product, {"target": []}, r"kernel product: target must be cpu for a function"),
        (product, {"name": "other"}, r"kernel product: name must be left out"),
        *[
            (product, {key: value}, rf"^kernel product: {key} must be a mapping of names like")
            for key in ("operands", "out", "parameters", "scalars", "derived")
            for value in (3, "MxN", ["A"], {3: "M"}, True)
        ],
        *[
            (product, {"operands": {"A": value}}, r"kernel product: the shape of A must be like")
            for value in (None, 0.5, ["M", None], {"dtype": "int8"}, b"M")
        ],
        (product, {"operands": {"A": {"M": 1}}}, r"a key of A must be one of shape, dtype, .*'M'"),
        (product, {"operands": {"A": "int9[MxN]"}}, r"operands.A.dtype must be one of .*'int9'"),
        (product, {"operands": {"A": "MxNxIxJxKxL"}}, r"must have 1 to 5 dimensions, got 6"),
        (
            product,
            {"tolerance": {"q": 1}},
            r"tolerance must be of outputs: it must be one of y, got 'q'",
        ),
        (product, {"tolerance": -1}, r"tolerance.y must be a number >= 0, got -1"),
        (product, {"tolerance": "1"}, r"tolerance.y must be a number"),
        (product, {"inputs": lambda rows: {}}, r"inputs must take sizes: it must be one of"),
        (product, {"accept": lambda a: True}, r"accept must take what is expected and what was"),
        (product, {"scalars": {"n": np.int8(3)}}, r"of type int32 or int64"),
        (product, {"scalars": {"a": "x"}}, r"kernel product: scalars\.a must be a number"),
        (product, {"scalars": {"a": 10**400}}, r"kernel product: scalars\.a must be a number"),
        (product, {"derived": {"a": 3}}, r"kernel product: derived\.a must be one line of text"),
        (product, {"restrictions": 3}, r"kernel product: restrictions must be a list"),
        (product, {"restrictions": {"M > 1": 3}}, r"product: the reason of restriction 'M > 1'"),
        (product, {"cases": 3}, r"kernel product: cases must be a list, got 3"),
        (product, {"cases": [3.5]}, r'kernel product: a case must be like "8x8" or \(8, 8\)'),
        (product, {"cases": [3]}, r"kernel product: .*3"),
        (
            product,
            {"cases": [{"M": 3}]},
            r"product: a case must have the sizes M, N, got \{'M': 3",
        ),
        (product, {"dtypes": 3}, r"kernel product: dtypes must be a list, got 3"),
        (product, {"flops": 3}, r"kernel product: flops must be one line of text"),
        (product, {"summary": 3}, r"kernel product: summary must be one line of text"),
        *[
            (
                product,
                {key: ["M"]},
                r"product: grid, block, .* and launch must be left out on",
            )
            for key in ("grid", "block", "shared_bytes")
        ],
        (product, {"trials": "x"}, r"kernel product: trials must be a whole number >= 1"),
        (product, {"timeout": -1}, r"kernel product: timeout must be more than 0 seconds"),
        (product, {"seed": 2**63}, r"kernel product: seed must be a whole number < 2\^63"),
        (product, {"workers": 0}, r"kernel product: workers must be a whole number >= 1"),
        (product, {"effort": 3}, r"kernel product: effort must be None or an autotune.Effort"),
        (product, {"sampler": 3}, r"kernel product: sampler must be one line of text"),
        (product, {"progress": 3}, r"kernel product: progress must be None or a function"),
        (product, {"seeds": 1}, r"a keyword of autotune.kernel must .*; did you mean 'seed'\?"),
        (product, {"tolerence": 1}, r"product: .* tolerance, .*; did you mean 'tolerance'\?"),
        (product, {"device": []}, r"kernel product: device must be None, a number or a name"),
        (product, {"source": DOTS}, r"give one of them"),
    ],
)
def test_what_does_not_fit_is_one_line(
    function: Callable[..., Any], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AutotuneError, match=message) as caught:
        autotune.kernel(function, **{**BASIC, **changed}, cache=tmp_path).emit()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("own/.*"))


@pytest.mark.parametrize("cache", [3, "", b"here"])
def test_what_is_no_cache_is_refused_at_definition(cache: Any) -> None:
    with pytest.raises(InputError, match="kernel product: cache must be the path of a file or a"):
        autotune.kernel(product, **BASIC, cache=cache)


LAUNCHED = {"source": DOTS, "grid": ["M"], "block": [32], "name": "dots"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"restrictions": ["rows < foo"]},
            r"restrictions\[1\]\.expr = 'rows < foo' uses 'foo'; the",
        ),
        ({"parameters": {"N": [1]}}, r"parameters\.N is the name of a size, a limit"),
        ({"parameters": {"rows": [1, 1]}}, r"parameters\.rows\.values must not repeat a value"),
        ({"parameters": {"rows": [1, "a b"]}}, r"parameters\.rows\.values must be all integers"),
        (
            {"parameters": {"\u00b5": [1]}},
            r"parameters\.'\u00b5' must be a Python name of letters",
        ),
        ({"derived": {"a": "q + 1"}}, r"derived\.a = 'q \+ 1' uses 'q'; the names there are"),
        ({**LAUNCHED, "grid": ["ceildiv(K, 3)"]}, r"grid = 'ceildiv\(K, 3\)' uses 'K'"),
        ({**LAUNCHED, "block": ["THREADS"]}, r"block = 'THREADS' uses 'THREADS'"),
        ({**LAUNCHED, "shared_bytes": "4 * Q"}, r"shared_bytes = '4 \* Q' uses 'Q'"),
        ({"operands": {"H": "MxH"}}, r"operands must not repeat 'H', 'H' in sizes already"),
        ({"operands": {"a": "M", "A": "M"}}, r"operands must not repeat 'A', 'a' in operands .*:"),
        ({"scalars": {"out": 1.0}}, r"scalars must not be called 'out', .*: call it 'out_', say"),
        ({"until": 2}, r"until must be a probability between 0 and 1"),
        ({"operands": {"A": ()}}, r"A must have 1 to 5 dimensions, got \(\): one number is"),
    ],
)
def test_definitions_are_checked_where_they_are_made(
    changed: dict[str, Any], message: str
) -> None:
    function = None if "source" in changed else product
    name = "dots" if function is None else "product"
    with pytest.raises(InputError, match=f"^kernel {name}: {message}"):
        autotune.kernel(function, **{**BASIC, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": 3}, "source must be a path, or the text, got 3"),
        ({"source": ""}, "source must be a path, or the text, got ''"),
        ({"source": "a\0.cu"}, "source .* cannot be read: embedded null byte"),
        ({"template": 3, "name": "mine"}, "template must be a path, or the text, got 3"),
        ({"template": "x\n", "name": 3}, "a kernel's name must be letters, .* got 3"),
        ({"template": "x\n", "name": "mine", "target": []}, "kernel mine: target must be one of"),
        ({"source": DOTS, "grid": 0.5, "block": [1]}, "grid must be like"),
        ({"source": DOTS, "grid": ["M", None], "block": [1]}, "grid must be like"),
        ({"source": DOTS, "grid": ["M"], "block": {}}, "block must be like"),
        ({"source": DOTS, "grid": ["M"], "block": [1], "shared_bytes": 0.5}, "shared_bytes must"),
    ],
)
def test_sources_are_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        autotune.kernel(**{**BASIC, **changed})
    assert "\n" not in str(caught.value)


@autotune.kernel(**BASIC)
def pickled(A, x, y, rows):
    y[0] = rows


def test_kernels_are_pickled_as_functions_are() -> None:
    assert pickle.loads(pickle.dumps(pickled)) is pickled
    assert pickled.__module__ == __name__
    with pytest.raises(InputError, match="make it in every process"):
        pickle.dumps(dots())


def test_a_function_without_a_file_is_refused(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec("def product(A, x, y, rows): pass", names)
    with pytest.raises(InputError, match="define the function in a file"):
        autotune.kernel(names["product"], **BASIC)


# ---- Sources of CUDA C++


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", [DOTS, FLAT], ids=["padded", "packed"])
def test_a_source_compiles_as_it_was_written(source: str, dtype: str, tmp_path: Path) -> None:
    kernel = dots(source, cache=tmp_path)
    text = kernel.emit(THREADS=64, ROWS=2, dtype=dtype)
    head = "__global__ void __launch_bounds__(THREADS)"
    assert source.strip("\n").replace(head, f'extern "C" {head}') in text
    assert "#define THREADS 64\n#define ROWS 2\n#define USE_BETA 1\n\n// Threads of" in text
    compiled = compile_cuda(text, "sm_80")
    assert compiled.kernels["dots"].max_threads == 64
    assert kernel.operation.packed == ({"A"} if source is FLAT else set())


@given(st.permutations(["const float* A", "float *y", "float const* x", "int n", "int LDA"]))
def test_arguments_are_read_in_any_order(declared: list[str]) -> None:
    text = cuda_text(f"__global__ void f({', '.join(declared)}) {{}}", None)
    assert [each.name for each in text.taken] == [
        re.split(r"[ *]+", each)[-1] for each in declared
    ]
    assert text.types(["A", "x", "y"], []) == (("float32",), {})
    assert {each.type for each in text.taken} == {"float", "int"}
    assert [each.pointer for each in text.taken] == ["*" in each for each in declared]


def test_heads_are_found_among_comments_declarations_and_attributes() -> None:
    source = """
    // __global__ void not_this(int n) {}
    __global__ void late(const float *x, int n);
    extern "C" { __global__ void __launch_bounds__(64, (2)) late(
        const float* __restrict__ x /* , int k */, float y[], int n) { f(")"); } }
    __global__ void other(float* y) {}
    """
    late = cuda_text(source, "late")
    assert [each.name for each in late.taken] == ["x", "y", "n"]
    assert late.text.count('extern "C"') == 1
    assert cuda_text(source, "other").text.count('extern "C"') == 2
    with pytest.raises(InputError, match=r"one kernel, or name= .* has late, other"):
        cuda_text(source, None)


@pytest.mark.parametrize(
    ("old", "new", "changed", "message"),
    [
        ("int N", "size_t N", {}, r"N must be an int, got size_t"),
        ("T alpha", "double alpha", {}, r"alpha must be float for float32, got double"),
        (
            "const T* A",
            "const triple* A",
            {},
            r"operands of type T or .* got triple A",
        ),
        (", T alpha", "", {}, r"must take every operand and scalar, and alpha is missing"),
        ("int lda", "int pitch", {}, r"an argument must be one of .* got 'pitch'"),
        ("__global__", "template <int K> __global__", {}, r"must not be a C\+\+ template"),
        ("__global__", "__device__", {}, r"source must have one kernel.*and has none"),
        ("", "", {"dtypes": ["float16"]}, r"beta must be float for float16, got T"),
        ("T beta", "T* beta", {}, r"beta must be a number, and no pointer"),
        ("", "", {"grid": None}, r"grid and block must say how it is launched"),
        ("", "", {"grid": ["M", "1", "1", "1"]}, r"grid must be one to three expressions"),
        ("", "", {"name": "sums"}, r"must have a kernel 'sums'.* has dots"),
        (
            "",
            "",
            {"parameters": {"threads": [32]}, "block": ["threads", "2"]},
            r"must not be called threads, .* call it THREADS",
        ),
    ],
)
def test_a_source_that_does_not_fit_is_one_line(
    old: str, new: str, changed: dict[str, Any], message: str
) -> None:
    options = {
        "operands": {"A": "MxN", "x": "N"},
        "out": {"y": "M"},
        "scalars": {"alpha": 1.0, "beta": 0.0},
        "reference": "alpha * A @ x + beta * y",
        "parameters": {"THREADS": [32], "ROWS": [1], "USE_BETA": [True]},
        "grid": ["M"],
        "block": ["THREADS"],
    }
    with pytest.raises(InputError, match=message):
        autotune.kernel(source=DOTS.replace(old, new, 1), **{**options, **changed})


def test_a_source_of_one_type_is_for_one_type() -> None:
    source = re.sub(r"\bT\b", "float", DOTS)
    assert dots(source).problem(M=2, N=2).dtype == "float32"
    assert "using T" not in dots(source).emit()
    with pytest.raises(InputError, match=r"A must be a pointer to T.*for float32, float64"):
        dots(source, dtypes=["float32", np.float64])


def test_a_template_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "scaled.py.j2"
    path.write_text(
        "{% set threads = 1 %}\n"
        '{% include "_lib/numba_prelude.py.j2" %}\n\n\n'
        '{% include "_lib/numba_entry.py.j2" %}\n'
        "def scaled({{ arguments }}):\n"
        "    x, y = view(np.int64(x_address), n), view(np.int64(y_address), n)\n"
        "    for i in range(0, n, {{ step }}):\n"
        "        y[i : i + {{ step }}] = 2 * x[i : i + {{ step }}]\n"
    )
    kernel = autotune.kernel(
        template=path,
        name="scaled",
        operands={"x": "N"},
        out={"y": "N"},
        reference="2 * x",
        parameters={"step": [1, 4]},
        cache=tmp_path,
    )
    assert kernel.target == "cpu"
    assert "range(0, n, 4)" in kernel.emit(step=4)


# ---- Arguments in any order


@pytest.mark.sampled(1)
@pytest.mark.parametrize("takes", [("x", "n", "b", "m", "c"), ("c", "ldc", "x", "b", "ldb", "n")])
def test_kernels_take_what_their_operation_says(takes: tuple[str, ...], tmp_path: Path) -> None:
    operation = Operation(
        "scale",
        ("M", "N"),
        (Operand("B", ("M", "N")), Operand("x", ("N",)), Operand("C", ("M", "N"), True)),
        Formula("B - x"),
        "M * N",
        summary="s",
        takes=takes,
    )
    packed = "ldb" not in takes
    assert operation.packed == ({"B", "C"} if packed else set())
    problem = operation.at((5, 3), dtype="float64")
    assert [each.packed for each in problem.operands] == [packed, False, packed]
    path = tmp_path / "scale.py.j2"
    rows = "m" if packed else "5"  # the other does not take it
    path.write_text(
        "{% set threads = 1 %}\n"
        '{% include "_lib/numba_prelude.py.j2" %}\n\n\n'
        '{% include "_lib/numba_entry.py.j2" %}\n'
        "def scale({{ arguments }}):\n"
        f"    for i in range({rows}):\n"
        f"        b = view(np.int64(b_address) + i * {'n' if packed else 'ldb'} * ITEMSIZE, n)\n"
        f"        c = view(np.int64(c_address) + i * {'n' if packed else 'ldc'} * ITEMSIZE, n)\n"
        "        c[:] = b - view(np.int64(x_address), n)\n"
    )
    (tmp_path / "operation.toml").write_text(
        'operation = "scale"\nsummary = "s"\nsizes = ["M", "N"]\nresult = "B - x"\n'
        f'flops = "M * N"\narguments = {list(takes)}\n[operands]\nB = {{ shape = ["M", "N"] }}\n'
        'x = { shape = ["N"] }\nC = { shape = ["M", "N"], role = "out" }\n'
    )
    (tmp_path / "scale.toml").write_text(
        'family = "scale"\noperation = "scale"\ntarget = "cpu"\ntemplate = "scale.py.j2"\n'
        'accuracy = "ieee"\nsummary = "s"\n[parameters]\nstep = { values = [1] }\n'
    )
    assert find_operation("scale", [tmp_path]) == operation
    family = catalog("cpu", "scale", [tmp_path])["scale"]
    programs = ProgramCache(tmp_path / "programs")
    source = render(family, {"step": 1}, dtype="float64")
    program = CpuProgram(
        programs.write(source, "scale"), "scale", "float64", "nn", "nn", (), 1, operation
    )
    assert load_module(program.path)
    kernel = CpuKernel(program)
    direct = direct_call(kernel, problem, programs)
    assert direct is not None
    case = Case(5, 3, padding=2)
    check = Check(case, problem, np.random.default_rng(1), sealed=True)
    assert check.run(kernel, "ieee").right
    assert check.run(direct, "ieee").right  # operands lie as they must
    wide = np.random.default_rng(2).random((5, 8))
    x, c = wide[0, :3].copy(), np.zeros((5, 8))
    assert direct(wide[:, :3], x, c[:, :3]) is not packed
    kernel(wide[:, :3], x, c[:, :3])  # what must be copied is
    assert np.array_equal(c[:, :3], wide[:, :3] - x)
    assert not c[:, 3:].any()


@pytest.mark.parametrize(
    ("takes", "message"),
    [
        (("x", "y", "k"), r"arguments must be one of n, x, y"),
        (("x", "y", "y"), r"must not repeat 'y'"),
        (("x", "n"), r"must name all operands and scalars, and y is missing"),
    ],
)
def test_arguments_are_the_operations(takes: tuple[str, ...], message: str) -> None:
    operands = (Operand("x", ("N",)), Operand("y", ("N",), True))
    with pytest.raises(InputError, match=message):
        Operation("copy", ("N",), operands, Formula("x"), "N", takes=takes)


def test_rows_that_must_follow_each_other_are_asked_for_on_a_gpu() -> None:
    padded = DeviceArray(4096, (4, 3), (5, 1), "float32", 0)
    assert check_place("a", padded, (4, 3), "float32", written=False) == (4096, (5,))
    with pytest.raises(OperandError, match=r"must have rows that follow each other.*take lda"):
        check_place("a", padded, (4, 3), "float32", written=False, packed=True)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('result = "relu(A @ B)"\narguments = ["a", "b", "c"]', "arguments must be left out"),
        ('reference = "f.py:f"', "reference must be left out with product"),
        ('reference = "f.py:f"\nresult = "A @ B"', "reference must be left out where result"),
        ('reference = "../f.py:f"', 'must be like "reference.py:function"'),
        ('reference = "none.py:f"', "reference must be a function in .*none.py"),
        ('reference = "f.py:g"', "there is no function 'g'"),
    ],
)
def test_what_an_operation_file_says_twice_is_refused(
    said: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text("def f(A, B):\n    return A @ B\n")
    (tmp_path / "operation.toml").write_text(
        f'operation = "relu_gemm"\nproduct = "gemm"\nsummary = "s"\n{said}\n'
        'sizes = ["M", "N", "K"]\nflops = "M"\n[operands]\n'
        'A = { shape = ["M", "N"] }\nB = { shape = ["N", "K"] }\n'
        'C = { shape = ["M", "K"], role = "out" }\n'
    )
    with pytest.raises(FamilyError, match=message):
        find_operation("relu_gemm", [tmp_path])


# ---- References


def test_reading_a_reference_runs_nothing(tmp_path: Path) -> None:
    kernel = damping(cache=tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in kernel.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    ran = tmp_path / "ran"
    text = f"open({str(ran)!r}, 'w').close()\n\ndef damp(A, bias, alpha):\n    return A + bias\n"
    (folder / "reference.py").write_text(text)
    operation = find_operation("damped_rows", [folder])
    before = catalog("cpu", "damped_rows", [folder])["damped_rows"].digest
    assert not ran.exists()
    problem = operation.problem(M=4, N=4)
    Check(cases_of(problem)[0], problem, np.random.default_rng(0))
    assert ran.exists()
    (folder / "reference.py").write_text(text + "\n")
    assert catalog("cpu", "damped_rows", [folder])["damped_rows"].digest != before


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no')", r"reference 'f' fails: ValueError: no"),
        ("A *= 2", r"reference 'f' fails: ValueError: .*read-only"),
        ("return 'text'", r"must give an array of numbers"),
        ("return A[:, 0]", r"must give the shape \(3, 2\) of C at 3x2, and gives \(3,\)"),
    ],
)
def test_what_is_wrong_with_a_reference_is_one_line(body: str, message: str) -> None:
    reference = PythonReference("f", f"def f(A):\n    {body}\n")
    operands = (Operand("A", ("M", "N")), Operand("C", ("M", "N"), True))
    operation = Operation("copy", ("M", "N"), operands, reference, "M")
    with pytest.raises(InputError, match=message):
        Check(Case(3, 2), operation.at((3, 2)), np.random.default_rng(0))


def test_a_reference_of_some_sizes_alone_says_which_it_fails_at() -> None:
    """Restrictions keep verification from the others."""
    reference = PythonReference("f", "def f(A, M, N):\n    return A[:, : 1 // (M <= N)]\n")
    operands = (Operand("A", ("M", "N")), Operand("C", ("M", "N"), True))
    operation = Operation("copy", ("M", "N"), operands, reference, "M")
    told = r"^copy at 3x2 \(M=3, N=2\): reference 'f' fails: .*; restrictions say which sizes"
    with pytest.raises(InputError, match=told):
        Check(Case(3, 2), operation.at((30, 40)), np.random.default_rng(0))


def first_of(A: Any) -> Any:
    return A[0, 70000]


def picks(A: Any) -> Any:
    # Lines are told as they are in this file.
    chosen = 0 * A
    return chosen + first_of(A)


def raises(A: Any) -> Any:
    try:
        return A[0, 70000]
    except IndexError as error:
        raise ValueError("two\nlines") from error


def made_wrongly(M: int, N: int) -> dict[str, Any]:
    return {"A": np.ones((M, N + 1))}


@pytest.mark.parametrize(
    ("said", "message", "line"),
    [
        ({"reference": picks}, r"reference 'picks' fails: IndexError: .*", 4),
        ({"reference": raises}, r"reference 'raises' fails: ValueError: two lines", 5),
        ({"reference": lambda A: A[0]}, r"reference\(A\) must give the shape \(6, 7\) .*", None),
        ({"reference": lambda A: None}, r".* must give an array of numbers, got object", None),
        ({"reference": lambda A: (A, A)}, r".* must give 1 array, .* got tuple", None),
        ({"inputs": made_wrongly}, r"inputs of copied .* must have shape \(6, 7\), .*", None),
    ],
)
def test_what_is_wrong_with_a_reference_is_told_before_anything_is_tuned(
    said: dict[str, Any], message: str, line: int | None, tmp_path: Path
) -> None:
    def copied(A: Any, B: Any, way: int) -> None:
        B[:] = A

    kernel = autotune.kernel(
        copied,
        **{"operands": {"A": "MxN"}, "out": {"B": "MxN"}, "reference": "A", **said},
        parameters={"way": [1, 2]},
        cache=tmp_path,
    )
    (function,) = (each for each in said.values())
    first = function.__code__.co_firstlineno
    where = f"{re.escape(__file__)}, line {first}"
    where += "" if line is None else f", raised in line {first + line - 1}"
    for _ in range(2):
        with pytest.raises(InputError, match=rf"^copied: {message} \({where}\)$"):
            kernel(np.ones((6, 7)))
    assert not list(tmp_path.glob("**/*.nbi"))


def test_a_reference_is_tried_where_kernels_may_be(tmp_path: Path) -> None:
    """It need not be right for sizes that are smaller than those of a call."""

    def ran(A: Any) -> Any:
        if A.shape[1] < 5:
            raise ValueError("too few columns")
        return A

    operands = (Operand("A", ("M", "N")), Operand("C", ("M", "N"), True))
    source = "def f(A):\n    if A.shape[1] < 5:\n        raise ValueError\n    return A\n"
    operation = Operation("copy", ("M", "N"), operands, PythonReference("f", source), "M")
    try_functions(operation.at((300, 400)), {"reference": ran})
    with pytest.raises(InputError, match="copy: reference 'f' fails"):
        try_functions(operation.at((1, 3)), {"reference": ran})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("f = 3", "there is no function 'f'"),
        ("def f(*A): pass", "must take plain arguments"),
        ("def f(A:", "no Python"),
    ],
)
def test_a_reference_is_a_plain_function(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PythonReference("f", source)


def test_references_in_python_are_as_strict_as_formulas_of_products() -> None:
    rng = np.random.default_rng(3)
    values = {"A": rng.uniform(-1, 1, (40, 300)), "B": rng.uniform(-1, 1, (300, 20))}
    formula = Formula("A @ B")
    function = PythonReference("f", "def f(A, B): return A @ B")
    expected, (result,) = formula.evaluate(values), function.evaluate_all(values, 1)
    assert np.allclose(result, expected, rtol=1e-14)
    assert np.allclose(*function.magnitudes(values, [result]), formula.magnitude(values))
    # Where terms cancel, errors are not relative to what is left.
    values = {"A": np.array([[1.0, 0.7]]), "B": np.array([[1.0, 0.1]])}
    reference = PythonReference("f", "def f(A, B): return A - B")
    (scale,) = reference.magnitudes(values, reference.evaluate_all(values, 1))
    assert scale.min() > 0.1


# ---- Folders, sizes, files


def test_folders_are_written_once_and_are_what_was_written(tmp_path: Path) -> None:
    folder = write_folder("one", {"a.toml": "x = 1\n"}, tmp_path)
    assert write_folder("one", {"a.toml": "x = 1\n"}, tmp_path) == folder
    assert write_folder("one", {"a.toml": "x = 2\n"}, tmp_path) != folder
    assert sorted(path.name[:4] for path in (tmp_path / "own").iterdir()) == ["one-", "one-"]
    (folder / "a.toml").write_text("x = 3\n")
    with pytest.raises(CacheError, match="was changed after it was written: remove"):
        write_folder("one", {"a.toml": "x = 1\n"}, tmp_path)
    (folder / "a.toml").write_text("x = 1\n")
    folder.chmod(0o777)
    with pytest.raises(CacheError, match="everybody may write"):
        write_folder("one", {"a.toml": "x = 1\n"}, tmp_path)


def test_processes_that_write_one_folder_agree(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from autotune.own.definition import write_folder;"
        "files = {f'{i}.toml': 'x' * 10000 for i in range(20)};"
        "print(write_folder('one', files, Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(found) == 1
    assert len(list((tmp_path / "own").iterdir())) == 1


def test_a_child_by_fork_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    folder = write_folder("one", {"operation.toml": ""}, tmp_path)
    ready, asked = os.pipe(), os.pipe()
    with alone(folder / "operation.toml"):
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(asked[0], 1)  # until the parent has asked once more
            os._exit(0)
        os.read(ready[0], 1)
    with (folder / "operation.toml").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(asked[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for end in (*ready, *asked):
        os.close(end)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(st.characters(exclude_categories=["Cs"])),
            st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
            st.dictionaries(st.text("ab", min_size=1), st.integers(0, 9), max_size=2),
        ),
        max_size=5,
    ).filter(
        lambda table: all(char < "\ud800" or char > "\udfff" for key in table for char in key)
    )
)
def test_what_is_written_as_toml_is_read_back(entries: dict[str, Any]) -> None:
    assert tomllib.loads("\n".join(toml_lines(entries))) == entries


@pytest.mark.parametrize(("m", "n"), [*itertools.product((1, 5), (2, 7))])
def test_sizes_follow_from_shapes(m: int, n: int, tmp_path: Path) -> None:
    operands = (Operand("A", ("M", "N + 1")), Operand("x", ("N",)), Operand("y", ("M",), True))
    operation = Operation("f", ("M", "N"), operands, PythonReference("g", "def g(): pass"), "M")
    a, x = np.ones((m, n + 1)), np.ones(n)
    assert sizes_of_call(operation, (a, x), None) == {"M": m, "N": n}
    assert sizes_of_call(operation, (a, x), np.ones(m)) == {"M": m, "N": n}
    for inputs, out, message in (
        ((a[:, 1:], x), None, rf"A must be M x N \+ 1, which is {m} x {n + 1} here"),
        ((a, x), np.ones(m + 1), rf"y has M = {m + 1}, and A has M = {m}"),
        ((a[0], x), None, r"A must be M x N \+ 1, got shape"),
        ((a[:0], x), None, r"A must be M x N \+ 1, with elements, got shape"),
        (([1.0], x), None, r"A must be an array M x N \+ 1, got list"),
        ((a,), None, r"f takes 2 inputs, A, x, got 1"),
    ):
        with pytest.raises(OperandError, match=message):
            sizes_of_call(operation, inputs, out)


def test_calls_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    kernel = gemv(cache=tmp_path, tune=False)
    a, x = np.ones((4, 3), np.float32), np.ones(3, np.float32)
    with pytest.raises(OperandError, match=r"got float16: .* \(elements may be float32, .*\)$"):
        kernel(a.astype(np.float16), x)
    with pytest.raises(OperandError, match=r"^x must be a plain .* pass x.filled\(value\)"):
        kernel(np.ones((4, 3)), np.ma.masked_array(np.ones(3)))
    with pytest.raises(OperandError, match="takes 2 inputs"):
        kernel()
    with pytest.raises(autotune.NotTunedError, match=r"autotune tune gemv --shape 4x3.*forbidden"):
        kernel(a, x)
    with pytest.raises(autotune.NotTunedError, match=r"--families \S+own/gemv-"):
        kernel.load(M=4, N=3)
    with pytest.raises(InputError, match="N is missing"):
        kernel.problem(M=4)


def tensor(array: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, x: ((a, x.astype(np.float64)), None), "x must have dtype float32"),
        (lambda a, x: ((a, x), a[:, 0]), "out must be row-major with contiguous rows"),
        (lambda a, x: ((a, a[0]), a.ravel()[1:5]), "out overlaps a in memory"),
        (lambda a, x: ((tensor(a).double(), tensor(x)), None), "x must have dtype float64"),
        (lambda a, x: ((tensor(a).to_sparse(), tensor(x)), None), "such as NumPy can view"),
        (lambda a, x: ((tensor(a), tensor(x).requires_grad_()), None), "that require grad"),
        (lambda a, x: ((tensor(a), tensor(x)), tensor(a[:, 0].copy()).requires_grad_()), "grad"),
    ],
)
def test_operands_are_looked_at_before_anything_is_tuned(
    change: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    """A kernel that may not be tuned refuses them, and not that it is asked for."""
    inputs, out = change(np.ones((4, 3), np.float32), np.ones(3, np.float32))
    with pytest.raises(OperandError, match=message):
        gemv(cache=tmp_path, tune=False)(*inputs, out=out)


def test_operands_of_the_host_are_no_gpus_before_anything_is_tuned(tmp_path: Path) -> None:
    with pytest.raises(OperandError, match=r"a .*(host|GPU)"):
        dots(cache=tmp_path, tune=False)(np.ones((4, 3), np.float32), np.ones(3, np.float32))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_call_that_tunes_says_so(
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    caplog.set_level("INFO", logger="autotune.own")
    kernel = gemv(cache=tmp_path, timeout=7)
    stands = Progress(1, 2, 3.0, 7.0, None, None, 100, {}, left_s=4.0)

    def tuned(self: OwnKernel, problem: Any, progress: Any = None, **options: Any) -> Any:
        assert (progress is not None) is terminal
        if progress is not None:
            progress(stands)
        raise TuningFailedError("nothing")

    monkeypatch.setattr(OwnKernel, "tune", tuned)
    with pytest.raises(TuningFailedError, match="gemv: nothing"):
        kernel(np.ones((4, 3), np.float32), np.ones(3, np.float32))
    title = "gemv: tuning for 4x3-float32, up to 7 s"
    assert title in caplog.messages
    shown = stream.getvalue()
    assert shown.startswith(f"{title}\n") is terminal
    assert ("trial 1/2" in shown) is terminal


def test_a_terminal_that_is_gone_ends_no_work() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    line = ProgressLine("title", Gone())
    line(Progress(1, 2, 3.0, 7.0, None, None, 100, {}))
    line.end()


def convolve(x, w):  # type: ignore[no-untyped-def]
    return np.convolve(x, w[::-1], "valid")


def convolution(x, w, y, KF, rows):  # type: ignore[no-untyped-def]
    for i in range(y.shape[0]):
        total = 0.0
        for k in range(KF):
            total += x[i + k] * w[k]
        y[i] = total


@pytest.mark.parametrize(("taps", "left"), [(5, False), (6, True)])
def test_programs_are_verified_where_they_are_valid(taps: int, left: bool, tmp_path: Path) -> None:
    kernel = autotune.kernel(
        operands={"x": ("N + F - 1",), "w": "F"},
        out={"y": "N"},
        reference=convolve,
        parameters={"KF": [5, 6], "rows": [1, 40]},
        restrictions={"KF == F": "taps are constants", "rows <= N": "so many at once"},
        cases=["7x5", "64x5", "3x1", "2x5"],
        cache=tmp_path,
    )(convolution)
    family = catalog("cpu", "convolution", [kernel.folder])["convolution"]
    problem, limits = kernel.problem(N=1000, F=taps), read_cpu().limits
    configuration = Configuration({"KF": taps, "rows": 40})
    program = write_program(family, configuration, problem, ProgramCache(tmp_path))
    found = cased(program, family, configuration, problem, limits)
    assert not found.shrinks
    sizes = [case.sizes for case in found.cases]
    assert sizes
    assert all(rows >= 40 and filters == taps for rows, filters in sizes)
    assert ((65, taps) in sizes) is left  # none of the operation's own
    assert ((64, taps) in sizes) is not left
