"""The journal of a preset's runs: what they have finished, so that the next one goes on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from autotune.core.errors import CacheError
from autotune.core.paths import private_folder

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.surveying.presets import TuningPreset
    from autotune.tuning.context import DeviceContext


class Journal:
    """The problems that runs of one preset have finished, a line each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def labels(self) -> frozenset[str]:
        """Labels of what is finished."""
        try:
            return frozenset(self._path.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return frozenset()
        except (OSError, UnicodeDecodeError) as error:
            raise CacheError(f"cannot read {self._path} ({error}): remove it") from error

    def add(self, label: str) -> None:
        """Note that something is finished."""
        private_folder(self._path.parent)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{label}\n")
        except OSError as error:
            raise CacheError(f"cannot write {self._path}: {error.strerror or error}") from error


def identity(preset: TuningPreset, context: DeviceContext, effort: str = "") -> str:
    """Twelve hex digits over all that makes two runs of a preset comparable."""
    parts = [preset.digest, context.target.name, context.device.fingerprint.digest, effort]
    parts += sorted(family.digest for family in context.families.values())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
