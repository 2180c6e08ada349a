"""What the target `hybrid` needs of this machine: GPUs that are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.check import Check, Status, attempt
from autotune.distributed.hybrid.identity import read_gpus
from autotune.gpu.nvidia.presence import look
from autotune.serving.examining import Apart

if TYPE_CHECKING:
    from collections.abc import Iterator


def examine() -> Iterator[Check]:
    """Look at the GPUs together; each by itself is target cuda's."""
    with Apart() as apart:
        yield attempt("GPUs together", lambda: apart(together), Status.NOTE)


def together() -> Check:
    """How many there are, and whether they reach each other's memory."""
    if not look().usable:
        return Check.ok("GPUs together", "none that can be used")
    first, count, reach = read_gpus(None)
    found = f"{count} x {first.fingerprint.name}"
    if count > 1 and not reach:
        return Check.note("GPUs together", f"{found}; blocks travel by the host's memory")
    return Check.ok("GPUs together", found)
