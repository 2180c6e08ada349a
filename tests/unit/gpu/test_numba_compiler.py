"""Numba CUDA modules: binaries like any other, and right in Numba's simulator."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.core.configuration import Configuration
from autotune.core.errors import CompileError, MissingDependencyError
from autotune.core.limits import GpuLimits
from autotune.families.family import KernelFamily
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source, render
from autotune.gpu.compiling import (
    CompileReply,
    CompileRequest,
    Refused,
    compile_kept,
    compile_source,
    compile_worker,
)
from autotune.gpu.launch.code import make_program
from autotune.gpu.nvidia import cubin, numba_compiler
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.numba_compiler import compile_numba, toolchain
from autotune.gpu.nvidia.nvrtc import Compiled
from autotune.gpu.nvidia.target import NumbaCudaTarget
from autotune.measuring.sharing import WorkerPool
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

pytest.importorskip("numba_cuda", reason="pip install '.[numba-cuda]'")


KERNEL_PARAMETER = 0x17  # attribute of a binary: a parameter's number, offset and size

MODULE = """
from numba import cuda, float32

THREADS = 64
SIGNATURE = "void(CPointer(float32), uint32)"


@cuda.jit(launch_bounds=THREADS)
def gemm(c, n):
    shared = cuda.shared.array(128, float32)
    shared[cuda.threadIdx.x] = c[cuda.threadIdx.x]
    cuda.syncthreads()
    c[cuda.threadIdx.x] = shared[n]
"""


def a_source(text: str = MODULE) -> Source:
    return Source(text, "gemm", (), "numba-cuda")


def emitted(target: str, dtype: str, limits: GpuLimits) -> Source:
    family = load_families(target=target)["naive"]
    configuration = family.default(Gemm(64, 64, 64, dtype=dtype), limits)
    return render(family, configuration, dtype=dtype)


def written(folder: Path, text: str) -> Path:
    path = folder / f"gemm_{abs(hash(text))}.py"
    path.write_text(text)
    return path


def parameters(binary: bytes) -> list[bytes]:
    """What the main kernel's parameters are, as the driver is told."""
    (section,) = (each for each in cubin._sections(binary) if each.name == ".nv.info.gemm")
    return sorted(
        bytes(payload)
        for attribute, payload in cubin._attributes(section)
        if attribute == KERNEL_PARAMETER
    )


def test_a_module_becomes_a_binary(tmp_path: Path) -> None:
    compiled = compile_numba(written(tmp_path, MODULE), "gemm", "sm_90")
    assert compiled.architecture == "sm_90"
    assert compiled.kernels.keys() == {"gemm"}
    kernel = compiled.kernels["gemm"]
    assert f"Used {kernel.registers} registers" in compiled.log
    assert (kernel.shared_bytes, kernel.local_bytes, kernel.max_threads) == (512, 0, 64)
    assert compiled.spill_bytes == {"gemm": 0}
    assert compiled.seconds > 0
    assert pickle.loads(pickle.dumps(compiled)) == compiled


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", ["t4", "a100", "rtx4090", "h200", "b200"])
def test_arguments_lie_where_those_of_cuda_lie(dtype: str, device: str) -> None:
    limits = find_gpu(device).limits
    ours, theirs = (
        compile_source(emitted(target, dtype, limits), "naive", limits.architecture).cubin
        for target in ("numba-cuda", "cuda")
    )
    assert len(parameters(ours)) == 11
    assert parameters(ours) == parameters(theirs)


def test_the_assembly_multiplies_in_the_element_type(tmp_path: Path) -> None:
    limits = find_gpu("h200").limits
    for family in load_families(target="numba-cuda").values():
        configuration = family.default(Gemm(512, 512, 512), limits)
        path = written(tmp_path, render(family, configuration).text)
        ptx = numba_compiler._ptx(path, "gemm", "sm_90")
        assert "fma.rn.f32" in ptx
        assert ".f64" not in ptx  # of an index, where signed and unsigned integers meet
        assert not re.search(r"\b(ld|st)\.local", ptx), "arrays of a thread must be registers"
        assert not re.search(r"\b(ld|st)\.[fb]\d", ptx), "operands must be known to be global"
        assert not re.search(r"_ZN|_cudapy_", ptx), "names must not depend on the process"


def test_equal_sources_give_equal_binaries(tmp_path: Path) -> None:
    noted = MODULE.replace("THREADS = 64", "THREADS = 64  # two warps")
    first, second = (
        compile_numba(written(tmp_path, text), "gemm", "sm_80").cubin for text in (MODULE, noted)
    )
    assert first == second


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shared[n]", "shared[n", "SyntaxError"),
        ("shared[n]", "undefined[n]", "undefined"),
        ("shared[n]", "'text'", r"Cannot cast Literal\[str\]\(text\) to float32"),
        ("SIGNATURE =", "OTHER =", r"gemm_\d+\.py must define SIGNATURE$"),
        ("def gemm", "def other", "must define gemm$"),
        ("array(128", "array(1000000", "too much shared data"),
        ("    cuda.syncthreads()", "    return 1", r"No conversion from Literal\[int\]\(1\)"),
    ],
)
def test_what_is_refused_has_a_reason_of_one_line(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, MODULE.replace(old, new))
    with pytest.raises(CompileError, match=message) as caught:
        compile_numba(path, "gemm", "sm_90")
    assert "\n" not in str(caught.value)


def test_an_architecture_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="does not compile for sm_13") as caught:
        compile_numba(written(tmp_path, MODULE), "gemm", "sm_13")
    assert "\n" not in str(caught.value)


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What was found out about the compiler is found out again, before and after."""
    found = (numba_compiler.check_numba, numba_compiler.load_numba, numba_compiler._bindings)
    for function in found:
        function.cache_clear()
    yield
    for function in found:
        function.cache_clear()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("missing", "named"),
    [("nvvm", "NVVM"), ("nvjitlink", "nvJitLink"), ("runtime", "the CUDA runtime")],
)
def test_a_part_that_is_missing_is_named(
    missing: str, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, f"cuda.bindings.{missing}", None)
    with pytest.raises(
        MissingDependencyError, match=rf"{named} .*pip install .*numba-cuda"
    ) as error:
        compile_numba(written(tmp_path, MODULE), "gemm", "sm_90")
    assert "\n" not in str(error.value)
    assert (toolchain()["nvjitlink"] == "none") == (missing == "nvjitlink")


def test_the_simulator_compiles_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path;"
        "from autotune.gpu.nvidia.numba_compiler import compile_numba;"
        "compile_numba(Path(sys.argv[1]), 'gemm', 'sm_90')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(written(tmp_path, MODULE))],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "1"},
    )
    assert done.stderr.splitlines()[-1].endswith("unset NUMBA_ENABLE_CUDASIM")


def test_versions_without_numba() -> None:
    script = (
        "import sys; from autotune.gpu.nvidia.numba_compiler import toolchain;"
        "print(toolchain()); print('numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        check=True,
    )
    versions, imported = done.stdout.splitlines()
    assert metadata.version("numba-cuda") in versions
    assert versions == str(toolchain())
    assert imported == "False"


def test_binaries_are_kept_beside_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ProgramCache(tmp_path)
    request = CompileRequest(a_source(), "demo", "sm_90")
    compiled = compile_kept(programs, request)
    assert isinstance(compiled, Compiled)
    (kept,) = (tmp_path / "numba-cuda").glob("*.cubin")
    assert metadata.version("numba-cuda") in kept.name
    assert programs.path(request.source, "demo").read_text() == MODULE
    monkeypatch.setattr(numba_compiler, "compile_numba", None)
    again = compile_kept(programs, request)
    assert isinstance(again, Compiled)
    assert (again.cubin, again.kernels) == (compiled.cubin, compiled.kernels)


@pytest.mark.cold
def test_a_pool_compiles_modules_and_cuda(tmp_path: Path) -> None:
    pool = WorkerPool(
        compile_worker,
        ProgramCache(tmp_path),
        ("cuda", "numba-cuda"),
        count=1,
        replies=CompileReply,
    )
    cuda = Source('extern "C" __global__ void gemm(float* c) { *c = 1; }', "gemm", (), "cuda")
    try:
        sources = {"good": a_source(), "bad": a_source("gemm = 1"), "cuda": cuda}
        replies = {
            name: pool.submit(CompileRequest(source, name, "sm_90"), 120.0)
            for name, source in sources.items()
        }
        for name in ("good", "cuda"):
            assert isinstance(replies[name].result(), Compiled), replies[name].result()
        assert isinstance(replies["bad"].result(), Refused)
    finally:
        pool.close()


def test_a_program_of_any_layout(tmp_path: Path) -> None:
    """Numba families read plain operands; others are copied by a kernel of CUDA C++."""
    target = NumbaCudaTarget()
    device = target.device(name="h200")
    family = load_families(target="numba-cuda")["block"]
    problem = Gemm(256, 192, 320, layout="tt")
    assert isinstance(device.limits, GpuLimits)
    configuration = family.default(problem, device.limits)
    program = make_program(family, configuration, problem, device.limits, ProgramCache(tmp_path))
    assert program.flips == (True, True)
    assert cubin.read_cubin(program.cubin).keys() == {program.plan.steps[0].kernel}
    assert "transpose" in cubin.read_cubin(program.support)


def test_a_numpy_that_numba_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"numba-cuda": "0.30.4", "numpy": "2.5.2"}
    monkeypatch.setattr(numba_compiler.metadata, "version", found.__getitem__)
    with pytest.raises(MissingDependencyError, match=r"0\.30\.4 uses .* NumPy 2\.5\.2"):
        numba_compiler.check_numba.__wrapped__()


CONFIGURATIONS = 4
"""Per family and dtype."""

MOST_THREADS = 64
"""Per block: the simulator starts a Python thread for each."""

# A process of its own runs this: the simulator is chosen when Numba is imported.
SIMULATION = """
import importlib.util, json, sys
import numpy as np
from numba import cuda

GAP = 3  # elements between the rows of every operand
jit = cuda.jit


def simulated(launch_bounds):  # the simulator has no compiler, whose registers they would bound
    return jit()


cuda.jit = simulated
for job in json.load(sys.stdin):
    spec = importlib.util.spec_from_file_location("emitted", job["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with np.load(job["operands"]) as operands:
        (m, n), k = operands["a"].shape, operands["b"].shape[1]
        stored = [
            np.pad(operands[name], ((0, 0), (0, GAP)), constant_values=np.nan) for name in "abc"
        ]
    a, b, c = (cuda.to_device(each.ravel()) for each in stored)
    lda, ldb, ldc = (each.shape[1] for each in stored)
    alpha, beta = (stored[2].dtype.type(job[name]) for name in ("alpha", "beta"))
    kernel = module.gemm[tuple(job["grid"]), tuple(job["block"]), 0, job["shared_bytes"]]
    kernel(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
    result = c.copy_to_host().reshape(m, ldc)
    assert np.isnan(result[:, -GAP:]).all(), "wrote between the rows of C"
    np.save(job["result"], result[:, :-GAP])
"""


@pytest.fixture(scope="module")
def families() -> dict[str, KernelFamily]:
    return load_families(target="numba-cuda", operation="gemm")


@pytest.fixture(scope="module")
def limits() -> GpuLimits:
    return find_gpu("h200").limits


def run(script: str, given: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def written_source(
    family: KernelFamily, configuration: Configuration, dtype: str, folder: Path
) -> str:
    """The path of an emitted module."""
    folder.mkdir()
    path = folder / "gemm.py"
    path.write_text(render(family, configuration, dtype=dtype).text)
    return str(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["naive", "tiled", "block"])
def test_random_configurations_compute_the_product(
    name: str, dtype: str, families: dict[str, KernelFamily], limits: GpuLimits, tmp_path: Path
) -> None:
    family = families[name]
    assert family.launch is not None
    limits = dataclasses.replace(limits, max_threads_per_block=MOST_THREADS)
    rng = np.random.default_rng(11)
    jobs: list[dict[str, Any]] = []
    expected = []
    for number in range(CONFIGURATIONS):
        m, n, k = (int(rng.choice([1, *rng.integers(2, 28, 3)])) for _ in "mnk")
        problem = Gemm(m=m, n=n, k=k, dtype=dtype)
        space = family.space(problem, limits)
        configuration = space[int(space.sample(1, rng)[0])]
        names = family.values(configuration, problem, limits)
        folder = tmp_path / str(number)
        alpha, beta = (-0.75, 0.5) if number % 2 else (1.0, 0.0)
        job: dict[str, Any] = {
            "configuration": str(configuration),
            "source": written_source(family, configuration, dtype, folder),
            "grid": [each.evaluate(names) for each in family.launch.grid],
            "block": [each.evaluate(names) for each in family.launch.block],
            "shared_bytes": family.launch.shared_bytes.evaluate(names),
            "operands": str(folder / "operands.npz"),
            "result": str(folder / "c.npy"),
            "alpha": alpha,
            "beta": beta,
        }
        a, b, c = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((m, n), (n, k), (m, k)))
        exact = alpha * (a.astype(float) @ b.astype(float))
        if beta == 0:
            c.fill(np.nan)  # must not be read
        else:
            exact += beta * c.astype(float)
        np.savez(folder / "operands.npz", a=a, b=b, c=c)
        jobs.append(job)
        expected.append(exact)

    run(SIMULATION, jobs, NUMBA_ENABLE_CUDASIM="1")
    for job, exact in zip(jobs, expected, strict=True):
        error = np.abs(np.load(job["result"]) - exact).max()
        assert error < 30 * np.finfo(dtype).eps, f"{job['configuration']} on {exact.shape}"
