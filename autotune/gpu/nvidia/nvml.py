"""Clocks, power, energy and temperature of a GPU by NVML, recorded where there is any."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from autotune.core import session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_GPU_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU

_THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "user-defined clocks",
}
"""NVML's bits of why clocks are not higher."""


class GpuMonitor:
    """Reads one GPU; reads nothing where NVML, or the GPU in it, is missing.

    Args:
        pci_bus_id: of the device; NVML numbers devices otherwise than the driver does.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml = _nvml()
        self._readings: dict[str, Callable[[], str]] = {}
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
                self._readings = _readings(self._nvml, handle)

    def read(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Clocks, power, temperature and throttle reasons now, as far as the GPU gives them.

        "energy_j" is what it has used since the driver was loaded, in joules.

        Args:
            names: which of them; None takes all.
        """
        state: dict[str, str] = {}
        for name, reading in self._readings.items():
            if names is None or name in names:
                # Virtual machines and slices of a GPU hide some of them.
                with contextlib.suppress(self._nvml.NVMLError):
                    state[name] = reading()
        return state


def _readings(nvml: Any, handle: Any) -> dict[str, Callable[[], str]]:
    return {
        "sm_clock_mhz": lambda: str(nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK)),
        "memory_clock_mhz": lambda: str(nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK)),
        "max_sm_clock_mhz": lambda: str(nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK)),
        "power_limit_w": lambda: _watts(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
        "power_w": lambda: _watts(nvml.nvmlDeviceGetPowerUsage(handle)),
        "energy_j": lambda: f"{nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000:.3f}",
        "temperature_c": lambda: str(nvml.nvmlDeviceGetTemperature(handle, _GPU_TEMPERATURE)),
        "throttle": lambda: throttle_names(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        "persistence": lambda: str(nvml.nvmlDeviceGetPersistenceMode(handle)),
    }


def throttle_names(bits: int) -> str:
    """The reasons why clocks are down, for people; "none" when there is none."""
    return ", ".join(name for bit, name in _THROTTLE_REASONS.items() if bits & bit) or "none"


def driver_version() -> str:
    """The driver's version, "580.95.05"; "unknown" without NVML."""
    library = _library()
    text = ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, len(text)) != 0:
        return "unknown"
    return text.value.decode(errors="replace")


def listed_gpus() -> list[tuple[str, int]]:
    """Name and bytes of memory of every GPU that NVML shows."""
    library = _library()
    count = ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found: list[tuple[str, int]] = []
    for index in range(count.value):
        handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
        name = ctypes.create_string_buffer(96)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            library.nvmlDeviceGetName(handle, name, len(name))
            library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            found.append((name.value.decode(errors="replace"), memory[0]))
    return found


@session.cached()
def _library() -> ctypes.CDLL | None:
    """NVML without its package, initialised for the life of the process; None without it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


@session.cached()
def _nvml() -> Any:
    """The library, initialised for the life of the process; None where there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.0f}"
