"""Energy that the processor packages have used, as Linux's powercap counters (RAPL) tell."""

from __future__ import annotations

from pathlib import Path

from autotune.measuring.harness import EnergyObserver

_FOLDER = Path("/sys/class/powercap")


class PackageEnergy:
    """Joules since it was made, of all packages; their counters wrap around.

    Raises:
        OSError, ValueError: a counter cannot be read.
    """

    def __init__(self, folder: Path = _FOLDER) -> None:
        # Zones with two colons are parts of packages.
        zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        self.packages = len(zones)
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


def energy_observer(folder: Path = _FOLDER) -> EnergyObserver | None:
    """An observer of the packages' energy; None where it is hidden, as from all but root."""
    try:
        joules = PackageEnergy(folder)
    except (OSError, ValueError):
        return None
    return EnergyObserver(joules) if joules.packages else None
