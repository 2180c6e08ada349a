"""Energy that the processor packages have used, as Linux's powercap counters (RAPL) tell."""

from __future__ import annotations

from pathlib import Path

from autotune.measuring.observing import EnergyObserver

_FOLDER = Path("/sys/class/powercap")


class PackageEnergy:
    """Joules since it was made, of all packages; its counters wrap around.

    Args:
        folder: where the counters are.

    Raises:
        OSError, ValueError: a counter cannot be read.
    """

    def __init__(self, folder: Path = _FOLDER) -> None:
        zones = packages(folder)
        self._files = [zone / "energy_uj" for zone in zones]
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        self._latest = self._read()
        self._microjoules = 0

    def __call__(self) -> float:
        """The joules."""
        latest = self._read()
        for before, after, largest in zip(self._latest, latest, self._ranges, strict=True):
            self._microjoules += after - before + (largest if after < before else 0)
        self._latest = latest
        return self._microjoules / 1e6

    def _read(self) -> list[int]:
        return [int(file.read_text()) for file in self._files]


def packages(folder: Path = _FOLDER) -> list[Path]:
    """Counters of whole packages; of those below them, energy is a part of theirs."""
    return [
        zone
        for zone in sorted(folder.glob("intel-rapl:*"))
        if zone.name.count(":") == 1 and (zone / "energy_uj").exists()
    ]


def is_observed(folder: Path = _FOLDER) -> bool:
    """Whether energy can be read here; most systems let nobody but root."""
    try:
        return bool(packages(folder)) and PackageEnergy(folder)() >= 0
    except (OSError, ValueError):
        return False


def energy_observer() -> EnergyObserver:
    """An observer of the packages' energy."""
    return EnergyObserver(PackageEnergy())
