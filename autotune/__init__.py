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

from typing import TYPE_CHECKING

from autotune.core.faces import lazily
from autotune.core.version import __version__ as __version__

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate as Candidate
    from autotune.core.configuration import Configuration as Configuration
    from autotune.core.device import Device as Device
    from autotune.core.device import DeviceFingerprint as DeviceFingerprint
    from autotune.core.errors import AutotuneError as AutotuneError
    from autotune.core.errors import NotTunedError as NotTunedError
    from autotune.core.measurement import Measurement as Measurement
    from autotune.core.measurement import Outcome as Outcome
    from autotune.operations.problem import Gemm as Gemm
    from autotune.operations.problem import Product as Product
    from autotune.own import OwnKernel as OwnKernel
    from autotune.own import kernel as kernel
    from autotune.research.sweeps import SweepResult as SweepResult
    from autotune.research.sweeps import sweep as sweep
    from autotune.runtime.loading import load as load
    from autotune.runtime.multiplying import matmul as matmul
    from autotune.search import Searcher as Searcher
    from autotune.serving.kernel import Kernel as Kernel
    from autotune.space import SearchSpace as SearchSpace
    from autotune.space import SpaceUnion as SpaceUnion
    from autotune.store import MatchQuality as MatchQuality
    from autotune.store import TuningCache as TuningCache
    from autotune.store import TuningRecord as TuningRecord
    from autotune.targets.families import find_operation as find_operation
    from autotune.tuning.tuner import TuneResult as TuneResult
    from autotune.tuning.tuner import tune as tune


_HOME = {
    "AutotuneError": "core.errors",
    "Candidate": "core.configuration",
    "Configuration": "core.configuration",
    "Device": "core.device",
    "DeviceFingerprint": "core.device",
    "Gemm": "operations.problem",
    "Kernel": "serving.kernel",
    "MatchQuality": "store",
    "Measurement": "core.measurement",
    "NotTunedError": "core.errors",
    "Outcome": "core.measurement",
    "OwnKernel": "own",
    "Product": "operations.problem",
    "SearchSpace": "space",
    "Searcher": "search",
    "SpaceUnion": "space",
    "SweepResult": "research.sweeps",
    "TuneResult": "tuning.tuner",
    "TuningCache": "store",
    "TuningRecord": "store",
    "find_operation": "targets.families",
    "kernel": "own",
    "load": "runtime",
    "matmul": "runtime",
    "sweep": "research.sweeps",
    "tune": "tuning.tuner",
}

__all__ = [*_HOME, "__version__"]


__getattr__ = lazily(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
