"""What the trials of a study are of: the same space is searched for many problems and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Subject:
    """A problem, where it runs, and on what.

    Attributes:
        operation: the operation's name.
        problem: every field of the problem.
        target: the target's name.
        device: the device's name, for people.
        fingerprint: the digest of the device's fingerprint.
        objective: the name of what trials cost by.
    """

    operation: str
    problem: Mapping[str, Any]
    target: str
    device: str
    fingerprint: str
    objective: str = "time"

    def key(self) -> dict[str, Any]:
        """Every field as JSON-able values."""
        return asdict(self)

    def differences(self, stored: object) -> list[str]:
        """How a stored key differs, in words: "dtype is float32 there and float64 here"."""
        there = stored if isinstance(stored, Mapping) else {}
        problem = there.get("problem")
        there = {"objective": "time", **(problem if isinstance(problem, Mapping) else {}), **there}
        here = {"operation": self.operation, **self.problem, "target": self.target}
        here["objective"] = self.objective
        found = [
            f"{name} is {there.get(name)} there and {value} here"
            for name, value in here.items()
            if there.get(name) != value
        ]
        if there.get("fingerprint") != self.fingerprint:
            found.append(f"it is of {there.get('device')}, and this is {self._device(there)}")
        return found

    def _device(self, there: Mapping[str, Any]) -> str:
        same = self.device == there.get("device")
        return f"another {self.device}" if same else self.device
