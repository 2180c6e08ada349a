from __future__ import annotations

import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from autotune.core.limits import CpuLimits
from autotune.cpu import identity
from autotune.cpu.baseline import Blas, numpy_blas, numpy_vendor
from autotune.cpu.identity import (
    CpuCaches,
    CpuModel,
    feature_digest,
    parse_cpuinfo,
    parse_size,
    read_caches,
    read_cpu,
    vector_unit,
)

if TYPE_CHECKING:
    from pathlib import Path

INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R)  Platinum 8375C CPU @ 2.90GHz
stepping\t: 6
microcode\t: 0xd0003d1
cpu MHz\t\t: 3500.012
cache size\t: 55296 KB
flags\t\t: fpu vme avx512f
bugs\t\t: spectre_v1

processor\t: 1
vendor_id\t: GenuineIntel
model\t\t: 107
stepping\t: 7
"""

AMD = """\
processor       : 0
vendor_id       : AuthenticAMD
cpu family      : 26
model           : 2
model name      : AMD EPYC
stepping        : 1
microcode       : 0x1000065
cache size      : 1024 KB
address sizes   : 48 bits physical, 48 bits virtual
power management:
"""

ARM = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

"""

OTHER = """\
processor\t: 0
hart\t\t: 1
isa\t\t: rv64imafdc
uarch\t\t: sifive,u74-mc
"""


def test_intel() -> None:
    assert parse_cpuinfo(INTEL) == CpuModel(
        "GenuineIntel", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", 6, 106, 6, "0xd0003d1"
    )


def test_amd() -> None:
    assert parse_cpuinfo(AMD) == CpuModel("AuthenticAMD", "AMD EPYC", 26, 2, 1, "0x1000065")


def test_arm_has_numbers_for_a_name() -> None:
    assert parse_cpuinfo(ARM) == CpuModel("ARM", "", 8, 0xD40, 0x11)
    unknown = ARM.replace("0x41", "0x99")
    assert parse_cpuinfo(unknown).vendor == "implementer 0x99"


@pytest.mark.parametrize("text", ["", "\n\n", OTHER, "no separator", "model : x\nstepping:"])
def test_foreign_texts_give_unknowns(text: str) -> None:
    assert parse_cpuinfo(text) == CpuModel()


def write_cache(folder: Path, index: int, level: str, kind: str, size: str) -> None:
    place = folder / f"index{index}"
    place.mkdir(parents=True)
    for name, value in (
        ("level", level),
        ("type", kind),
        ("size", size),
        ("coherency_line_size", "64"),
    ):
        (place / name).write_text(value + "\n")


def test_caches_of_one_core(tmp_path: Path) -> None:
    write_cache(tmp_path, 0, "1", "Data", "48K")
    write_cache(tmp_path, 1, "1", "Instruction", "32K")
    write_cache(tmp_path, 2, "2", "Unified", "1280K")
    write_cache(tmp_path, 3, "3", "Unified", "54M")
    assert read_caches(tmp_path) == CpuCaches(48 << 10, 1280 << 10, 54 << 20, 64)


def test_a_container_without_caches(tmp_path: Path) -> None:
    assert read_caches(tmp_path / "cache") == CpuCaches()
    (tmp_path / "index0").mkdir()
    assert read_caches(tmp_path) == CpuCaches()


@pytest.mark.parametrize(
    ("text", "size"),
    [("32K", 32768), ("1M", 1 << 20), ("1G", 1 << 30), ("512", 512), ("", 0), ("K", 0), ("x", 0)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("features", "machine", "unit"),
    [
        ({"avx512f": True, "avx": True}, "x86_64", (512, 32)),
        ({"avx512f": False, "avx": True}, "x86_64", (256, 16)),
        ({"sse2": True}, "AMD64", (128, 16)),
        ({"neon": True, "sve": True}, "aarch64", (128, 32)),
        ({}, "arm64", (128, 32)),
        ({}, "riscv64", (128, 16)),
    ],
)
def test_vector_units(features: dict[str, bool], machine: str, unit: tuple[int, int]) -> None:
    assert vector_unit(features, machine) == unit


def test_features_that_are_off_are_no_identity() -> None:
    assert feature_digest({"avx": True, "sse": True}) == feature_digest(
        {"sse": True, "amx": False, "avx": True}
    )
    assert feature_digest({"avx": True}) != feature_digest({"sse": True})


def test_this_machine_reads_the_same_twice() -> None:
    device, again = read_cpu(), read_cpu()
    assert device.fingerprint.digest == again.fingerprint.digest
    assert device.fingerprint.kind == "cpu"
    assert isinstance(device.limits, CpuLimits)
    assert all(value >= 0 for value in device.limits.names().values())
    assert device.limits.max_threads >= 1
    assert device.toolchain["numpy"].count(".") >= 1
    assert device.toolchain["blas"] == numpy_blas().description
    assert device.toolchain["python"] == platform.python_version()
    assert all(isinstance(value, str) for value in {**device.toolchain, **device.state}.values())


def test_a_machine_that_shows_nothing_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "text_of", lambda path: "")
    monkeypatch.setattr(identity, "_processor", identity._processor.__wrapped__)  # not as it was
    device = read_cpu()
    assert device.fingerprint.name.startswith("unknown ")
    assert device.fingerprint.fields["l2_bytes"] == 0
    assert device.limits.names()["l1_bytes"] == 32768
    assert device.state["governor"] == "unknown"


def test_reading_imports_no_compiler() -> None:
    script = (
        "import sys; from autotune.cpu.identity import read_cpu; read_cpu()\n"
        "print([m for m in ('numba', 'optuna', 'jinja2') if m in sys.modules])\n"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_the_baselines_name_says_what_was_measured() -> None:
    blas = Blas("OpenBLAS", "0.3.31", "Haswell")
    assert numpy_vendor(blas, 1).name.endswith(" (OpenBLAS 0.3.31, Haswell, 1 thread)")
    assert numpy_vendor(Blas(), 4).name.endswith(" (unknown BLAS, 4 threads)")
