"""Reading the CPU: its identity, its limits, and what is recorded beside them.

On Linux from ``/proc`` and ``/sys``; elsewhere, and where those are hidden, what is not known is
0 or "unknown" in the fingerprint and a conservative guess in the limits.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.device import SETTINGS, Device, DeviceFingerprint
from autotune.core.errors import MissingDependencyError
from autotune.core.limits import CpuLimits
from autotune.core.printable import first_line
from autotune.core.processors import affinity_count, integer_of, own_quota, text_of
from autotune.core.version import __version__
from autotune.cpu.baseline import Blas, numpy_blas
from autotune.cpu.threads import pool_limit, usable_threads
from autotune.serving.numba_settings import numba_settings

try:
    import llvmlite.binding as llvm
except (ImportError, OSError) as error:  # OSError: its library, where memory is limited, say
    raise MissingDependencyError(
        f"the target cpu needs Numba ({first_line(error)}): pip install numba"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

_GUESS = {"l1_bytes": 32 * 1024, "l2_bytes": 512 * 1024, "line_bytes": 64}
"""Limits where the caches are not known: small enough to fit any CPU of this century."""

_IMPLEMENTERS = {
    0x41: "ARM",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0xC0: "Ampere",
}
"""Arm's codes for those who design its processors."""


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The first processor of ``/proc/cpuinfo``.

    Attributes:
        vendor: "GenuineIntel", "AuthenticAMD", or who designed an Arm core; "unknown".
        name: the marketing name; empty where there is none, as on Arm.
        family: of the model; Arm's architecture version.
        model: within the family; Arm's part number.
        stepping: of the model; Arm's variant and revision as "1.0" is 16.
        microcode: its version; empty when hidden.
    """

    vendor: str = "unknown"
    name: str = ""
    family: int = 0
    model: int = 0
    stepping: int = 0
    microcode: str = ""


@dataclass(frozen=True, slots=True)
class CpuCaches:
    """Data caches one core can use, in bytes; 0 where not known or not there."""

    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    line_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Processor:
    """The part that stays as it is while a process lives: read once."""

    fingerprint: DeviceFingerprint
    vector: tuple[int, int]
    caches: CpuCaches
    microcode: str
    toolchain: Mapping[str, str]


def read_cpu() -> Device:
    """Read this machine's CPU as this process may use it.

    Its identity is read once a process; what the process may use of it, every time.
    """
    processor = _processor()
    caches = processor.caches
    bits, registers = processor.vector
    quota, settings = own_quota(), numba_settings()
    return Device(
        fingerprint=processor.fingerprint,
        limits=CpuLimits(
            max_threads=usable_threads(
                affinity_count(), quota, os.environ.get("NUMBA_NUM_THREADS"), pool_limit()
            ),
            vector_bits=bits,
            vector_registers=registers,
            l1_bytes=caches.l1_bytes or _GUESS["l1_bytes"],
            l2_bytes=caches.l2_bytes or _GUESS["l2_bytes"],
            l3_bytes=caches.l3_bytes,
            line_bytes=caches.line_bytes or _GUESS["line_bytes"],
        ),
        toolchain={**processor.toolchain, **({SETTINGS: settings} if settings else {})},
        state=_state(processor.microcode, quota),
    )


@session.cached()
def _processor() -> _Processor:
    model = parse_cpuinfo(text_of(Path("/proc/cpuinfo")))
    caches = read_caches(Path("/sys/devices/system/cpu/cpu0/cache"))
    features = {name: bool(on) for name, on in llvm.get_host_cpu_features().items()}
    core = str(llvm.get_host_cpu_name())
    fingerprint = DeviceFingerprint(
        kind="cpu",
        name=model.name or f"{model.vendor} {core}",
        fields={
            "vendor": model.vendor,
            "family": model.family,
            "model": model.model,
            "stepping": model.stepping,
            "llvm_cpu": core,
            "llvm_features": feature_digest(features),
            "l1_bytes": caches.l1_bytes,
            "l2_bytes": caches.l2_bytes,
            "l3_bytes": caches.l3_bytes,
        },
    )
    return _Processor(
        fingerprint,
        vector_unit(features, platform.machine()),
        caches,
        model.microcode,
        _toolchain(numpy_blas()),
    )


def parse_cpuinfo(text: str) -> CpuModel:
    """Parse the text of ``/proc/cpuinfo``; an empty or foreign text gives the defaults."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    if "CPU implementer" in fields:
        implementer = integer_of(fields["CPU implementer"])
        variant = integer_of(fields.get("CPU variant", ""))
        return CpuModel(
            vendor=_IMPLEMENTERS.get(implementer, f"implementer {implementer:#x}"),
            name=fields.get("model name", ""),
            family=integer_of(fields.get("CPU architecture", "")),
            model=integer_of(fields.get("CPU part", "")),
            stepping=16 * variant + integer_of(fields.get("CPU revision", "")),
        )
    return CpuModel(
        vendor=fields.get("vendor_id", "unknown"),
        name=" ".join(fields.get("model name", "").split()),
        family=integer_of(fields.get("cpu family", "")),
        model=integer_of(fields.get("model", "")),
        stepping=integer_of(fields.get("stepping", "")),
        microcode=fields.get("microcode", ""),
    )


def read_caches(folder: Path) -> CpuCaches:
    """Read the caches of one core from its ``cache`` folder under ``/sys``."""
    sizes: dict[str, int] = {}
    line = 0
    for index in sorted(folder.glob("index*")):
        if text_of(index / "type") in ("Data", "Unified"):
            sizes[text_of(index / "level")] = parse_size(text_of(index / "size"))
            line = line or integer_of(text_of(index / "coherency_line_size"))
    return CpuCaches(sizes.get("1", 0), sizes.get("2", 0), sizes.get("3", 0), line)


def parse_size(text: str) -> int:
    """Bytes of a size such as "48K" or "32M"; 0 when it is not one."""
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return unit * integer_of(text.rstrip("KMG"))


def vector_unit(features: Mapping[str, bool], machine: str) -> tuple[int, int]:
    """Width in bits and number of the SIMD registers, by LLVM's features and the machine."""
    if features.get("avx512f"):
        return 512, 32
    if features.get("avx"):
        return 256, 16
    if machine.lower() in ("aarch64", "arm64"):
        # LLVM vectorises for Arm in 128 bits unless told the width of SVE.
        return 128, 32
    return 128, 16


def feature_digest(features: Mapping[str, bool]) -> str:
    """Twelve hex digits over the features that are on.

    What is off does not count: a newer LLVM lists more of it for the same CPU.
    """
    text = ",".join(sorted(name for name, on in features.items() if on))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _toolchain(blas: Blas) -> dict[str, str]:
    return {
        "autotune": __version__,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "blas": blas.description,
    }


def _state(microcode: str, quota: float | None) -> dict[str, str]:
    governor = text_of(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    pages = text_of(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "affinity": str(affinity_count()),
        "quota": "unlimited" if quota is None else f"{quota:g}",
        "governor": governor or "unknown",
        "huge_pages": pages.partition("[")[2].partition("]")[0] or "unknown",
        "microcode": microcode or "unknown",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _version(distribution: str) -> str:
    # Without importing: Numba alone costs more than everything else here.
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
