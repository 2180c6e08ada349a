"""The family of `suspect_family` with a record in a cache, so that its kernels can be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from records import record
from suspect_family import suspect, write_suspects

from autotune.core.paths import CacheLocations
from autotune.cpu.identity import read_cpu
from autotune.operations.problem import Gemm
from autotune.store import TuningCache, TuningRecord

if TYPE_CHECKING:
    from pathlib import Path

PROBLEM = Gemm(16, 8, 4)


def tuned(
    folder: Path,
    problem: Gemm = PROBLEM,
    threads: int = 1,
    fault: str = "none",
    step: int = 1,
    **changes: Any,
) -> TuningRecord:
    """A record of this machine, for a family whose files are put into a folder."""
    family = write_suspects(folder)
    device = read_cpu()
    return record(
        problem=problem,
        candidate=suspect(fault, step, threads),
        family_digest=family.digest,
        fingerprint=device.fingerprint,
        toolchain=dict(device.toolchain),
        **changes,
    )


def store(folder: Path, *records: TuningRecord, cache: Path | None = None) -> None:
    """Write the family, and records to a cache; without records, one of `PROBLEM`."""
    kept = records or (tuned(folder),)
    TuningCache(CacheLocations.at(cache).database).add(*kept)
