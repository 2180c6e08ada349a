"""CUDA on a machine without a GPU: counting, emitting and compiling for GPUs known by name."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from autotune import Gemm
from autotune.cli import main
from autotune.core.errors import MissingDependencyError
from autotune.gpu.nvidia import nvrtc
from autotune.gpu.nvidia.known_gpus import find_gpu, known_gpus
from autotune.targets.families import load_families

FAMILIES = {
    **dict.fromkeys(("block", "naive", "outer", "pipelined", "skinny"), "float32"),
    **dict.fromkeys(("streamed", "tiled", "volkov"), "float32"),
    "dmma": "float64",
    "mma": "float16",
    "mma_tf32": "float32-tf32",
    "wgmma": "float16",
    "wgmma_tf32": "float32-tf32",
    "rounded_fp16": "float32-tf32",
    "split_fp16": "float32-fp32-normwise",
    "split_fp64": "float64-fp64",
    "split_bf16": "float32-fp32",
    "split_mma_fp16": "float32-fp32-normwise",
    "split_mma_fp64": "float64-fp64",
    "split_mma_bf16": "float32-fp32",
}
"""Families, and what they are for as labels have it."""
H200 = ["--target", "cuda", "--device", "h200"]
NUMBA_FAMILIES = {"block", "naive", "tiled"}
NUMBA_H200 = ["--target", "numba-cuda", "--device", "h200"]

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None,
    reason="NVRTC is not installed: pip install '.[compile]'",
)

needs_numba_cuda = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="numba-cuda is not installed: pip install '.[numba-cuda]'",
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.thorough
def test_space_shows_what_the_device_prunes(capsys) -> None:
    families = document(capsys, "space", *H200, "--shape", "4096x4096x4096")
    assert {entry["family"] for entry in families} == FAMILIES.keys()
    for entry in families:
        if not FAMILIES[entry["family"]].startswith("float32"):
            assert entry["valid"] == 0
            assert entry["unsupported"].endswith("not float32")
            continue
        remaining = [entry["cartesian"], *(step["remaining"] for step in entry["restrictions"])]
        assert remaining == sorted(remaining, reverse=True)
        assert 0 < remaining[-1] == entry["valid"] <= 10**7
        reasons = [step["reason"] for step in entry["restrictions"]]
        assert "hardware limit on threads per block" in reasons
        assert any("shared memory" in reason for reason in reasons)
        assert any("registers per block" in reason for reason in reasons)


def test_space_depends_on_the_device(capsys) -> None:
    valid = {
        name: document(capsys, "space", "pipelined", "--device", name)[0]["valid"]
        for name in ("h200", "t4", "rtx4090")
    }
    assert valid["t4"] == 0  # no asynchronous copies
    assert 0 < valid["rtx4090"] < valid["h200"]  # less shared memory


@needs_nvrtc
@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_emit_tells_what_the_binary_needs(capsys, family: str) -> None:
    dtype, _, _ = FAMILIES[family].partition("-")
    code, out, err = run(capsys, "emit", family, *H200, "--dtype", dtype, "--json")
    assert code == 0, err
    emitted = json.loads(out)
    assert emitted["target"] == "cuda"
    assert "__global__" in emitted["source"]
    assert len(emitted["digest"]) == 64
    estimated, binary = (emitted["resources"][key] for key in ("estimated", "compiled"))
    of_hopper = family.startswith(("wgmma", "split"))
    assert binary["architecture"] == ("sm_90a" if of_hopper else "sm_90")
    assert binary["threads"] == estimated["threads"]
    assert binary["shared_bytes"] == estimated["shared_bytes"]
    assert 0 < binary["registers"] <= 255
    assert binary["spill_bytes"] == 0
    assert binary["local_bytes"] == 0
    assert binary["blocks_per_multiprocessor"] >= 1
    assert binary["rejection"] is None
    assert "NVIDIA H200" in err
    launched, needed = err.splitlines()
    first = "split_operands" if family.startswith("split") else "gemm"
    assert launched.startswith(
        f"autotune: launched for 1024x1024x1024-{FAMILIES[family]}: {first} on "
    )
    assert f"NVIDIA H200: {binary['registers']} " in needed


@needs_nvrtc
def test_emit_compiles_for_the_device_named(capsys) -> None:
    emitted = document(capsys, "emit", "naive", "--target", "cuda", "--device", "t4")
    assert emitted["resources"]["compiled"]["architecture"] == "sm_75"
    emitted = document(
        capsys, "emit", "pipelined", *H200, "--set", "splits=4", "--shape", "64x65536x64"
    )
    assert emitted["configuration"]["splits"] == 4
    assert list(emitted["resources"]["compiled"]["other_kernels"]) == [
        "realign_operands",
        "sum_splits",
    ]


def test_emit_without_a_compiler_says_so_and_emits(
    capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError("compiling CUDA needs NVRTC")

    monkeypatch.setattr(nvrtc, "_nvrtc", missing)
    nvrtc.supported_architectures.cache_clear()
    code, out, err = run(capsys, "emit", "block", *H200, "--json")
    assert code == 0
    assert json.loads(out)["resources"]["compiled"] is None
    launched, missed = err.splitlines()
    assert launched.startswith("autotune: launched for")
    assert missed == "autotune: compiling CUDA needs NVRTC"


def test_emit_prints_the_source_and_nothing_else_on_stdout(capsys) -> None:
    emitted = document(capsys, "emit", "volkov", *H200)
    code, out, err = run(capsys, "emit", "volkov", *H200, "--quiet")
    assert code == 0
    assert out.rstrip("\n") == emitted["source"].rstrip("\n")
    assert err == ""


def test_a_family_of_one_target_chooses_it(capsys) -> None:
    assert document(capsys, "space", "volkov", "--device", "h200")[0]["family"] == "volkov"
    assert document(capsys, "emit", "volkov", "--device", "h200")["target"] == "cuda"
    assert document(capsys, "emit", "packed")["target"] == "cpu"


def test_numba_families_are_counted(capsys) -> None:
    families = document(capsys, "space", *NUMBA_H200)
    assert {entry["family"] for entry in families} == NUMBA_FAMILIES
    assert all(0 < entry["valid"] <= entry["cartesian"] for entry in families)


@pytest.mark.sampled(1)
@needs_numba_cuda
@pytest.mark.parametrize("family", sorted(NUMBA_FAMILIES))
def test_numba_families_are_emitted_and_compiled(capsys, family: str) -> None:
    code, out, err = run(capsys, "emit", family, *NUMBA_H200, "--json")
    assert code == 0, err
    emitted = json.loads(out)
    compile(emitted["source"], family, "exec")
    estimated, binary = (emitted["resources"][key] for key in ("estimated", "compiled"))
    assert binary["architecture"] == "sm_90"
    assert binary["threads"] == estimated["threads"]
    assert binary["shared_bytes"] == estimated["shared_bytes"]
    assert estimated["registers"] <= binary["registers"] <= 255
    assert binary["other_kernels"] == {}
    assert binary["rejection"] is None
    launched, needed = err.splitlines()
    assert launched.startswith("autotune: launched for 1024x1024x1024-float32: gemm on ")
    assert f"NVIDIA H200: {binary['registers']} " in needed


@pytest.mark.parametrize("name", ["h200", "NVIDIA H200", "rtx4090", "t4"])
def test_a_device_is_described_by_name(capsys, name: str) -> None:
    described = document(capsys, "device", "--device", name)
    assert set(described) == {"fingerprint", "limits", "toolchain", "state", "gpus"}
    assert described["fingerprint"]["kind"] == "cuda"
    assert described["fingerprint"]["name"] == find_gpu(name).name
    assert described["limits"] == find_gpu(name).limits.names()


def test_families_say_which_of_them_a_device_cannot_run(capsys) -> None:
    on_t4 = {(f["target"], f["family"]): f for f in document(capsys, "families", "--device", "t4")}
    assert {target for target, _ in on_t4} == {"cuda", "numba-cuda"}
    assert "compute capability 8.0" in on_t4["cuda", "pipelined"]["unavailable"]
    assert on_t4["cuda", "block"]["unavailable"] is None
    assert {"matmul7", "matmul8"} == {p["name"] for p in on_t4["cuda", "volkov"]["presets"]}
    listed = document(capsys, "families", "--target", "cuda")
    assert all(family["unavailable"] is None for family in listed)


def test_every_known_gpu_has_a_space() -> None:
    naive = load_families(target="cuda")["naive"]
    for gpu in known_gpus().values():
        assert naive.space(Gemm(512, 512, 512), gpu.limits).size > 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["space", "--device", "h2000"], "h2000"),
        (["emit", "block", "--device", "geforce"], "geforce"),
        (["device", "--device", "-1"], "-1"),
        (["device", "--device", ""], "device"),
        (["families", "--device", "voodoo2"], "voodoo2"),
        (["space", "--target", "cpu", "--device", "h200"], "--device"),
        (["emit", "nothing", "--device", "h200"], "nothing"),
        (["emit", "packed", "--device", "h200"], "packed"),
        (["emit", "block", *H200, "--set", "sm=100"], "100"),
        (["emit", "block", *H200, "--set", "sm=256", "--set", "tx=2", "--set", "ty=2"], "sm=256"),
        (["space", "--device", "/nowhere/gpu.toml"], "/nowhere/gpu.toml"),
        (["tune", "--preset", "gpus"], "gpus"),
        (["tune", "--preset", "gpu", "--shape", "8x8x8"], "--shape"),
        (["tune", "--preset", "gpu", "--dtype", "float32"], "--dtype"),
        (["tune", "--preset", "cpu", "--study", "mine"], "--study"),
        (["tune", "--preset", "cpu", "--timeout", "0"], "timeout"),
    ],
)
def test_bad_input_gets_one_line(capsys, arguments: list[str], named: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert named in err


def test_a_number_is_a_gpu_that_is_here(capsys) -> None:
    code, out, err = run(capsys, "device", "--device", "99")
    assert code in (1, 2), err  # 1 where there is no driver to ask
    assert out == ""
    assert err.count("\n") == 1, err


def test_running_needs_the_device_itself(capsys, tmp_path: Path) -> None:
    """A GPU that is known by name only can be counted and compiled for, and nothing else."""
    absent = next(name for name in ("v100", "xavier") if name not in _live())
    for command in (["tune"], ["bench", "--ladder"], ["tune", "--preset", "gpu"]):
        code, out, err = run(
            capsys, *command, "--device", absent, "--cache", str(tmp_path / "cache")
        )
        assert code in (1, 2), err
        assert out == ""
        assert err.count("\n") == 1, err


def _live() -> str:
    """Names of the GPUs that are here, for tests on machines that have one."""
    if importlib.util.find_spec("cuda") is None:
        return ""
    from autotune.gpu.nvidia.device import read_gpu

    try:
        return read_gpu().fingerprint.name.lower()
    except MissingDependencyError:
        return ""
