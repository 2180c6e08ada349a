"""Exported kernels for processors: in programs of C, and of Python without this package."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from operation_examples import FOLDER
from own_kernels import damping
from records import record
from structured_kernels import DESCRIBED, operands
from structured_kernels import made as structured

import autotune
from autotune.cli import main
from autotune.core.configuration import Candidate
from autotune.core.errors import InputError
from autotune.core.paths import CacheLocations
from autotune.exporting.exportable import ROW, drawn
from autotune.operations.parts import Array
from autotune.operations.problem import Gemm
from autotune.store import TuningCache
from autotune.targets.exported import exportable
from autotune.targets.families import find_operation, load_families
from autotune.targets.registry import make_target, target_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.operations.problem import Problem
    from autotune.store import TuningRecord

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("cc") is None,
    reason="there is no CMake, or no C",
)
TRIANGULAR = FOLDER.parent / "triangular"
OWN = {
    "gemv": ("dots", 37, 41),
    "row_sum": ("sums", 37, 41),
    "batched_gemm": ("tiles", 3, 17, 9, 21),
    "gemm_bias_relu": ("goto", 33, 29, 41),
    "stencil": ("rows", 67, 130),
    "trmm": ("rows", 33, 29, 41),
}
"""Operations of examples: a family, and a shape."""
STRUCTURED = {
    "normalised": {"M": 33, "N": 29},
    "quantised": {"M": 33, "N": 29},
    "decayed": {"N": 67},
    "squared": {"N": 67},
    "largest": {"N": 67},
    "picked": {"M": 33, "N": 29},
}
"""Kernels of one's own with several outputs, in place, of integers and complex numbers."""
NAME = "of_logarithms_40_float32"
WITHOUT_AUTOTUNE = "import sys; sys.modules['autotune'] = None\n"


def stored(name: str, problem: Problem, extra: Sequence[Path] = (), **values: Any) -> TuningRecord:
    """A record of a family's default on this processor, in the user's cache."""
    family = load_families(target="cpu", operation=problem.operation, extra=extra)[name]
    device = make_target("cpu").device(problem)
    configuration = family.conform({**family.default(problem, device.limits), **values})
    made = record(
        operation=problem.operation,
        problem=problem,
        fingerprint=device.fingerprint,
        candidate=Candidate(name, configuration),
        family_digest=family.digest,
    )
    TuningCache(CacheLocations.at().create().database).add(made)
    return made


def export(made: TuningRecord, folder: Path, *options: str) -> Path:
    assert main(["export", made.id, str(folder), "--quiet", *options]) == 0
    return folder


@pytest.mark.cold  # LLVM of what is compiled here: of cached code Numba tells none
@needs_cmake
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param("goto", "float32", marks=pytest.mark.thorough),
        ("unrolled", "float64"),
    ],
)
def test_a_program_in_c_checks_itself(tmp_path: Path, family: str, dtype: str) -> None:
    made = stored(family, Gemm(33, 29, 41, dtype=dtype, threads=1))
    folder = export(made, tmp_path / "out")
    assert ("NRT_MemInfo" in next(folder.glob("gemm*.c")).read_text()) == (family == "unrolled")
    program = build(folder)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "right" in done.stdout
    (library,) = program.parent.glob("*.so")
    for shape in ((33, 29, 41), (1, 1, 1), (70, 3, 130)):
        check_library(library, shape, np.dtype(dtype))


def build(folder: Path) -> Path:
    """Build an exported folder; its program."""
    made, flags = folder / "build", "-DCMAKE_C_FLAGS=-Wall -Wextra"
    for command in (["cmake", "-S", folder, "-B", made, flags], ["cmake", "--build", made]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stderr
    (program,) = made.glob("*_check")
    return program


def check_library(path: Path, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    """Call the function on matrices whose rows are apart."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b, c = (random.random(each).astype(dtype) for each in ((m, n + 3), (n, k + 1), (m, k + 2)))
    real = ctypes.c_float if dtype == np.float32 else ctypes.c_double
    sizes = [ctypes.c_int64(each) for each in shape]
    places = [
        each
        for matrix in (a, b, c)
        for each in (ctypes.c_void_p(matrix.ctypes.data), ctypes.c_int64(matrix.shape[1]))
    ]
    expected = c.copy()
    expected[:, :k] = 1.5 * (a[:, :n] @ b[:, :k]) - 0.5 * c[:, :k]
    function = ctypes.CDLL(str(path))[path.stem.removeprefix("lib")]
    assert function(*sizes, real(1.5), *places[:4], real(-0.5), *places[4:]) == 0
    np.testing.assert_allclose(c, expected, rtol=1e-4)


def picked(x: Any, out: Any, ends: Any, keep: Any, Y: Any, sums: Any, way: int) -> None:
    begin = 0
    for i in range(out.shape[0]):
        Y[i] = x[out[i]] * keep[i]
        sums[i] = ends[i] - begin
        begin = ends[i]


def picking() -> Any:
    """Places, integers that ascend, a mask, and an operand called as an argument of all calls."""
    return autotune.kernel(
        picked,
        operands={
            "x": "N",
            "out": {"shape": "M", "dtype": "int32", "most": "N - 1"},
            "ends": {"shape": "M", "dtype": "int64", "most": "N", "ascending": True},
            "keep": "bool[M]",
        },
        out={"Y": "M", "sums": "int64[M]"},
        reference=lambda x, out, ends, keep: (x[out] * keep, np.diff(ends, prepend=0)),
        parameters={"way": [1, 2]},
    )


CASES = [
    # A product's programs are tested above.
    pytest.param(each, marks=pytest.mark.thorough if each == "gemm_bias_relu" else [])
    for each in (*OWN, "damped_rows", *STRUCTURED)
]


def own(case: str) -> tuple[TuningRecord, Path]:
    """A record of an operation that the engine does not know, and the folder of its family."""
    if case == "damped_rows":
        kernel = damping()
        problem = kernel.problem(M=19, N=23, threads=1)
        return stored(case, problem, [kernel.folder], threads=1), kernel.folder
    if case in STRUCTURED:
        kernel = picking() if case == "picked" else structured(case, "cpu", None)
        problem = kernel.problem(**STRUCTURED[case])
        return stored(case, problem, [kernel.folder]), kernel.folder
    folder = TRIANGULAR if case == "trmm" else FOLDER
    family, *shape = OWN[case]
    problem = find_operation(case, [folder]).at(tuple(shape), threads=1)
    return stored(family, problem, [folder], threads=1), folder


@pytest.mark.cold
@needs_cmake
@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_any_operation_is_a_program_in_c(tmp_path: Path, case: str) -> None:
    made, families = own(case)
    folder = export(made, tmp_path / "out", "--families", str(families))
    program = build(folder)
    (expected,) = folder.glob("*.expected")
    (header,) = folder.glob("*.h")
    if case in ("damped_rows", "decayed"):  # what it does, or its name where nothing says it
        summary = "Every element damped" if case == "damped_rows" else case
        assert f": {summary}, on one thread" in header.read_text()
    done = subprocess.run([program, expected], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right" in done.stdout
    for wrong in wrongly_expected(expected):
        done = subprocess.run([program, wrong], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout
        assert (f"{wrong} is damaged: " in done.stderr) == (wrong.suffix[1:] in ("empty", "short"))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_any_operation_is_a_module(tmp_path: Path, case: str) -> None:
    made, families = own(case)
    folder = export(made, tmp_path / "out", "--families", str(families), "--format", "python")
    (module,) = folder.glob("*.py")
    (expected,) = folder.glob("*.expected")
    script = [sys.executable, "-c", WITHOUT_AUTOTUNE + RUN_AGAIN, module, expected]
    done = subprocess.run(
        [*script, *wrongly_expected(expected)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *codes, empty, short = done.stdout.splitlines()[-5:]
    assert codes == ["0", "1", "1"], done.stdout
    size = expected.with_suffix(".short").stat().st_size + 5
    for told, held in ((empty, 0), (short, size - 5)):
        there = f"{held} bytes of {size} are there"
        assert told == f"{expected} is damaged: {there}; export the kernel again"


RUN_AGAIN = """
import runpy, shutil, sys

def code():
    try:
        runpy.run_path(module, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    except Exception:  # as an interpreter ends then
        return 1
    return 0

module, expected, *others = sys.argv[1:]
codes = [code()]
for other in others:
    shutil.copy(other, expected)
    codes.append(code())
for each in codes:
    print(each)
"""
"""Of one process, which has Numba to start once."""


def wrongly_expected(expected: Path) -> list[Path]:
    """Files by which a check must fail: an element is not as expected, or they are damaged."""
    rows = np.fromfile(expected, ROW)
    made = []
    for number, changed in enumerate((rows["expected"] + 1e-3, np.full(len(rows), np.nan))):
        wrong = rows.copy()
        wrong["expected"][-1] = changed[-1]
        made.append(expected.with_suffix(f".wrong{number}"))
        wrong.tofile(made[-1])
    for name, kept in (("empty", 0), ("short", -5)):
        made.append(expected.with_suffix(f".{name}"))
        made[-1].write_bytes(expected.read_bytes()[:kept])
    return made


def of_logarithms(x: Any, y: Any, way: int) -> None:
    for i in range(x.shape[0]):
        y[i] = np.log(x[i])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["cpp", "python"])
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"inputs": lambda N: {"x": np.arange(1.0, N + 1)}}, "inputs makes its operands"),
        ({"accept": lambda expected, got: True}, "accept judges its results"),
        ({"reference": lambda x: np.log(x - 9)}, "all its results are infinite or no numbers"),
    ],
)
def test_what_operands_by_a_hash_do_not_check_has_no_check(
    said: dict[str, Any], why: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = autotune.kernel(
        of_logarithms,
        operands={"x": "N"},
        out={"y": "N"},
        parameters={"way": [1, 2]},
        finite=True,
        **{"reference": lambda x: np.log(x), **said},
    )
    made = stored("of_logarithms", kernel.problem(N=40), [kernel.folder])
    out = tmp_path / "out"
    options = ["--families", str(kernel.folder), "--format", form]
    assert main(["export", made.id, str(out), *options]) == 0
    captured = capsys.readouterr()
    assert f"no check of {out}, since".replace(str(out), NAME) in captured.out + captured.err
    assert why in (out / "README.md").read_text()
    assert not [*out.glob("*.expected"), *out.glob("main.c")]
    if form == "python":
        calls = f"import numpy as np, {NAME} as made\n"
        calls += "x = np.linspace(1, 9, 40, dtype=np.float32)\n"
        calls += f"np.testing.assert_allclose(made.{NAME}(x), np.log(x), rtol=1e-5)\n"
        subprocess.run([sys.executable, "-c", WITHOUT_AUTOTUNE + calls], cwd=out, check=True)
    elif shutil.which("cmake") is not None:
        for command in (["-S", out, "-B", out / "build"], ["--build", out / "build"]):
            subprocess.run(["cmake", *command], check=True, capture_output=True)
        assert [*(out / "build").glob("*.so")]


STRUCTURED_CALLS = """
import numpy as np, {module} as exported
assert exported.check() <= 1
given = np.load("given.npz")
inputs = [given[each] for each in given if each.startswith("input")]
wanted = [given[each] for each in given if each.startswith("wanted")]
before = [each.copy() for each in inputs]
found = exported.{module}(*inputs, {scalars})
found = found if isinstance(found, tuple) else (found,)
for got, want in zip(found, wanted, strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert got.shape == want.shape
if {in_place}:
    assert found[0] is inputs[0]
    wrong = lambda: exported.{module}(inputs[0], inputs[0])
else:
    out = tuple(map(np.empty_like, found))
    again = exported.{module}(*before, out=out if len(out) > 1 else out[0], {scalars})
    assert all(one is other for one, other in zip(again if len(out) > 1 else [again], out))
    np.testing.assert_array_equal(out[-1], found[-1])
    wrong = lambda: exported.{module}(*before, out=out[:1])
try:
    wrong()
except ValueError as error:
    several = not {in_place} and len(out) > 1
    assert not several or str(error).startswith(f"out must be a tuple of {{len(out)}}, of "), error
    assert not several or str(error).endswith(", got 1 of them"), error
    raise SystemExit(0)
raise AssertionError
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", [each for each in STRUCTURED if each in DESCRIBED])
def test_modules_are_called_as_kernels_are(tmp_path: Path, case: str) -> None:
    inputs, scalars, wanted = operands(case)
    kernel = structured(case, "cpu", None)
    sizes = {"normalised": {"M": 60, "N": 35}, "quantised": {"M": 60, "N": 35}}
    dtype = "complex128" if case == "squared" else "float64"
    problem = kernel.problem(**sizes.get(case, {"N": 35}), dtype=dtype)
    made = stored(case, problem, [kernel.folder])
    options = ["--families", str(kernel.folder), "--format", "python"]
    folder = export(made, tmp_path / "out", *options)
    (module,) = folder.glob("*.py")
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    arrays = {f"input{number}": each for number, each in enumerate(inputs)}
    arrays |= {f"wanted{number}": np.asarray(each) for number, each in enumerate(several)}
    np.savez(folder / "given.npz", **arrays)
    calls = STRUCTURED_CALLS.format(
        module=module.stem,
        in_place=kernel.operation.in_place,
        scalars=", ".join(f"{name}={value}" for name, value in scalars.items()),
    )
    script = [sys.executable, "-c", WITHOUT_AUTOTUNE + calls]
    subprocess.run(script, cwd=folder, check=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_operands_are_drawn_alike_everywhere(dtype: str) -> None:
    """The hash once more, as the programs compute it: one element after the other, in integers."""

    def element(number: int, place: int) -> float:
        x = place + number * 0x9E3779B9 & 0xFFFFFFFF
        x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        return ((x ^ x >> 16) >> 8) / 2**23 - 1

    for number in (0, 1, 5):
        found = drawn(number, Array("A", (37, 41), dtype))
        values = [element(number, place) for place in range(37 * 41)]
        np.testing.assert_array_equal(found.reshape(-1), np.array(values).astype(dtype))
        assert abs(found.mean(dtype=float)) < 0.05
        assert abs(found.std(dtype=float) - 3**-0.5) < 0.05


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_module_needs_no_autotune(tmp_path: Path, threads: int) -> None:
    made = stored("loops", Gemm(20, 30, 10, threads=threads), threads=threads, order="ikj")
    folder = export(made, tmp_path / "out", "--format", "python")
    (module,) = folder.glob("*.py")
    script = f"""{WITHOUT_AUTOTUNE}
import numpy as np
import {module.stem} as exported
assert exported.check() <= 1
a, b = np.ones((20, 33), np.float32)[:, :30], np.ones((30, 10), np.float32)
assert (exported.{module.stem}(a, b) == 30).all()
out = np.ones((20, 10), np.float32)
assert exported.{module.stem}(a, b, out, alpha=2, beta=3) is out
assert (out == 63).all()
for wrong in (a.T, a.astype(float), np.asfortranarray(a), a.tolist()):
    try:
        exported.{module.stem}(wrong, b)
    except ValueError:
        continue
    raise AssertionError(wrong)
square, wide = np.ones((30, 33), np.float32), np.ones((20, 40), np.float32)
exported.{module.stem}(wide[:, :30], b, wide[:, 30:])  # columns of one array, side by side
assert (wide[:, 30:] == 30).all()
for wrong, out in (
    (a, a[:, :10]),
    (square[:20, :30], square[10:, 10:20]),
    (np.ma.masked_array(a, a < 0), None),
    (a, np.ma.masked_array(out)),
):
    try:
        exported.{module.stem}(wrong, b, out)
    except ValueError as error:
        assert "overlaps a" in str(error) or "masked" in str(error), error
        continue
    raise AssertionError(wrong)
"""
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.parametrize("family", ["loops", pytest.param("goto", marks=pytest.mark.thorough)])
def test_a_module_runs_where_nothing_can_be_kept(tmp_path: Path, family: str) -> None:
    """In a container that is read-only: from a zip, with no folder for a cache."""
    made = stored(family, Gemm(20, 30, 10, threads=1))
    folder = export(made, tmp_path / "out", "--format", "python")
    (module,) = folder.glob("*.py")
    zipped = shutil.make_archive(str(tmp_path / "made"), "zip", folder)
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), "/proc/nowhere")
    locators = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserWideCacheLocator"}
    for place, more, kept in (
        (zipped, nowhere, False),
        (folder, nowhere | locators, False),
        (folder, {}, True),
    ):
        script = f"""{WITHOUT_AUTOTUNE}
import numpy as np
import {module.stem} as exported
assert exported.CACHED == {kept}
a, b = np.ones((20, 30), np.float32), np.ones((30, 10), np.float32)
assert (exported.{module.stem}(a, b) == 30).all()
"""
        environment = {**os.environ, **more, "PYTHONPATH": str(place)}
        environment.pop("NUMBA_CACHE_DIR" if kept else "", None)
        subprocess.run([sys.executable, "-B", "-c", script], env=environment, check=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [((), "--threads 1"), (("--format", "fortran"), "cpp, python")],
)
def test_what_cannot_be_exported_is_said(tmp_path, options, told, capsys) -> None:
    made = stored("loops", Gemm(20, 30, 10, threads=2), threads=2)
    try:
        code = main(["export", made.id, str(tmp_path / "out"), *options])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch, capsys) -> None:
    made = stored("loops", Gemm(20, 30, 10, threads=1), threads=1)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine").write_text("mine")
    for folder in (kept, kept / "mine", kept / "mine" / "below"):
        assert main(["export", made.id, str(folder), "--format", "python"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert (kept / "mine").read_text() == "mine"
    monkeypatch.setattr(Path, "replace", _fail)
    assert main(["export", made.id, str(tmp_path / "new"), "--format", "python"]) == 2
    assert {each.name for each in tmp_path.iterdir()} <= {"kept", "autotune-cache"}
    monkeypatch.undo()
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "autotune-cache"))
    (tmp_path / "empty").mkdir()
    export(made, tmp_path / "empty", "--format", "python")
    export(made, tmp_path / "deep" / "er", "--format", "python")


def test_programs_of_several_processes_are_refused() -> None:
    made = stored("loops", Gemm(20, 30, 10, threads=1), threads=1)
    kernel = exportable(made, CacheLocations.at().database)
    for target in ("mpi", "hybrid"):
        with pytest.raises(InputError, match=f"emit --record {made.id}"):
            target_class(target).exporter.export(kernel, "cpp")


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")
