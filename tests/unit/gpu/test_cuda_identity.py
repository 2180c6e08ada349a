from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from autotune.core.errors import UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.gpu.nvidia.cublas import version_text
from autotune.gpu.nvidia.device import (
    choose,
    gpu_fingerprint,
    limits_from,
    visible_device,
)
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvml import throttle_names

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
