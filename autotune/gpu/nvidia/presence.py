"""The GPUs that are here, and what is missing to use them; nothing is imported to find out."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from dataclasses import dataclass

from autotune.core import session
from autotune.core.installing import install_hint
from autotune.gpu.nvidia.nvml import listed_gpus

_log = logging.getLogger(__name__)

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU that is here, whether it can be used or not.

    Attributes:
        name: as the driver gives it.
        memory_bytes: its memory.
        compute_capability: "9.0"; empty where only NVML shows the GPU.
    """

    name: str
    memory_bytes: int
    compute_capability: str = ""

    def __str__(self) -> str:
        size = f"{self.memory_bytes / 2**30:.0f} GiB"
        known = (
            f", compute capability {self.compute_capability}" if self.compute_capability else ""
        )
        return f"{self.name}, {size}{known}"


@dataclass(frozen=True, slots=True)
class Presence:
    """The GPUs that are here.

    Attributes:
        gpus: all that this process may use, in the driver's order.
        missing: what keeps them from being used, and the remedy; None when nothing does.
        status: what the driver says when it is started; None where there is no driver.
    """

    gpus: tuple[FoundGpu, ...]
    missing: str | None
    status: int | None = None

    @property
    def usable(self) -> bool:
        """Is there a GPU, and all that runs kernels on it?"""
        return bool(self.gpus) and self.missing is None


@session.cached()
def look() -> Presence:
    """Look for GPUs; creates no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Presence(
            _by_nvml(),
            "the driver's libcuda.so.1 is not here; in a container, start it with "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    status = driver.cuInit(0)
    if status == NO_DEVICE and "CUDA_VISIBLE_DEVICES" in os.environ:
        return Presence((), None, status)  # hidden on purpose
    if status != 0:
        return Presence(
            _by_nvml(),
            f"its driver does not start (error {status}); see what nvidia-smi says",
            status,
        )
    missing = None
    if not _installed("cuda.bindings"):
        missing = f"cuda-bindings is not installed; {install_hint('cuda')}"
    return Presence(_by_driver(driver), missing, status)


def can_run() -> bool:
    """Can CUDA kernels run here?"""
    return look().usable


def is_usable() -> bool:
    """The same; a warning says, once, why a GPU that is here is not used."""
    if not can_run():
        _warn_of_unused_gpu()
    return can_run()


@session.cached()
def _warn_of_unused_gpu() -> None:
    reason = unused()
    if reason is not None:
        _log.warning("%s", reason)


def unused() -> str | None:
    """The reason, in one line, why a GPU that is here cannot be used; None otherwise."""
    found = look()
    if not found.gpus or found.missing is None:
        return None
    count = len(found.gpus)
    here = f"{found.gpus[0].name} is" if count == 1 else f"{count} GPUs ({found.gpus[0].name}) are"
    return f"{here} here and not used: {found.missing}, or choose target cpu"


def _by_driver(driver: ctypes.CDLL) -> tuple[FoundGpu, ...]:
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    found: list[FoundGpu] = []
    for ordinal in range(count.value):
        device, number = ctypes.c_int(), ctypes.c_int()
        name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        capability = []
        for attribute in (_MAJOR, _MINOR):
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(str(number.value))
        text = name.value.decode(errors="replace")
        found.append(FoundGpu(text, memory.value, ".".join(capability)))
    return tuple(found)


def _by_nvml() -> tuple[FoundGpu, ...]:
    return tuple(FoundGpu(name, memory) for name, memory in listed_gpus())


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it would be in is missing
        return False
