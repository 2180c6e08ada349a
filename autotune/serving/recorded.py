"""Recorded launches: what a driver is given in a call of a kernel, for other code to give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WORKSPACE = -1
"""Stands for the workspace among the operands of a recorded launch."""

ATTRIBUTE_BYTES = 72
"""Of a driver's attribute of a launch, ``CUlaunchAttribute``."""


class RecordedAddress(NamedTuple):
    """Where something among a launch's arguments stands for an address.

    Attributes:
        offset: bytes from the first argument.
        operand: its number in the operation's order, or `WORKSPACE`.
        displacement: bytes from there.
    """

    offset: int
    operand: int
    displacement: int


class RecordedStep(NamedTuple):
    """A kernel of a launch.

    Attributes:
        function: the driver's handle.
        extents: of the grid and of a block, and bytes of shared memory.
        attributes: the driver's, at most two, each as it takes them.
    """

    function: int
    extents: tuple[int, ...]
    attributes: tuple[bytes, ...]


class DriverFunctions(NamedTuple):
    """Addresses of a driver's functions that launches need.

    Attributes:
        launch: ``cuLaunchKernelEx``.
        replace_address: ``cuTensorMapReplaceAddress``.
        is_capturing: ``cuStreamIsCapturing``.
        clear: ``cuMemsetD32Async``.
    """

    launch: int
    replace_address: int
    is_capturing: int
    clear: int


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """A launch without its addresses, for code that knows nothing but the driver.

    Attributes:
        functions: make it.
        steps: its kernels, one after the other, all with the same arguments.
        arguments: packed, with other addresses.
        places: where each argument begins; empty where they lie as the kernels have them.
        addresses: where those of operands belong.
        maps: tensor maps, and what each describes.
        workspace_bytes: of memory that the kernels use.
        zeroed_bytes: so many of its first bytes are zero, and left so.
    """

    functions: DriverFunctions
    steps: tuple[RecordedStep, ...]
    arguments: bytes
    places: tuple[int, ...]
    addresses: tuple[RecordedAddress, ...]
    maps: tuple[RecordedAddress, ...]
    workspace_bytes: int
    zeroed_bytes: int
