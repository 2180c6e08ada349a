from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autotune.core.errors import InputError, UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.gpu.nvidia.known_gpus import find_gpu, known_gpus
from autotune.targets.registry import language_of

KIB = 1024

MINE = """\
[architectures."13.7"]
threads = 2048
blocks = 32
shared_kib = 256
block_shared_kib = 255
reserved_bytes = 1024
granularity = 128

[gpus.z1000]
name = "NVIDIA Z1000"
compute_capability = "13.7"
multiprocessors = 200
memory_gib = 512
l2_kib = 262144
"""


def test_the_h200() -> None:
    h200 = find_gpu("h200")
    assert (h200.name, h200.memory_bytes) == ("NVIDIA H200", 141 * 2**30)
    assert h200.limits == GpuLimits(
        compute_capability=90,
        multiprocessor_count=132,
        warp_size=32,
        max_threads_per_block=1024,
        max_threads_per_multiprocessor=2048,
        max_blocks_per_multiprocessor=32,
        registers_per_thread=255,
        registers_per_block=65536,
        registers_per_multiprocessor=65536,
        shared_bytes_static=48 * KIB,
        shared_bytes_per_block=227 * KIB,
        shared_bytes_per_multiprocessor=228 * KIB,
        shared_bytes_reserved=KIB,
        shared_granularity=128,
        l2_bytes=60 * 2**20,
    )
    assert h200.limits.architecture == "sm_90"


def test_limits_are_names_for_the_gpu_targets() -> None:
    names = find_gpu("t4").limits.names()
    assert names["compute_capability"] == 75
    assert names.keys() == language_of("cuda").limits == language_of("numba-cuda").limits


def test_the_table_spans_the_compute_capabilities() -> None:
    capabilities = {gpu.limits.compute_capability for gpu in known_gpus().values()}
    assert capabilities == {70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 120}


@pytest.mark.parametrize("gpu", known_gpus().values(), ids=known_gpus())
def test_every_entry_is_plausible(gpu: object) -> None:
    limits = gpu.limits  # type: ignore[attr-defined]
    assert all(
        value > 0 for name, value in limits.names().items() if name != "shared_bytes_reserved"
    )
    assert 8 <= limits.multiprocessor_count <= 200
    assert 2**19 <= limits.l2_bytes <= 2**28
    assert (
        limits.shared_bytes_per_block + limits.shared_bytes_reserved
        == limits.shared_bytes_per_multiprocessor
    )
    assert (limits.shared_bytes_reserved > 0) == (limits.compute_capability >= 80)


@pytest.mark.parametrize("name", ["H200", "NVIDIA H200", "nvidia-h200", "h 200"])
def test_names_are_forgiving(name: str) -> None:
    assert find_gpu(name).key == "h200"


def test_neighbours_are_told_apart() -> None:
    assert find_gpu("h100").limits.multiprocessor_count == 132
    assert find_gpu("h100-pcie").limits.multiprocessor_count == 114


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"one of .*h200.*got 'h2000'; did you mean 'h200'"):
        find_gpu("h2000")


def test_a_file_is_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    limits = find_gpu(str(path)).limits
    assert (limits.architecture, limits.multiprocessor_count) == ("sm_137", 200)
    assert limits.shared_bytes_per_block == 255 * KIB
    path.write_text(MINE + MINE[MINE.index("[gpus") :].replace("z1000", "z2000"))
    with pytest.raises(InputError, match=r"one GPU .* describes z1000, z2000"):
        find_gpu(str(path))


def test_a_file_may_use_shipped_architectures(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE[MINE.index("[gpus") :].replace("13.7", "9.0"))
    expected = dataclasses.replace(
        find_gpu("h200").limits, multiprocessor_count=200, l2_bytes=2**28
    )
    assert find_gpu(str(path)).limits == expected


def test_the_environment_extends_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("[gpus.z1000]", "[gpus.h200]"))
    monkeypatch.setenv("AUTOTUNE_GPUS", str(path))
    assert find_gpu("h200").name == "NVIDIA Z1000"
    assert find_gpu("NVIDIA Z1000").key == "h200"
    assert find_gpu("a100").limits.compute_capability == 80
    monkeypatch.setenv("AUTOTUNE_GPUS", str(tmp_path / "gone.toml"))
    with pytest.raises(InputError, match=r"gone\.toml: cannot be read"):
        find_gpu("h200")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"13.7"\nm',
            '"13.8"\nm',
            r"gpus\.z1000\.compute_capability must be one of 7\.0, .*13\.7",
        ),
        ('"13.7"\nm', '"137"\nm', r'compute_capability must be .* like "9\.0", got \'137\''),
        ('"13.7"\nm', "13.7\nm", "compute_capability must be one line of text"),
        ('."13.7"', ".13", r'architectures\.13 must be a compute capability like "9\.0"'),
        ("= 200", "= 0", r"gpus\.z1000\.multiprocessors must be a whole number >= 1, got 0"),
        ("= 200", "= 1.5", "multiprocessors must be a whole number"),
        ("granularity", "granule", r"granularity is missing \(is 'granule' meant"),
        ("l2_kib", "l2_mib", "l2_kib is missing"),
        ("[gpus.z1000]", "[gpu.z1000]", "gpu is not a key"),
        ("[gpus.z1000]", "[gpus.z1000", "must be valid TOML"),
    ],
)
def test_faults_name_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    assert old in MINE
    path.write_text(MINE.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        find_gpu(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
