"""A code-generating kernel autotuner.

Templates emit kernel source, device limits prune the parameter space, Optuna searches it, and
verified winners are cached under the device's fingerprint and come back as callables::

    from autotune import Gemm, load, tune

    problem = Gemm(m=1024, n=1024, k=1024, dtype="float32")
    result = tune(problem)
    c = load(problem)(a, b)

Importing this package is cheap: the modules behind the names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.catalog import find_operation as find_operation
    from autotune.configuration import Candidate as Candidate
    from autotune.configuration import Configuration as Configuration
    from autotune.device import Device as Device
    from autotune.device import DeviceFingerprint as DeviceFingerprint
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.errors import NotTunedError as NotTunedError
    from autotune.measurement import Measurement as Measurement
    from autotune.measurement import Outcome as Outcome
    from autotune.problem import Gemm as Gemm
    from autotune.product import Product as Product
    from autotune.runtime import Kernel as Kernel
    from autotune.runtime import load as load
    from autotune.runtime import matmul as matmul
    from autotune.search import Searcher as Searcher
    from autotune.space import SearchSpace as SearchSpace
    from autotune.space import SpaceUnion as SpaceUnion
    from autotune.store import MatchQuality as MatchQuality
    from autotune.store import TuningCache as TuningCache
    from autotune.store import TuningRecord as TuningRecord
    from autotune.sweeper import SweepResult as SweepResult
    from autotune.sweeper import sweep as sweep
    from autotune.tuner import TuneResult as TuneResult
    from autotune.tuner import tune as tune

__version__ = "0.1.0"

_HOME = {
    "AutotuneError": "errors",
    "Candidate": "configuration",
    "Configuration": "configuration",
    "Device": "device",
    "DeviceFingerprint": "device",
    "Gemm": "problem",
    "Kernel": "runtime",
    "MatchQuality": "store",
    "Measurement": "measurement",
    "NotTunedError": "errors",
    "Outcome": "measurement",
    "Product": "product",
    "SearchSpace": "space",
    "Searcher": "search",
    "SpaceUnion": "space",
    "SweepResult": "sweeper",
    "TuneResult": "tuner",
    "TuningCache": "store",
    "TuningRecord": "store",
    "find_operation": "catalog",
    "load": "runtime",
    "matmul": "runtime",
    "sweep": "sweeper",
    "tune": "tuner",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"autotune.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
