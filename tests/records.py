"""Devices, tuning records and a portfolio for tests of everything that stores or looks them up."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.limits import CpuLimits
from autotune.model import TERMS, Entry, Portfolio
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


CUBIN = b"\x7fELF one"
ENTRY = Entry(
    family="pipelined",
    family_digest="0123456789abcdef",
    layout="nt",
    configuration=Configuration({"sm": 64, "order": "rows", "splits": 1}),
    free=("splits",),
    calls=((1,), (16,)),
    resident=2.0,
    prices=tuple(1e-9 * number for number in range(len(TERMS))),
    spread=0.07,
    measured=31,
    largest=8e9,
    binary=hashlib.sha256(CUBIN).hexdigest(),
)
PORTFOLIO = Portfolio(
    operation="gemm",
    target="cuda",
    fingerprint=DeviceFingerprint("cuda", "NVIDIA H200", {"compute_capability": "9.0"}),
    dtype="float32",
    out_dtype="float32",
    accuracy="ieee",
    threads=None,
    architecture="sm_90",
    toolchain={"nvrtc": "13.0"},
    entries=(ENTRY, replace(ENTRY, layout="nn", binary=None, free=(), calls=())),
    families={"pipelined": tuple(1e-12 * number for number in range(len(TERMS)))},
    shapes=60,
    loss=0.01,
    created="2026-01-31T12:00:00.000000Z",
)
