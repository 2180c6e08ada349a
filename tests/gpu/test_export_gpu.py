"""Exported kernels on a GPU: the programs that come with them say that they are right."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from operation_examples import FOLDER
from records import record
from structured_kernels import made as structured

from autotune import Gemm
from autotune.cli import main
from autotune.core.configuration import Candidate
from autotune.core.paths import CacheLocations
from autotune.store import TuningCache
from autotune.targets.families import find_operation, load_families
from autotune.targets.registry import make_target

pytestmark = pytest.mark.gpu

CASES = {
    "naive": Gemm(129, 200, 67),
    "pipelined": Gemm(256, 2048, 192),
    "skinny": Gemm(512, 4096, 4, dtype="bfloat16", out_dtype="float32"),
}


OWN = {
    "gemv": ("dots", 300, 1000),
    "row_sum": ("sums", 300, 1000),
    "batched_gemm": ("tiles", 64, 64, 64, 64),
    "gemm_bias_relu": ("pipelined", 256, 200, 192),
    "stencil": ("columns", 129, 200),
}
STRUCTURED = {
    "normalised": (129, 200),
    "quantised": (129, 200),
    "decayed": (1000,),
    "squared": (1000,),
    "largest": (1000,),
}
"""Kernels of one's own with several outputs, in place, of integers and complex numbers."""


@pytest.mark.parametrize("form", ["cpp", "python"])
@pytest.mark.parametrize("name", [*CASES, *OWN, *STRUCTURED])
def test_the_check_of_an_exported_kernel_passes(tmp_path: Path, name: str, form: str) -> None:
    if name in CASES:
        problem, extra = CASES[name], []
    elif name in STRUCTURED:
        kernel = structured(name, "cuda", None)
        extra = [kernel.folder]
        dtype = "complex128" if name == "squared" else "float32"
        problem = kernel.operation.at(STRUCTURED[name], dtype=dtype)
    else:
        extra = [FOLDER]
        operation, (name, *shape) = name, OWN[name]
        problem = find_operation(operation, extra).at(tuple(shape))
    family = load_families(target="cuda", operation=problem.operation, extra=extra)[name]
    device = make_target("cuda").device(problem)
    made = record(
        operation=problem.operation,
        problem=problem,
        target="cuda",
        fingerprint=device.fingerprint,
        candidate=Candidate(name, family.default(problem, device.limits)),
        family_digest=family.digest,
    )
    TuningCache(CacheLocations.at().create().database).add(made)
    folder = tmp_path / "out"
    options = ["--format", form, "--quiet", *(f"--families={each}" for each in extra)]
    assert main(["export", made.id, str(folder), *options]) == 0
    if form == "python":
        if importlib.util.find_spec("torch") is None:
            pytest.skip("PyTorch is not installed: the module checks itself with it")
        (module,) = folder.glob("*.py")
        subprocess.run([sys.executable, module], check=True)
        return
    if shutil.which("nvcc") is None or shutil.which("cmake") is None:
        pytest.skip("there is no CUDA toolkit, or no CMake")
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build"], check=True)
    subprocess.run(["cmake", "--build", folder / "build"], check=True)
    (program,) = (folder / "build").glob("*_check")
    (cubin,) = folder.glob("*.cubin")
    subprocess.run([program, cubin, *folder.glob("*.expected")], check=True)
