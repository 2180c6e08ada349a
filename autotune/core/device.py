"""Devices as data: numbers to prune with, identity to key with, and what is recorded beside them.

Nothing here touches hardware; the evaluators read the live device and fill these in.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune.core.checks import Line, Scalars
from autotune.core.errors import InputError

SETTINGS = "settings"
"""In a toolchain: settings of its compiler that change code, where they are not the defaults."""


class DeviceLimits(Protocol):
    """Numbers that prune a search space; every one is a name in a family's expressions."""

    def names(self) -> dict[str, int]:
        """The limits by the names that restrictions use."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceFingerprint:
    """The identity that tuning records are keyed by.

    Attributes:
        kind: of device: "cpu", "cuda", "mpi", "hybrid", or what a target of another package says.
        name: the device's name as people know it.
        fields: everything that makes two devices different for tuning, as JSON scalars.
    """

    kind: Line
    name: Line
    fields: Scalars = field(hash=False)

    @property
    def digest(self) -> str:
        """Sixteen hex digits over kind, name and fields."""
        return _digest(self)

    @property
    def slug(self) -> str:
        """A folder name: readable, unique by digest."""
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return f"{self.kind}-{name}-{self.digest[:8]}"

    def likeness(self, other: "DeviceFingerprint") -> int:
        """The likeness of two devices: fields that agree, and the name."""
        same = sum(other.fields.get(name) == value for name, value in self.fields.items())
        return same + (self.name == other.name)

    def key(self) -> dict[str, Any]:
        """The fingerprint as JSON-able values."""
        return {"kind": self.kind, "name": self.name, "fields": dict(self.fields)}


@functools.lru_cache(maxsize=64)
def _digest(fingerprint: DeviceFingerprint) -> str:
    text = json.dumps(
        [fingerprint.kind, fingerprint.name, dict(fingerprint.fields)], sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Device:
    """A device as read: identity, limits, and what is recorded without being identity.

    Attributes:
        fingerprint: what records are keyed by.
        limits: numbers to prune with.
        toolchain: versions of everything that turns source into a running kernel.
        state: clocks, affinity and the like at the time of reading.
        described: whether it is known by description only, and not here.
    """

    fingerprint: DeviceFingerprint
    limits: DeviceLimits
    toolchain: Mapping[str, str]
    state: Mapping[str, str]
    described: bool = False

    def check_here(self) -> None:
        """Check that something can be run on it.

        Raises:
            InputError: it is known by description only.
        """
        if self.described:
            raise InputError(
                f"{self.fingerprint.name} is known by description only: running kernels needs "
                "the device itself (`autotune space` and `autotune emit` do not)"
            )
