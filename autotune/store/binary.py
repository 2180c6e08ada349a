"""The binary behind a record: which one, and how it is launched."""

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from autotune.core.checks import AnyLine, Count, Line, Sha256, Whole, checked, wrong
from autotune.core.errors import InputError
from autotune.families.gpu.launch import (
    Binary,
    LaunchPlan,
    LaunchStep,
    MappedOperand,
)

_THREADS_LIMIT = 1024


class _Document(Struct, kw_only=True):
    """A binary's record as JSON has it."""

    digest: Sha256
    architecture: Line
    support: Sha256 | None
    sizes: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=8)]
    workspace_bytes: Whole | None
    runtime: Annotated[tuple[Whole, ...], Meta(max_length=16)] = ()
    zeroed_bytes: Whole = 0
    steps: Annotated[tuple[LaunchStep, ...], Meta(min_length=1, max_length=16)]
    maps: Annotated[tuple[MappedOperand, ...], Meta(max_length=8)] = ()
    layout: AnyLine | None = None


@dataclass(frozen=True, slots=True)
class BinaryRecord:
    """The binary that a record was measured with.

    Attributes:
        digest: SHA-256 of the binary, in hex.
        architecture: what it runs on: "sm_90".
        launch: what it was launched with, for the record's own sizes.
        support: SHA-256 of the kernel that copies operands first; None where nothing is copied.
        layout: that the kernels were emitted for; None where that was not kept.
    """

    digest: str
    architecture: str
    launch: LaunchPlan
    support: str | None = None
    layout: str | None = None

    @classmethod
    def of(cls, binary: Binary) -> "BinaryRecord":
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
        maps = [{**asdict(each), "box": list(each.box)} for each in self.launch.maps]
        maps = [{k: v for k, v in each.items() if (k, v) != ("region", None)} for each in maps]
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
                    **({"dependent": True} if step.dependent else {}),
                    **({"cooperative": True} if step.cooperative else {}),
                }
                for step in self.launch.steps
            ],
            **({"maps": maps} if maps else {}),
            **({} if self.layout is None else {"layout": self.layout}),
        }

    @classmethod
    def from_json(cls, document: object) -> "BinaryRecord":
        """Rebuild a record from `to_json`; keys that are not known are left out.

        Raises:
            InputError: a key is missing, or a field has the wrong type or is out of range.
        """
        read: _Document = checked(document, _Document, "$.binary")
        for number, step in enumerate(read.steps):
            if math.prod(step.block) > _THREADS_LIMIT:
                where = f"$.binary.steps[{number}].block"
                raise wrong(where, f"of {_THREADS_LIMIT} threads at most", list(step.block))
        if read.zeroed_bytes > (read.workspace_bytes or 0) or read.zeroed_bytes % 4 != 0:
            rule = "whole words within the workspace"
            raise wrong("$.binary.zeroed_bytes", rule, read.zeroed_bytes)
        launch = LaunchPlan(
            sizes=read.sizes,
            steps=read.steps,
            workspace_bytes=read.workspace_bytes,
            runtime=read.runtime,
            zeroed_bytes=read.zeroed_bytes,
            maps=read.maps,
        )
        return cls(read.digest, read.architecture, launch, read.support, read.layout)
