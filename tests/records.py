"""Devices and tuning records for tests of everything that stores or looks them up."""

from __future__ import annotations

from typing import Any

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.limits import CpuLimits
from autotune.operations.problem import Gemm
from autotune.store import BaselineRecord, EffortRecord, TuningRecord

FINGERPRINT = DeviceFingerprint(
    "cpu", "Example CPU 9000", {"vendor": "Example", "llvm_cpu": "znver5", "l2_bytes": 1 << 20}
)
TOOLCHAIN = {"python": "3.11.2", "numba": "0.68.1", "llvm": "20.1", "blas": "OpenBLAS 0.3.31"}
DEVICE = Device(FINGERPRINT, CpuLimits(2, 512, 32, 48 << 10, 1 << 20, 32 << 20, 64), TOOLCHAIN, {})


def record(m: int = 64, n: int = 64, k: int = 64, **changes: Any) -> TuningRecord:
    """A record of an m x n x k problem, with any fields changed."""
    problem = changes.pop("problem", Gemm(m, n, k))
    fields: dict[str, Any] = {
        "fingerprint": FINGERPRINT,
        "operation": "gemm",
        "problem": problem.key(),
        "target": "cpu",
        "candidate": Candidate("blocked", Configuration({"sm": 64, "order": "ikj"})),
        "family_digest": "f" * 16,
        "space_digest": "5" * 16,
        "median_s": 1.25e-3,
        "interval_s": (1.2e-3, 1.3e-3),
        "gflops": 100.5,
        "ties": 2,
        "baseline": BaselineRecord("NumPy 2.4 (OpenBLAS)", 1.5e-3, 1.2),
        "effort": EffortRecord(200, 60.0, "auto", 0),
        "toolchain": TOOLCHAIN,
        "state": {"governor": "performance"},
        "version": "0.1.0",
        "created": "2026-01-31T12:00:00Z",
    }
    return TuningRecord(**(fields | changes))
