"""The CUDA target where no kernel runs: choosing it, its devices, binaries instead of NVRTC."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import Device, DeviceLimits
from autotune.core.errors import InputError, NotTunedError, UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.core.paths import CacheLocations
from autotune.cpu.target import CpuTarget
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import Binary, LaunchPlan, LaunchStep
from autotune.families.gpu.planning import Planner
from autotune.families.offers import default_family
from autotune.families.program_cache import ProgramCache
from autotune.gpu.compiling import CompileRequest
from autotune.gpu.launch import code, kernel
from autotune.gpu.launch.code import make_program
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.nvidia import presence
from autotune.gpu.nvidia.cubin import read_cubin
from autotune.gpu.nvidia.target import CudaTarget, NumbaCudaTarget
from autotune.operations.problem import Gemm
from autotune.runtime import loading as runtime
from autotune.serving.target import Work
from autotune.store import (
    BinaryRecord,
    MatchQuality,
    TuningCache,
    TuningRecord,
    export_records,
    sources,
)
from autotune.targets.families import load_families
from autotune.targets.registry import make_target, target_names

PROBLEM = Gemm(256, 192, 320)
CUBIN = b"\x7fELF of the winner"


def test_gpu_comes_first() -> None:
    assert list(target_names())[:2] == ["cuda", "numba-cuda"]


@pytest.mark.parametrize(("usable", "chosen"), [(True, CudaTarget), (False, CpuTarget)])
def test_best_target(monkeypatch: pytest.MonkeyPatch, usable: bool, chosen: type) -> None:
    monkeypatch.setattr(presence, "can_run", lambda: usable)
    assert isinstance(make_target(None), chosen)
    assert isinstance(make_target("cpu"), CpuTarget)
    assert type(make_target("cuda")) is CudaTarget
    assert isinstance(make_target("numba-cuda"), NumbaCudaTarget)


def test_looking_for_a_gpu_imports_nothing_heavy() -> None:
    script = (
        "import sys; from autotune.targets.registry import make_target; make_target(None); "
        "print(*({'pycuda', 'pynvml', 'cuda.bindings', 'numba', 'optuna'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(runtime.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("name", "capability", "family"),
    [("h200", 90, "pipelined"), ("Tesla V100-SXM2-16GB", 70, "block"), ("a100", 80, "pipelined")],
)
def test_described_devices(name: str, capability: int, family: str) -> None:
    target = CudaTarget()
    device = target.device(name=name)
    assert isinstance(device.limits, GpuLimits)
    assert device.limits.compute_capability == capability
    assert device.fingerprint.kind == "cuda"
    assert (
        default_family(load_families(target="cuda"), Gemm(512, 512, 512), device.limits) == family
    )


def test_devices_that_there_are_not() -> None:
    with pytest.raises(UnknownNameError, match="device must be one of") as caught:
        CudaTarget().device(name="h2000")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="a device names a GPU, and the target is cpu"):
        CpuTarget().device(name="h200")


def test_described_devices_run_nothing(tmp_path: Path) -> None:
    target, families = CudaTarget(), load_families(target="cuda")
    device = target.device(name="h200")
    family = families["naive"]
    candidate = Candidate("naive", family.default(PROBLEM, device.limits))
    programs = ProgramCache(tmp_path)
    with pytest.raises(InputError, match="known by description only"):
        target.kernel(family, candidate, PROBLEM, device, programs)
    with pytest.raises(InputError, match="known by description only"):
        target.evaluator(Work(PROBLEM, families, device, programs, workers=1))


@pytest.fixture
def device() -> Device:
    """An H200 that seems to be here."""
    described = CudaTarget().device(name="h200")
    return replace(described, state={"ordinal": "0"}, toolchain={"nvrtc": "13.0"}, described=False)


@pytest.fixture
def families() -> Mapping[str, KernelFamily]:
    return load_families(target="cuda")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("nothing should be compiled")

    monkeypatch.setattr(code, "compile_kept", refuse)


def subject(family: KernelFamily, device: Device, problem: Gemm = PROBLEM) -> tuple[Any, ...]:
    return family, family.default(problem, device.limits), problem, device.limits


def planned(
    family: KernelFamily, configuration: Configuration, problem: Gemm, limits: DeviceLimits
) -> LaunchPlan:
    return Planner(family, configuration, problem.dtype, limits).plan(problem)


@pytest.mark.usefixtures("no_compiler")
def test_program_from_a_binary(
    families: Mapping[str, KernelFamily], device: Device, tmp_path: Path
) -> None:
    chosen = subject(families["block"], device)
    programs = ProgramCache(tmp_path)
    plan = LaunchPlan((256, 192, 320), (LaunchStep("gemm", (9, 9, 1), (64, 1, 1)),))
    kept = make_program(*chosen, programs, Binary(CUBIN, "sm_90", plan))
    assert kept == GpuProgram(CUBIN, plan, "float32")
    evaluated = make_program(*chosen, programs, Binary(CUBIN, "sm_90", None))
    assert evaluated.plan == planned(*chosen)
    with pytest.raises(InputError, match="must be for sm_90, is for sm_80"):
        make_program(*chosen, programs, Binary(CUBIN, "sm_80", plan))


@pytest.mark.usefixtures("no_compiler")
def test_program_from_a_binary_that_copies_operands(
    families: Mapping[str, KernelFamily], device: Device, tmp_path: Path
) -> None:
    chosen = subject(families["block"], device, replace(PROBLEM, layout="tn"))
    binary = Binary(CUBIN, "sm_90", None, b"transposes")
    program = make_program(*chosen, ProgramCache(tmp_path), binary)
    assert (program.flips, program.support) == ((True, False), b"transposes")
    # A kernel that was emitted for the layout copies nothing.
    emitted = replace(binary, support=b"", layout="tn")
    program = make_program(*chosen, ProgramCache(tmp_path), emitted)
    assert program.flips == (False, False)


@pytest.mark.usefixtures("no_compiler")
def test_a_kept_binary_reads_the_layout_that_it_was_emitted_for(
    families: Mapping[str, KernelFamily], device: Device, tmp_path: Path
) -> None:
    chosen = subject(replace(families["block"], layouts=("nt",)), device)
    binary = Binary(CUBIN, "sm_90", None, b"transposes")
    for kept in (binary, replace(binary, layout="nt")):
        program = make_program(*chosen, ProgramCache(tmp_path), kept)
        assert (program.kernel_layout, program.flips) == ("nt", (False, True))


def test_program_by_the_compiler(
    families: Mapping[str, KernelFamily], device: Device, tmp_path: Path
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    chosen = subject(families["naive"], device, replace(PROBLEM, layout="nt"))
    program = make_program(*chosen, ProgramCache(tmp_path))
    assert "gemm" in read_cubin(program.cubin)
    assert program.plan == planned(*chosen)
    assert program.flips == (False, True)
    assert "transpose" in read_cubin(program.support)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, device: Device) -> list[GpuProgram]:
    """What `load` loads, on a device that seems to be here."""
    programs: list[GpuProgram] = []

    def take(program: GpuProgram, ordinal: int) -> None:
        assert ordinal == 0
        programs.append(program)

    monkeypatch.setattr(kernel, "resident_launch", take)
    monkeypatch.setattr(CudaTarget, "device", lambda *_: device)
    return programs


def winner(
    families: Mapping[str, KernelFamily],
    device: Device,
    problem: Gemm = PROBLEM,
    architecture: str = "sm_90",
    **changes: Any,
) -> TuningRecord:
    """A record of the family `block`, with its binary."""
    chosen = subject(families["block"], device, problem)
    binary = Binary(CUBIN, architecture, planned(*chosen))
    return record(
        **{
            "problem": problem,
            "target": "cuda",
            "fingerprint": device.fingerprint,
            "candidate": Candidate("block", chosen[1]),
            "family_digest": families["block"].digest,
            "toolchain": device.toolchain,
            "binary": BinaryRecord.of(binary),
            **changes,
        }
    )


def store() -> TuningCache:
    return TuningCache(CacheLocations.at().create().database)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("architecture", ["sm_90", "sm_90a"])
def test_load_takes_the_binary(
    families: Mapping[str, KernelFamily],
    device: Device,
    loaded: list[GpuProgram],
    architecture: str,
) -> None:
    tuned = winner(families, device, architecture=architecture)
    store().add(tuned, binaries=[CUBIN])
    kernel = runtime.load(PROBLEM, "cuda")
    assert (kernel.match, kernel.target, kernel.record) == (MatchQuality.EXACT, "cuda", tuned)
    assert loaded == [GpuProgram(CUBIN, planned(*subject(families["block"], device)), "float32")]


@pytest.mark.usefixtures("no_compiler")
def test_numba_cuda_takes_the_binary(loaded: list[GpuProgram]) -> None:
    families = load_families(target="numba-cuda")
    here = NumbaCudaTarget().device()
    assert here.toolchain.keys() == {"nvrtc", "numba_cuda", "nvjitlink"}
    tuned = winner(families, here, target="numba-cuda")
    store().add(tuned, binaries=[CUBIN])
    kernel = runtime.load(PROBLEM, "numba-cuda")
    assert (kernel.match, kernel.target) == (MatchQuality.EXACT, "numba-cuda")
    assert loaded == [GpuProgram(CUBIN, planned(*subject(families["block"], here)), "float32")]
    with pytest.raises(NotTunedError, match="--target cuda"):
        runtime.load(PROBLEM, "cuda")


@pytest.mark.usefixtures("no_compiler", "nothing_shipped")
def test_other_sizes_take_the_binary_with_a_launch_of_their_own(
    families: Mapping[str, KernelFamily], device: Device, loaded: list[GpuProgram]
) -> None:
    store().add(winner(families, device), binaries=[CUBIN])
    other = PROBLEM.with_sizes(512, 192, 640)
    kernel = runtime.load(other, "cuda", match="nearest")
    assert kernel.match is MatchQuality.NEAREST
    [program] = loaded
    assert program.cubin == CUBIN
    assert program.plan.sizes == (512, 192, 640)
    candidate = kernel.candidate
    assert program.plan == planned(
        families["block"], candidate.configuration, other, device.limits
    )


@pytest.mark.usefixtures("no_compiler")
def test_binary_of_another_template_is_launched_as_it_was_measured(
    families: Mapping[str, KernelFamily], device: Device, loaded: list[GpuProgram]
) -> None:
    plan = LaunchPlan((256, 192, 320), (LaunchStep("gemm", (3, 3, 3), (96, 1, 1), 1024),), 512)
    kept = BinaryRecord.of(Binary(CUBIN, "sm_90", plan))
    tuned = winner(families, device, family_digest="0" * 16, binary=kept)
    store().add(tuned, binaries=[CUBIN])
    with pytest.raises(NotTunedError):
        runtime.load(PROBLEM, "cuda")
    assert runtime.load(PROBLEM, "cuda", match="stale").match is MatchQuality.STALE
    assert [program.plan for program in loaded] == [plan]


@pytest.mark.usefixtures("nothing_shipped")
@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("it is not here", {}),
        ("its record does not name it", {"binary": None}),
        ("it is for another architecture", {"architecture": "sm_80"}),
        ("it is for the features of another one", {"architecture": "sm_100a"}),
        ("it is of another template and other sizes", {"family_digest": "0" * 16}),
    ],
)
@pytest.mark.cold
def test_what_cannot_be_taken_is_compiled(
    families: Mapping[str, KernelFamily],
    device: Device,
    loaded: list[GpuProgram],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    changes: dict[str, Any],
) -> None:
    compiled: list[str] = []

    def compile_(_: object, request: CompileRequest) -> bytes:
        compiled.append(request.source.digest)
        return b"compiled"

    monkeypatch.setattr(code.Wanted, "_compile", compile_)
    store().add(winner(families, device, **changes), binaries=[] if not changes else [CUBIN])
    problem = PROBLEM.with_sizes(256, 256, 256) if "sizes" in why else PROBLEM
    runtime.load(problem, "cuda", match="nearest")
    assert len(compiled) == 1
    assert [program.cubin for program in loaded] == [b"compiled"]


@pytest.mark.usefixtures("no_compiler")
def test_shipped_binary_is_found(
    families: Mapping[str, KernelFamily],
    device: Device,
    loaded: list[GpuProgram],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    digest = hashlib.sha256(CUBIN).hexdigest()
    shipped = winner(families, device)
    folder = tmp_path / shipped.fingerprint.slug
    folder.mkdir()
    export_records([shipped], folder / "gemm.jsonl")
    (folder / f"{digest}.cubin").write_bytes(CUBIN)
    monkeypatch.setattr(sources, "data_dir", lambda name: tmp_path)
    assert runtime.load(PROBLEM, "cuda").record == shipped
    assert loaded[0].cubin == CUBIN


@pytest.mark.usefixtures("nothing_shipped")
def test_nothing_tuned_takes_the_default_family(
    device: Device, loaded: list[GpuProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code.Wanted, "_compile", lambda *_: b"compiled")
    with pytest.raises(NotTunedError, match="--target cuda"):
        runtime.load(PROBLEM, "cuda")
    kernel = runtime.load(PROBLEM, "cuda", match="nearest")
    assert (kernel.match, kernel.candidate.family) == (MatchQuality.DEFAULT, "pipelined")
