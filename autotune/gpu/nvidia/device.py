"""Reading a GPU: its identity, its limits, and what is recorded beside them.

The driver answers all of it without a context, so that a process which only reads the device takes
none of its memory.
"""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import MissingDependencyError, UnknownNameError
from autotune.core.installing import install_hint
from autotune.core.limits import GpuLimits
from autotune.core.version import __version__
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvml import GpuMonitor, driver_version
from autotune.gpu.nvidia.nvrtc import nvrtc_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_INSTALL = install_hint("cuda")
_GIB = 2**30
_REGISTERS_PER_THREAD = 255  # of every architecture since 3.5; the driver has no attribute for it

_LIMIT_ATTRIBUTES: Mapping[str, str] = {
    "multiprocessor_count": "MULTIPROCESSOR_COUNT",
    "warp_size": "WARP_SIZE",
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_threads_per_multiprocessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "max_blocks_per_multiprocessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "registers_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "shared_bytes_static": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_bytes_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_bytes_reserved": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "l2_bytes": "L2_CACHE_SIZE",
}
"""Attributes of the driver, without ``CU_DEVICE_ATTRIBUTE_``."""


def read_gpu(index_or_name: int | str | None = None) -> Device:
    """Read one of the GPUs that this process may use; creates no context.

    Args:
        index_or_name: the driver's number of the device, or (part of) its name; None takes the
            first one.

    Raises:
        MissingDependencyError: cuda-bindings, the driver or a GPU is missing.
        UnknownNameError: there is no such device; the message lists those there are.
    """
    driver = load_driver()
    handles = [_call(driver.cuDeviceGet, i) for i in range(_call(driver.cuDeviceGetCount))]
    if not handles:
        raise MissingDependencyError(
            "the CUDA target needs an NVIDIA GPU and there is none (CUDA_VISIBLE_DEVICES?): "
            "use target cpu; to count or emit without one, name one (--device h200)"
        )
    names = [_text(_call(driver.cuDeviceGetName, 256, handle)) for handle in handles]
    ordinal = choose(names, index_or_name)
    handle = handles[ordinal]
    attributes = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        number = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call(driver.cuDeviceGetAttribute, number, handle))

    limits = limits_from(attribute)
    memory = int(_call(driver.cuDeviceTotalMem, handle))
    bus = _text(_call(driver.cuDeviceGetPCIBusId, 64, handle))
    return Device(
        fingerprint=gpu_fingerprint(
            names[ordinal], limits, memory, ecc=bool(attribute("ECC_ENABLED"))
        ),
        limits=limits,
        toolchain=_toolchain(_call(driver.cuDriverGetVersion)),
        state={"ordinal": str(ordinal), "pci_bus_id": bus, **GpuMonitor(bus).read()},
    )


def choose(names: Sequence[str], index_or_name: int | str | None) -> int:
    """The number of the device that is meant.

    Args:
        names: of the devices, in the driver's order.
        index_or_name: as for `read_gpu`.

    Raises:
        UnknownNameError: none of them is meant; the message lists them.
    """
    wanted = "0" if index_or_name is None else str(index_or_name).strip()
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    for ordinal, name in enumerate(names):
        if not wanted.isdecimal() and wanted and _simple(wanted) in _simple(name):
            return ordinal
    listed = ", ".join(f"{ordinal}: {name}" for ordinal, name in enumerate(names))
    raise UnknownNameError(f"the GPU must be one of {listed}; got {index_or_name!r}")


def limits_from(attribute: Callable[[str], int]) -> GpuLimits:
    """The limits of a device.

    Args:
        attribute: reads one attribute of the driver by its name without
            ``CU_DEVICE_ATTRIBUTE_``.
    """
    capability = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    counts: dict[str, Any] = {field: attribute(name) for field, name in _LIMIT_ATTRIBUTES.items()}
    return GpuLimits(
        compute_capability=capability,
        registers_per_thread=_REGISTERS_PER_THREAD,
        # After cuda_occupancy.h; the driver has no attribute for it either.
        shared_granularity=128 if capability >= 80 else 256,
        **counts,
    )


def gpu_fingerprint(
    name: str, limits: GpuLimits, memory_bytes: int, *, ecc: bool
) -> DeviceFingerprint:
    """The identity that records of a GPU are keyed by.

    Args:
        name: as the driver gives it; a slice of a GPU has its MIG profile at the end.
        limits: the device's.
        memory_bytes: its memory, of which the driver keeps some that differs between versions:
            only whole GiB count.
        ecc: whether its memory is checked.
    """
    model, _, profile = name.partition(" MIG ")
    return DeviceFingerprint(
        kind="cuda",
        name=model,
        fields={
            "compute_capability": limits.compute_capability,
            "multiprocessors": limits.multiprocessor_count,
            "memory_gib": round(memory_bytes / _GIB),
            "l2_bytes": limits.l2_bytes,
            "mig": profile,
            "ecc": int(ecc),
        },
    )


def described(name: str) -> Device:
    """A GPU that is not here, as far as a description goes.

    Raises:
        UnknownNameError: there is none of that name; the message lists those there are.
    """
    gpu = find_gpu(name)
    fingerprint = gpu_fingerprint(gpu.name, gpu.limits, gpu.memory_bytes, ecc=False)
    return Device(fingerprint, gpu.limits, toolchain={}, state={}, described=True)


def visible_device(ordinal: int, visible: str | None) -> str:
    """The ``CUDA_VISIBLE_DEVICES`` of a child process that is to see one device only.

    Args:
        ordinal: the device's number in this process.
        visible: the variable in this process; None where it is not set.
    """
    listed = [word.strip() for word in (visible or "").split(",") if word.strip()]
    return listed[ordinal] if ordinal < len(listed) else str(ordinal)


def load_driver() -> Any:
    """The driver's bindings, initialised.

    Raises:
        MissingDependencyError: the bindings or the driver itself are missing.
    """
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
    except ImportError as error:
        raise MissingDependencyError(
            f"the CUDA target needs cuda-bindings ({error}): {_INSTALL}"
        ) from error
    except RuntimeError as error:  # the library is not found
        raise MissingDependencyError(
            f"the CUDA target needs an NVIDIA driver ({str(error).strip()}): use target cpu; to "
            "count or emit without one, name one (--device h200)"
        ) from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise MissingDependencyError(
            f"the NVIDIA driver does not start ({status.name}): see what nvidia-smi says"
        )
    return driver


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    status, *values = function(*arguments)
    if int(status) != 0:
        raise MissingDependencyError(
            f"the NVIDIA driver fails in {function.__name__} ({status.name}): "
            "see what nvidia-smi says"
        )
    return values[0]


def _toolchain(driver_api: int) -> dict[str, str]:
    try:
        nvrtc = ".".join(map(str, nvrtc_version()))
    except MissingDependencyError:
        nvrtc = "none"
    return {
        "autotune": __version__,
        "python": platform.python_version(),
        "driver": driver_version(),
        "cuda": f"{driver_api // 1000}.{driver_api % 1000 // 10}",
        "nvrtc": nvrtc,
        "pycuda": _version("pycuda"),
        "cuda_bindings": _version("cuda-bindings"),
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


def _text(value: bytes | str) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return text.split("\0", 1)[0].strip()


def _simple(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
