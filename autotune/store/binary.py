"""The binary behind a record: which one, and how it is launched."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.families.gpu.launch import LaunchPlan, LaunchStep, MappedOperand
from autotune.store import checks

if TYPE_CHECKING:
    from autotune.families.gpu.launch import Binary, Extents

_DIGEST = re.compile("[0-9a-f]{64}")
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]{0,255}")
_STEPS_LIMIT = 16
_SIZES_LIMIT = 8
_RUNTIME_LIMIT = 16
_MAPS_LIMIT = 8
_GRID_LIMIT = 2**31
_THREADS_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class BinaryRecord:
    """What a record says of the binary it was measured with. Valid by construction.

    Attributes:
        digest: SHA-256 of the binary, in hex.
        architecture: what it runs on: "sm_90".
        launch: what it was launched with, for the record's own sizes.
        support: SHA-256 of the kernel that copies operands first; None where nothing is copied.
        layout: that the kernels were emitted for; None where that was not kept.

    Raises:
        InputError: a field has the wrong type or is out of range; the message names it.
    """

    digest: str
    architecture: str
    launch: LaunchPlan
    support: str | None = None
    layout: str | None = None

    def __post_init__(self) -> None:
        _digest("binary.digest", self.digest)
        checks.text("binary.architecture", self.architecture)
        if self.support is not None:
            _digest("binary.support", self.support)
        if self.layout is not None:
            checks.text("binary.layout", self.layout, empty=True)

    @classmethod
    def of(cls, binary: Binary) -> BinaryRecord:
        """The record of a binary.

        Raises:
            InputError: the binary does not say what it is launched with.
        """
        if binary.launch is None:
            raise InputError("the binary of a record must say what it is launched with")
        return cls(
            digest=hashlib.sha256(binary.content).hexdigest(),
            architecture=binary.architecture,
            launch=binary.launch,
            support=hashlib.sha256(binary.support).hexdigest() if binary.support else None,
            layout=binary.layout,
        )

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-able document."""
        return {
            "digest": self.digest,
            "architecture": self.architecture,
            "support": self.support,
            "sizes": list(self.launch.sizes),
            "workspace_bytes": self.launch.workspace_bytes,
            "runtime": list(self.launch.runtime),
            "zeroed_bytes": self.launch.zeroed_bytes,
            "steps": [
                {
                    "kernel": step.kernel,
                    "grid": list(step.grid),
                    "block": list(step.block),
                    "shared_bytes": step.shared_bytes,
                    **({"cluster": list(step.cluster)} if math.prod(step.cluster) > 1 else {}),
                }
                for step in self.launch.steps
            ],
            **({"maps": [*map(_mapped, self.launch.maps)]} if self.launch.maps else {}),
            **({} if self.layout is None else {"layout": self.layout}),
        }

    @classmethod
    def from_json(cls, document: object) -> BinaryRecord:
        """Rebuild a record from `to_json`; keys that are not known are left out.

        Raises:
            InputError: a key is missing, or a field has the wrong type or is out of range.
        """
        fields = checks.mapping("binary", document)
        steps = checks.required(fields, "steps")
        if not isinstance(steps, list) or not 1 <= len(steps) <= _STEPS_LIMIT:
            raise InputError(f"binary.steps must be a list of 1 to {_STEPS_LIMIT} kernels")
        workspace = checks.required(fields, "workspace_bytes")
        return cls(
            digest=checks.required(fields, "digest"),
            architecture=checks.required(fields, "architecture"),
            launch=LaunchPlan(
                sizes=_sizes(checks.required(fields, "sizes")),
                steps=tuple(_step(step) for step in steps),
                workspace_bytes=(
                    None
                    if workspace is None
                    else checks.count("binary.workspace_bytes", workspace)
                ),
                runtime=_runtime(fields.get("runtime", [])),
                zeroed_bytes=_zeroed(fields.get("zeroed_bytes", 0), workspace),
                maps=_maps(fields.get("maps", [])),
            ),
            support=checks.required(fields, "support"),
            layout=fields.get("layout"),
        )


def _mapped(operand: MappedOperand) -> dict[str, Any]:
    return {**asdict(operand), "box": list(operand.box)}


def _step(document: object) -> LaunchStep:
    fields = checks.mapping("binary.steps", document)
    block = _extents("binary.block", checks.required(fields, "block"))
    if math.prod(block) > _THREADS_LIMIT:
        raise InputError(f"binary.block must have {_THREADS_LIMIT} threads at most, got {block}")
    return LaunchStep(
        kernel=_kernel(checks.required(fields, "kernel")),
        grid=_extents("binary.grid", checks.required(fields, "grid")),
        block=block,
        shared_bytes=checks.count("binary.shared_bytes", checks.required(fields, "shared_bytes")),
        cluster=_extents("binary.cluster", fields.get("cluster", [1, 1, 1])),
    )


def _kernel(value: object) -> str:
    # The name is looked up in the binary, and stands in the text of exported programs.
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise checks.wrong("binary.kernel", "a C identifier", value)
    return value


def _maps(value: object) -> tuple[MappedOperand, ...]:
    if not isinstance(value, list) or len(value) > _MAPS_LIMIT:
        raise InputError(f"binary.maps must be {_MAPS_LIMIT} operands at most, got {shown(value)}")
    return tuple(_map(each) for each in value)


def _map(document: object) -> MappedOperand:
    fields = checks.mapping("binary.maps", document)
    box, turned = checks.required(fields, "box"), checks.required(fields, "transposed")
    if not isinstance(box, list) or len(box) != 2 or not isinstance(turned, bool):
        raise InputError(
            "binary.maps must have a box of two whole numbers, and say whether the operand is "
            f"stored transposed, got {shown(document)}"
        )
    rows, columns = _counts("binary.maps", box)
    return MappedOperand(
        operand=checks.text("binary.maps", checks.required(fields, "operand")),
        transposed=turned,
        box=(rows, columns),
        swizzle=checks.count("binary.maps", checks.required(fields, "swizzle")),
        rounded=checks.text("binary.maps", checks.required(fields, "rounded"), empty=True),
    )


def _extents(name: str, value: object) -> Extents:
    if not isinstance(value, list) or len(value) != 3:
        raise InputError(f"{name} must be three whole numbers, got {shown(value)}")
    x, y, z = _counts(name, value)
    return x, y, z


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _SIZES_LIMIT:
        raise InputError(
            f"binary.sizes must be 1 to {_SIZES_LIMIT} whole numbers, got {shown(value)}"
        )
    return _counts("binary.sizes", value)


def _zeroed(value: object, workspace: object) -> int:
    zeroed = checks.count("binary.zeroed_bytes", value)
    if zeroed > (workspace if isinstance(workspace, int) else 0) or zeroed % 4 != 0:
        raise InputError(
            f"binary.zeroed_bytes must be whole words within the workspace, got {shown(value)}"
        )
    return zeroed


def _runtime(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _RUNTIME_LIMIT:
        raise InputError(
            f"binary.runtime must be {_RUNTIME_LIMIT} whole numbers at most, got {shown(value)}"
        )
    return tuple(checks.count("binary.runtime", each) for each in value)


def _counts(name: str, values: list[object]) -> tuple[int, ...]:
    counts = tuple(checks.count(name, each, minimum=1) for each in values)
    if max(counts) >= _GRID_LIMIT:
        raise InputError(f"{name} must be below {_GRID_LIMIT}, got {shown(values)}")
    return counts


def _digest(name: str, value: object) -> None:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise InputError(f"{name} must be a SHA-256 in hex, got {shown(value)}")
