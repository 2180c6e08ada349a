"""What every results page of a GPU says first, and what the GPU did meanwhile, after NVML."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from environment import taken

from autotune.core.device import Device
from autotune.gpu.nvidia.device import read_gpu
from autotune.gpu.nvidia.nvml import GpuMonitor

INTERVAL_S = 0.1


def describe_gpu(device: Device) -> str:
    """Lines of Markdown naming GPU, software and commit."""
    fields, state = device.fingerprint.fields, device.state
    return "\n".join(
        [
            taken(),
            f"- GPU: {device.fingerprint.name}, "
            + ", ".join(f"{name} {value}" for name, value in fields.items() if value != ""),
            "- software: "
            + ", ".join(f"{name} {version}" for name, version in device.toolchain.items()),
            "- before: "
            + ", ".join(f"{name} {value}" for name, value in state.items() if "pci" not in name),
        ]
    )


class GpuWatch:
    """Reads clocks, power, throttle reasons and use of a GPU while something else runs.

    Args:
        device: as `read_gpu` gives it.
    """

    def __init__(self, device: Device) -> None:
        self._bus = device.state["pci_bus_id"]
        self._monitor = GpuMonitor(self._bus)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._readings: list[dict[str, str]] = []
        self.use: list[int] = []
        """Share of the last fraction of a second in which a kernel ran, in percent."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> str:
        """One line of Markdown."""
        parts = []
        for name, label, unit in (
            ("sm_clock_mhz", "clock", "MHz"),
            ("power_w", "power", "W"),
            ("temperature_c", "temperature", "°C"),
        ):
            values = [float(reading[name]) for reading in self._readings if name in reading]
            if values:
                parts.append(
                    f"{label} {min(values):.0f} / {statistics.median(values):.0f} / "
                    f"{max(values):.0f} {unit}"
                )
        reasons = Counter(r["throttle"] for r in self._readings if "throttle" in r)
        total = sum(reasons.values())
        parts += [f"throttle: {name} {100 * n / total:.0f}%" for name, n in reasons.most_common()]
        if self.use:
            parts.append(f"kernels ran {statistics.mean(self.use):.0f}% of the time")
        return "- meanwhile (least / median / most): " + (", ".join(parts) or "NVML says nothing")

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._readings.append(self._monitor.read())
            if (use := _use(self._bus)) is not None:
                self.use.append(use)


class EnergyMeter:
    """Reads a GPU's energy counter, which NVML refreshes some ten times a second.

    Args:
        device: as `read_gpu` gives it.
    """

    def __init__(self, device: Device) -> None:
        self._bus = device.state["pci_bus_id"]

    def joules(self) -> float | None:
        """What it has used since its driver was loaded; None where NVML does not say."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(self._bus.encode())
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError:
            return None


def _use(bus: str) -> int | None:
    """The share of the last fraction of a second in which a kernel ran, in percent."""
    try:
        import pynvml
    except ImportError:
        return None
    try:  # the monitor has initialised it
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        return int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return None


__all__ = ["EnergyMeter", "GpuWatch", "describe_gpu", "read_gpu"]
