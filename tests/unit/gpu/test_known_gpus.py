"""GPUs: their limits, their identity, and what fits one at once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from true_rows import true_rows

from autotune.core.errors import ExpressionError, InputError, UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.families.gpu.occupancy import blocks_per_multiprocessor, limit_restrictions
from autotune.gpu.nvidia.cublas import version_text
from autotune.gpu.nvidia.device import (
    choose,
    gpu_fingerprint,
    limits_from,
    visible_device,
)
from autotune.gpu.nvidia.known_gpus import find_gpu, known_gpus
from autotune.gpu.nvidia.nvml import throttle_names
from autotune.targets.registry import language_of

GPUS = {gpu.limits.compute_capability: gpu.limits for gpu in known_gpus().values()}


@pytest.mark.parametrize(
    ("threads", "most"),
    [
        # From the CUDA toolkit's occupancy header, for compute capability 9.0.
        (128, (255, 255, 168, 128)),
        (256, (255, 128, 80, 64)),
        (288, (168, 96, 72, 56)),
        (384, (168, 80, 56, 40)),
        (512, (128, 64, 40, 32)),
    ],
)
def test_the_most_registers_with_which_blocks_fit(threads: int, most: tuple[int, ...]) -> None:
    h200 = find_gpu("h200").limits
    for blocks, registers in enumerate(most, start=1):
        fits = [
            r
            for r in range(1, 256)
            if blocks_per_multiprocessor(h200, threads=threads, registers=r, shared_bytes=0)
            >= blocks
        ]
        assert fits == list(range(1, registers + 1))


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared_bytes", "blocks", "why"),
    [
        ("v100", 1024, 32, 0, 2, "2048 threads"),
        ("v100", 32, 16, 0, 32, "block slots"),
        ("v100", 256, 32, 96 * 1024, 1, "all shared memory, nothing reserved"),
        ("v100", 256, 32, 48 * 1024 + 1, 1, "rounded up to 49408 bytes"),
        ("t4", 256, 32, 0, 4, "1024 threads"),
        ("t4", 32, 32, 0, 16, "block slots"),
        ("t4", 1024, 64, 0, 1, "64 registers a thread just fit"),
        ("t4", 1024, 65, 0, 0, "72 registers a thread, as allocated, do not"),
        ("a100", 128, 32, 163 * 1024, 1, "the most shared memory of one block"),
        ("a100", 128, 32, 163 * 1024 + 1, 0, "one byte too many"),
        ("a100", 128, 32, 81 * 1024, 2, "2 * (81 + 1) KiB = 164 KiB"),
        ("a100", 128, 32, 81 * 1024 + 1, 1, "rounded up to 128 bytes more"),
        ("rtx3090", 512, 40, 0, 3, "1536 threads"),
        ("rtx3090", 64, 16, 0, 16, "block slots"),
        ("rtx4090", 64, 16, 0, 24, "block slots: 24 of them since 8.9"),
        ("rtx4090", 1024, 32, 0, 1, "48 warps hold one block of 32"),
        ("h200", 256, 128, 64 * 1024, 2, "registers"),
        ("h200", 256, 64, 113 * 1024, 2, "2 * (113 + 1) KiB = 228 KiB"),
        ("h200", 256, 64, 227 * 1024, 1, "the most shared memory of one block"),
        ("h200", 33, 255, 0, 4, "two warps, one per partition and block: 8 warps fit"),
        ("rtx5090", 384, 40, 0, 4, "48 warps of 40 registers: 12 fit a partition"),
        ("b200", 1025, 16, 0, 0, "threads of one block"),
        ("b200", 32, 256, 0, 0, "registers of one thread"),
    ],
)
def test_by_hand(
    device: str, threads: int, registers: int, shared_bytes: int, blocks: int, why: str
) -> None:
    counted = blocks_per_multiprocessor(
        find_gpu(device).limits, threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    assert counted == blocks, why


def at_least(limits: GpuLimits, names: dict[str, int], blocks: str) -> bool:
    rules = limit_restrictions(blocks)
    return all(rule.expression.holds({**limits.names(), **names}) for rule in rules)


@given(
    limits=st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__),
    threads=st.integers(1, 1100),
    registers=st.integers(1, 270),
    shared_bytes=st.integers(0, 240 * 1024),
    blocks=st.integers(1, 33),
)
def test_the_restrictions_say_the_same(
    limits: GpuLimits, threads: int, registers: int, shared_bytes: int, blocks: int
) -> None:
    names = {"threads": threads, "registers": registers, "shared_bytes": shared_bytes}
    counted = blocks_per_multiprocessor(limits, **names)
    assert at_least(limits, names, "1") == (counted >= 1)
    assert at_least(limits, names, str(blocks)) == (counted >= blocks)
    assert at_least(limits, {**names, "wanted": blocks}, "wanted") == (counted >= blocks)
    assert at_least(limits, {**names, "wanted": blocks}, "wanted + 1") == (counted > blocks)


def test_they_prune_whole_columns() -> None:
    limits = find_gpu("h200").limits
    rng = np.random.default_rng(0)
    columns = {
        "threads": rng.integers(1, 1100, 2000),
        "registers": rng.integers(1, 270, 2000),
        "shared_bytes": rng.integers(0, 120 * 1024, 2000),
    }
    holds = np.ones(2000, dtype=bool)
    for rule in limit_restrictions("2"):
        holds &= true_rows(rule.expression, {**limits.names(), **columns})
    counted = [
        blocks_per_multiprocessor(limits, threads=int(t), registers=int(r), shared_bytes=int(s))
        for t, r, s in zip(*columns.values(), strict=True)
    ]
    assert 0 < holds.sum() < 2000
    np.testing.assert_array_equal(holds, np.array(counted) >= 2)


def test_every_restriction_has_a_reason_and_a_bad_number_of_blocks_is_refused() -> None:
    assert len(limit_restrictions()) < len(limit_restrictions("min_blocks"))
    assert all(rule.reason for rule in limit_restrictions("min_blocks"))
    with pytest.raises(ExpressionError, match="open"):
        limit_restrictions("open()")


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


H200 = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "WARP_SIZE": 32,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
    "L2_CACHE_SIZE": 62914560,
}
"""As the driver gives them."""


def test_a_device_has_the_limits_that_the_table_gives_it() -> None:
    assert limits_from(H200.__getitem__) == find_gpu("h200").limits


def test_older_devices_allocate_shared_memory_in_larger_units() -> None:
    turing = {**H200, "COMPUTE_CAPABILITY_MAJOR": 7, "COMPUTE_CAPABILITY_MINOR": 5}
    limits = limits_from(turing.__getitem__)
    assert (limits.compute_capability, limits.shared_granularity) == (75, 256)


@pytest.fixture
def limits() -> GpuLimits:
    return limits_from(H200.__getitem__)


def test_memory_that_the_driver_keeps_is_no_part_of_the_identity(limits: GpuLimits) -> None:
    here = gpu_fingerprint("NVIDIA H200", limits, 150_754_820_096, ecc=True)
    newer_driver = gpu_fingerprint("NVIDIA H200", limits, 150_700_000_000, ecc=True)
    assert here == newer_driver
    assert here.digest == newer_driver.digest
    assert here.name == "NVIDIA H200"
    assert here.slug.startswith("cuda-nvidia-h200-")


def test_what_changes_the_device_changes_its_identity(limits: GpuLimits) -> None:
    whole = gpu_fingerprint("NVIDIA H200", limits, 150_754_820_096, ecc=True)
    others = [
        gpu_fingerprint("NVIDIA H200", limits, 150_754_820_096, ecc=False),
        gpu_fingerprint("NVIDIA H200", limits, 80_000_000_000, ecc=True),
        gpu_fingerprint("NVIDIA H200 MIG 1g.18gb", limits, 150_754_820_096, ecc=True),
        gpu_fingerprint(
            "NVIDIA H200", replace(limits, multiprocessor_count=78), 150_754_820_096, ecc=True
        ),
    ]
    assert len({whole.digest, *(other.digest for other in others)}) == 5
    assert others[2].name == "NVIDIA H200"
    assert others[2].fields["mig"] == "1g.18gb"


@pytest.mark.parametrize(
    ("wanted", "ordinal"),
    [(None, 0), (1, 1), ("2", 2), ("a100", 1), ("NVIDIA-H200", 0), ("h200 mig", 2)],
)
def test_a_device_is_chosen_by_number_or_name(wanted: int | str | None, ordinal: int) -> None:
    names = ["NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA H200 MIG 1g.18gb"]
    assert choose(names, wanted) == ordinal


@pytest.mark.parametrize("wanted", [3, "3", -1, "b200", ""])
def test_other_devices_are_refused_with_a_list(wanted: int | str) -> None:
    with pytest.raises(UnknownNameError, match="one of 0: NVIDIA H200, 1: Tesla T4; got"):
        choose(["NVIDIA H200", "Tesla T4"], wanted)


@pytest.mark.parametrize(
    ("ordinal", "visible", "expected"),
    [
        (0, None, "0"),
        (1, None, "1"),
        (0, "3,5", "3"),
        (1, "3, 5", "5"),
        (0, "GPU-8932f937", "GPU-8932f937"),
        (0, "", "0"),
    ],
)
def test_a_child_sees_one_device(ordinal: int, visible: str | None, expected: str) -> None:
    assert visible_device(ordinal, visible) == expected


def test_a_machine_without_a_driver_is_told_what_to_do() -> None:
    script = (
        "import ctypes\n"
        "from autotune.core.errors import MissingDependencyError\n"
        "from autotune.gpu.nvidia.device import load_driver, read_gpu\n"
        "try:\n    ctypes.CDLL('libcuda.so.1')\nexcept OSError:\n"
        "    try:\n        read_gpu()\n"
        "    except MissingDependencyError as error:\n        print(error)\n"
        "else:\n    print('a driver')\n"
    )
    printed = subprocess.check_output([sys.executable, "-c", script], text=True)
    if printed == "a driver\n":
        pytest.skip("there is a driver")
    assert "--device h200" in printed
    assert printed.count("\n") == 1


def test_throttle_reasons_have_names() -> None:
    assert throttle_names(0) == "none"
    assert throttle_names(0x4 | 0x20) == "power cap, thermal"


def test_cublas_versions_read_like_versions() -> None:
    assert version_text(130100) == "13.1.0"
    assert version_text(120304) == "12.3.4"


def test_identity_imports_neither_pycuda_nor_nvml() -> None:
    script = (
        "import sys\nimport autotune.gpu.nvidia.device\n"
        "print(*({'pycuda', 'pynvml', 'numba'} & sys.modules.keys()))\n"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "\n"
