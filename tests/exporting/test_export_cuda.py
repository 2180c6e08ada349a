"""Exported kernels for GPUs: built for real, and run on a stand-in for the driver."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from operation_examples import FOLDER
from own_kernels import dots
from records import record
from structured_kernels import DESCRIBED
from structured_kernels import made as structured

from autotune.cli import main
from autotune.cli.records import shipped
from autotune.core.configuration import Candidate
from autotune.core.device import DeviceFingerprint
from autotune.core.paths import CacheLocations
from autotune.families.gpu.launch import LaunchPlan, LaunchStep, MappedOperand, MappedRegion
from autotune.operations.problem import Gemm
from autotune.store import BinaryRecord, TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from autotune.store import TuningRecord

NVCC = shutil.which("nvcc")
NAME = "gemm_40x70x50_float32"
PROBLEM = Gemm(40, 70, 50)
RUNTIME = (4, 1, 0)
CUBIN = b"\x7fELF one"
CALLS = f"""
import numpy as np
import {NAME} as exported

class Array:
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__

random = np.random.default_rng(0)
a = random.random((40, 96), np.float32)[:, :70]
b, c = random.random((70, 50), np.float32), random.random((40, 50), np.float32)
expected = 2 * (a @ b) + 3 * c
kernel = exported.load()
kernel(Array(a), Array(b), Array(c), alpha=2, beta=3)
np.testing.assert_allclose(c, expected, rtol=1e-5)
for wrong in (a.T, a.astype(float), np.asfortranarray(a)):
    try:
        kernel(Array(wrong), Array(b), Array(c))
    except ValueError as error:
        assert "a " in str(error)
    else:
        raise AssertionError(wrong.strides)
"""

needs_toolkit = pytest.mark.skipif(
    NVCC is None or shutil.which("cmake") is None, reason="there is no CUDA toolkit, or no CMake"
)
needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None,
    reason="NVRTC is not installed: pip install '.[compile]'",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that stands in for NVIDIA's driver."""
    assert NVCC is not None
    folder = tmp_path_factory.mktemp("driver")
    includes = Path(NVCC).resolve().parents[1] / "include"
    if not (includes / "cuda.h").exists():
        includes = Path("/usr/local/cuda/include")
    library = folder / "libcuda.so.1"
    source = Path(__file__).with_name("driver.c")
    options = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{includes}"]
    subprocess.run(["cc", *options, "-o", library, source], check=True)
    (folder / "libcuda.so").symlink_to(library)
    return folder


def stored(**changes: Any) -> TuningRecord:
    """A record of a GPU kernel, in the user's cache with its binary."""
    steps = (
        LaunchStep("before", (1, 1, 1), (32, 1, 1)),
        LaunchStep("gemm", (2, 1, 1), (64, 1, 1), 50000),
    )
    launch = LaunchPlan(PROBLEM.shape, steps, 4096, RUNTIME, 64)
    family = load_families(target="cuda")["naive"]
    fingerprint = DeviceFingerprint("cuda", "NVIDIA H200", {"compute_capability": 90})
    limits = make_target("cuda").device(PROBLEM, "h200").limits
    fields: dict[str, Any] = {
        "problem": PROBLEM,
        "target": "cuda",
        "fingerprint": fingerprint,
        "candidate": Candidate("naive", family.default(PROBLEM, limits)),
        "family_digest": family.digest,
        "binary": BinaryRecord(hashlib.sha256(CUBIN).hexdigest(), "sm_90", launch),
    }
    made = record(**(fields | changes))
    TuningCache(CacheLocations.at().create().database).add(made, binaries=[CUBIN])
    return made


def stored_own(
    name: str, shape: tuple[int, ...], family: str = "", folder: Path = FOLDER, **changes: Any
) -> TuningRecord:
    """A record of an operation of one's own; its kernel is compiled unless a binary is given."""
    families = load_families(target="cuda", operation=name, extra=[folder])
    chosen = families[family] if family else next(iter(families.values()))
    problem = chosen.defined.at(shape, dtype=chosen.dtypes[0])
    limits = make_target("cuda").device(problem, "h200").limits
    fields: dict[str, Any] = {
        "operation": name,
        "problem": problem,
        "candidate": Candidate(chosen.name, chosen.default(problem, limits)),
        "family_digest": chosen.digest,
        "binary": None,
    }
    return stored(**(fields | changes))


def export(made: TuningRecord, folder: Path, *options: str) -> Path:
    assert main(["export", made.id, str(folder), "--quiet", *options]) == 0
    return folder


def build(folder: Path, driver: Path) -> Path:
    """Build an exported folder; its program."""
    options = [f"-DCUDA_cuda_driver_LIBRARY={driver / 'libcuda.so'}", "-DCMAKE_CXX_FLAGS=-Wall"]
    for command in (
        ["-S", folder, "-B", folder / "build", *options],
        ["--build", folder / "build"],
    ):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stderr
    (program,) = (folder / "build").glob("*_check")
    return program


def run(command: list[Any], driver: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(driver),
            "STAND_IN_EXPECTS": ",".join(map(str, RUNTIME)),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@needs_toolkit
def test_a_program_in_cpp_checks_itself(tmp_path: Path, driver: Path) -> None:
    folder = export(stored(), tmp_path / "out")
    program = build(folder, driver)
    cubin = folder / f"{NAME}.cubin"
    assert cubin.read_bytes() == CUBIN
    right = run([program, cubin], driver)
    assert (right.returncode, right.stderr) == (0, "")
    assert f"{NAME}: right" in right.stdout
    wrong = run([program, cubin], driver, STAND_IN_WRONG="1")
    assert wrong.returncode == 1
    assert "WRONG" in wrong.stdout
    assert run([program, folder / "main.cpp"], driver).returncode == 1
    refused = run([program, cubin], driver, STAND_IN_EXPECTS="4,2")
    assert (refused.returncode, refused.stderr) == (1, f"{NAME}: cuLaunchKernel: REFUSED\n")


OWN = [name for name in DESCRIBED if name != "spmv"]
"""Kernels of one's own with several outputs, in place, of integers and complex numbers."""

GEMV = (40, 70)
GEMV_NAME = "gemv_40x70_float32"
GEMV_BINARY = BinaryRecord(
    hashlib.sha256(CUBIN).hexdigest(),
    "sm_90",
    LaunchPlan(GEMV, (LaunchStep("gemv", (2, 1, 1), (64, 1, 1)),)),
)
GEMV_CALLS = f"""
import numpy as np
import {GEMV_NAME} as exported

class Array:
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__

random = np.random.default_rng(0)
a = random.random((40, 96), np.float32)[:, :70]
x, y = random.random(70, np.float32), random.random(40, np.float32)
expected = 2 * (a @ x) + 3 * y
kernel = exported.load()
kernel(Array(a), Array(x), Array(y), alpha=2, beta=3)
np.testing.assert_allclose(y, expected, rtol=1e-5)
apart = np.zeros((70, 2), np.float32)[:, 0]
for wrong in ((a.T, x), (a, apart), (a, x.astype(float)), (np.asfortranarray(a), x)):
    try:
        kernel(*map(Array, wrong), Array(y))
    except ValueError:
        continue
    raise AssertionError(wrong)
for y in (x[:40], a[0, :40]):
    try:
        kernel(Array(a), Array(x), Array(y))
    except ValueError as error:
        assert "out must overlap no input" in str(error), error
        continue
    raise AssertionError(y)
"""


@needs_toolkit
def test_a_program_of_any_operation_checks_itself(tmp_path: Path, driver: Path) -> None:
    made = stored_own("gemv", GEMV, binary=GEMV_BINARY)
    folder = export(made, tmp_path / "out", "--families", str(FOLDER))
    program = build(folder, driver)
    files = [folder / f"{GEMV_NAME}.cubin", folder / f"{GEMV_NAME}.expected"]
    right = run([program, *files], driver, STAND_IN_EXPECTS="")
    assert (right.returncode, right.stderr) == (0, "")
    assert f"{GEMV_NAME}: right" in right.stdout
    wrong = run([program, *files], driver, STAND_IN_EXPECTS="", STAND_IN_WRONG="1")
    assert wrong.returncode == 1
    assert "WRONG" in wrong.stdout
    for kept in (-24, 0):
        files[1].write_bytes(files[1].read_bytes()[:kept])
        done = run([program, *files], driver)
        assert done.returncode == 1
        assert f"{files[1]} is damaged: export the kernel again" in done.stderr


@needs_toolkit
def test_a_module_of_any_operation_launches_on_arrays(tmp_path: Path, driver: Path) -> None:
    made = stored_own("gemv", GEMV, binary=GEMV_BINARY)
    folder = export(made, tmp_path / "out", "--families", str(FOLDER), "--format", "python")
    done = run([sys.executable, "-c", GEMV_CALLS], driver, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    (folder / f"{GEMV_NAME}.expected").write_bytes(b"")
    wrong = f"import {GEMV_NAME} as exported; exported._expected()"
    done = run([sys.executable, "-c", wrong], driver, PYTHONPATH=str(folder))
    assert f"{GEMV_NAME}.expected is damaged: 0 bytes of" in done.stderr


@needs_nvrtc
@needs_toolkit
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "shape", "family"),
    [
        ("batched_gemm", (64, 64, 64, 64), ""),
        pytest.param("gemm_bias_relu", (40, 70, 50), "pipelined", marks=pytest.mark.thorough),
        ("row_sum", (40, 70), ""),
        ("stencil", (33, 50), ""),
        ("dots", (40, 70), ""),
        *((name, (33, 29) if name in ("normalised", "quantised") else (67,), "") for name in OWN),
    ],
)
def test_any_operation_is_compiled_and_built(
    tmp_path: Path, driver: Path, name: str, shape: tuple[int, ...], family: str
) -> None:
    families = FOLDER
    if name in ("dots", *OWN):
        families = (dots() if name == "dots" else structured(name, "cuda", None)).folder
    made = stored_own(name, shape, family, families)
    folder = export(made, tmp_path / "cpp", "--families", str(families))
    program = build(folder, driver)
    if name in ("decayed", "squared"):  # which the stand-in computes
        files = [*folder.glob("*.cubin"), *folder.glob("*.expected")]
        right = run([program, *files], driver, STAND_IN_EXPECTS="")
        assert (right.returncode, right.stderr) == (0, ""), right.stdout
        wrong = run([program, *files], driver, STAND_IN_EXPECTS="", STAND_IN_WRONG="1")
        assert wrong.returncode == 1
        assert "WRONG" in wrong.stdout
    assert next(folder.glob("*.cubin")).read_bytes()[:4] == b"\x7fELF"
    folder = export(made, tmp_path / "py", "--families", str(families), "--format", "python")
    (module,) = folder.glob("*.py")
    script = f"import runpy; print(runpy.run_path({str(module)!r})['ARGUMENTS'].size)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


IN_PLACE_CALLS = """
import numpy as np
import decayed_67_float32 as exported

class Array:
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__

state, drive = Array(np.ones(67, np.float32)), Array(np.arange(67, dtype=np.float32))
expected = state.array / 4 + 1.5 * drive.array
assert exported.load()(state, drive, steps=2) is state
np.testing.assert_array_equal(state.array, expected)
try:
    exported.load()(state, state)
except ValueError as error:
    assert "state must overlap no input" in str(error), error
else:
    raise AssertionError
"""

OUTPUTS_CALLS = """
import numpy as np
import squared_67_complex128 as exported

class Array:
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__

z, w, far = (Array(np.ones(67, each)) for each in (complex, complex, bool))
z.array[3] = 0.5j
given = exported.load()(z, (w, far))
assert given == (w, far)
np.testing.assert_array_equal(w.array, z.array**2)
assert not far.array.any()
for wrong in ((z, far), (w, w), (w, Array(np.ones(67, np.int8)))):
    try:
        exported.load()(z, wrong)
    except ValueError:
        continue
    raise AssertionError
for wrong, got in (((w,), "1 of them"), (w, "Array"), ((w, far, far), "3 of them")):
    try:
        exported.load()(z, wrong)
    except ValueError as error:
        assert str(error) == f"out must be a tuple of 2, of w, far, got {got}", error
        continue
    raise AssertionError
"""


@needs_nvrtc
@needs_toolkit
@pytest.mark.parametrize(
    ("name", "calls"), [("decayed", IN_PLACE_CALLS), ("squared", OUTPUTS_CALLS)]
)
def test_modules_take_outputs_as_kernels_do(
    tmp_path: Path, driver: Path, name: str, calls: str
) -> None:
    families = structured(name, "cuda", None).folder
    made = stored_own(name, (67,), "", families)
    options = ["--families", str(families), "--format", "python"]
    folder = export(made, tmp_path / "out", *options)
    done = run([sys.executable, "-c", calls], driver, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr


@needs_nvrtc
@needs_toolkit
def test_kernels_that_a_function_judges_have_no_check(
    tmp_path: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    families = dots(accept=lambda expected, got: True).folder
    made = stored_own("dots", (40, 70), "", families)
    told = "no check of dots_40x70_float32, since"
    for form in ("cpp", "python"):
        folder = tmp_path / form
        options = ["--families", str(families), "--format", form]
        assert main(["export", made.id, str(folder), *options]) == 0
        captured = capsys.readouterr()
        assert told in captured.out + captured.err
        assert told in (folder / "README.md").read_text()
        assert not [*folder.glob("*.expected"), *folder.glob("main.cpp")]
    assert "check" not in (tmp_path / "cpp" / "CMakeLists.txt").read_text()
    call = "import dots_40x70_float32 as made; made.load()"
    done = run([sys.executable, "-c", call], driver, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr


@needs_nvrtc
def test_what_is_not_kept_is_compiled_again(tmp_path: Path) -> None:
    folder = export(stored(binary=None), tmp_path / "out")
    assert (folder / f"{NAME}.cubin").read_bytes()[:4] == b"\x7fELF"
    assert "void" in (folder / f"{NAME}_source.cu").read_text()


@needs_toolkit
def test_a_module_launches_on_arrays(tmp_path: Path, driver: Path) -> None:
    folder = export(stored(), tmp_path / "out", "--format", "python")
    done = run([sys.executable, "-c", CALLS], driver, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["cpp", "python"])
def test_shipped_records_are_exported_with_their_binaries(
    tmp_path: Path, form: str, capsys
) -> None:
    families = load_families(target="cuda", operation="gemm")
    kept = [each for each in shipped() if each.fingerprint.kind == "cuda"]
    launches = {name: each.launch for name, each in families.items()}
    able = [
        each
        for each in kept
        if (launch := launches[each.candidate.family]) and not launch.tensor_maps
    ]
    assert able
    for number, made in enumerate(able[::8]):
        folder = export(made, tmp_path / str(number), "--format", form, "--json")
        told = json.loads(capsys.readouterr().out)
        assert sorted(each.name for each in folder.iterdir()) == told["files"]
        (cubin,) = folder.glob("*.cubin")
        assert made.binary is not None
        assert hashlib.sha256(cubin.read_bytes()).hexdigest() == made.binary.digest
        assert json.loads((folder / "record.json").read_text())["id"] == made.id


HOSTILE = '*/ #include "evil" """ \\ import evil; <img src=evil> `evil` [evil](evil) ??/'


@pytest.mark.parametrize("form", ["cpp", "python"])
def test_what_strangers_wrote_stays_in_the_record(tmp_path: Path, form: str) -> None:
    made = stored(fingerprint=DeviceFingerprint("cuda", HOSTILE, {"compute_capability": 90}))
    folder = export(made, tmp_path / "out", "--format", form)
    for file in folder.iterdir():
        if file.name != "record.json" and file.suffix != ".cubin":
            text = file.read_text()
            for piece in ('"evil"', "evil;", "<img", "`evil`", "[evil]", "??/", "*/ "):
                assert piece not in text, (file, piece)
    if form == "python":
        compile((folder / f"{NAME}.py").read_text(), NAME, "exec")


@pytest.mark.parametrize(
    ("form", "file", "told"),
    [
        ("python", f"{NAME}.py", '("split", (1, 1, 1), (32, 1, 1), 60000),'),
        ("cpp", f"{NAME}.hpp", '{"split", {1, 1, 1}, {32, 1, 1}, 60000},'),
    ],
)
def test_kernels_before_have_dynamic_shared_memory(
    tmp_path: Path, form: str, file: str, told: str
) -> None:
    split = LaunchStep("split", (1, 1, 1), (32, 1, 1), 60000)
    plan = LaunchPlan(PROBLEM.shape, (split, LaunchStep("gemm", (2, 1, 1), (64, 1, 1))))
    digest = hashlib.sha256(CUBIN).hexdigest()
    made = stored(binary=BinaryRecord(digest, "sm_90", plan))
    assert told in (export(made, tmp_path / "out", "--format", form) / file).read_text()


@pytest.mark.parametrize(
    "mapped",
    [
        MappedOperand("A", False, (64, 32)),
        MappedOperand("high", False, (64, 64), region=MappedRegion("bfloat16", 0, 8, 64, 64)),
    ],
)
def test_kernels_that_take_tensor_maps_are_refused(
    tmp_path: Path, mapped: MappedOperand, capsys
) -> None:
    made = stored()
    assert made.binary is not None
    launch = replace(made.binary.launch, maps=(mapped,))
    made = stored(binary=replace(made.binary, launch=launch), median_s=2e-3)
    assert main(["export", made.id, str(tmp_path / "out")]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "whose kernels take tensor maps, which exported programs do not make" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [('gemm"); system("x', 1), ("gemm x", 1), ("a" * 65, 2)],  # a record that is read, or not
)
def test_kernels_that_are_no_names_are_refused(
    tmp_path: Path, name: str, code: int, capsys
) -> None:
    launch = LaunchPlan(PROBLEM.shape, (LaunchStep(name, (2, 1, 1), (64, 1, 1)),))
    made = stored()
    assert made.binary is not None
    made = stored(binary=replace(made.binary, launch=launch), median_s=2e-3)
    assert main(["export", made.id, str(tmp_path / "out")]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
