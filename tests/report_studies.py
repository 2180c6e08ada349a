"""Studies for tests of reports, made up, with everything that trials of a GPU say."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from autotune.core.measurement import Outcome
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.reporting.study import FAILED, Study, Trial

RUN = {
    "started": "2026-01-31T12:00:00+00:00",
    "sampler": "auto",
    "seed": 0,
    "version": "0.1.0",
    "fingerprint": {"kind": "cuda", "name": "Example GPU", "fields": {"memory_gib": 80}},
    "limits": find_gpu("h200").limits.names(),
    "toolchain": {"driver": "580.1", "nvrtc": "13.0"},
    "state": {"max_sm_clock_mhz": "1980", "throttle": "none"},
    "seconds": 63.0,
    "spent_s": {"compiling": 20.0, "trials": 25.0, "library": 2.0, "finals": 12.0},
}
PROBLEM = Gemm(1024, 1024, 1024)


def gpu_study(name: str = "gpu", count: int = 120, seed: int = 0, **changes: Any) -> Study:
    """A search of two families; some trials fail in each way there is."""
    rng = random.Random(seed)
    trials = [_trial(number, rng) for number in range(1, count + 1)]
    study = Study(
        name=name,
        trials=trials,
        source="made up",
        device="Example GPU",
        target="cuda",
        problem=PROBLEM,
        families=("naive", "tiled"),
        runs=(RUN,),
    )
    return replace(study, **changes)


def failing_study(count: int = 12) -> Study:
    """Nothing in it was right."""
    trials = [
        Trial(number, "block", {"sm": 64}, Outcome.COMPILE_FAILED, None, reason=f"line {number}")
        for number in range(1, count + 1)
    ]
    return Study("failing", trials, target="cuda", problem=PROBLEM)


def recorded_study() -> Study:
    """A recording without a problem, a unit, a device or families."""
    trials = [
        Trial(x + 1, "", {"x": x, "kind": "ab"[x % 2]}, Outcome.OK if x % 5 else FAILED, value)
        for x in range(30)
        for value in [1.0 + (x - 11) ** 2 if x % 5 else None]
    ]
    return Study("recorded", trials, unit="", source="replay file")


def _trial(number: int, rng: random.Random) -> Trial:
    family = rng.choice(["block", "pipelined"])
    configuration: dict[str, Any] = {
        "sm": rng.choice([32, 64, 128]),
        "tx": rng.choice([2, 4, 8]),
        "order": rng.choice(["row", "column"]),
    }
    if family == "pipelined":
        configuration["stages"] = rng.choice([2, 3, 4])
    seconds = 1e-4 * (1 + 64 / configuration["sm"] + abs(configuration["tx"] - 4) / 4)
    seconds *= rng.uniform(0.97, 1.03)
    details: dict[str, float | int | str] = {
        "compile_s": round(rng.uniform(0.3, 2.0), 3),
        "trial_s": round(rng.uniform(0.05, 0.3), 3),
        "registers": 32 + 8 * configuration["tx"],
        "occupancy": round(1 / configuration["tx"], 3),
        "spill_bytes": 0 if configuration["tx"] < 8 else 16,
        "shared_bytes": 256 * configuration["sm"],
    }
    drawn = rng.random()
    common = (number, family, configuration)
    if drawn < 0.05:
        return Trial(*common, Outcome.COMPILE_FAILED, None, reason="expected ';' in line 12")
    if drawn < 0.08:
        reason = f"error of {rng.uniform(2, 9):.1f} times the limit"
        return Trial(*common, Outcome.WRONG_RESULT, None, reason=reason, details=details)
    if drawn < 0.2:
        reason = "3 times the best after 3 runs"
        return Trial(*common, Outcome.ABANDONED, 3 * seconds, None, 3, reason, details, number / 2)
    interval = (0.99 * seconds, 1.01 * seconds)
    return Trial(*common, Outcome.OK, seconds, interval, 40, "", details, number / 2)
