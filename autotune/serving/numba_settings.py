"""Settings of Numba that change the code it generates, as far as they are not its defaults.

Numba's own file cache does not look at most of them, and here many programs share that cache.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

_DEFAULTS: dict[str, Any] = {
    "BOUNDSCHECK": None,
    "CPU_FEATURES": None,
    "CPU_NAME": None,
    "CUDA_DEBUGINFO_DEFAULT": 0,
    "DEBUGINFO_DEFAULT": 0,
    "DEBUG_ARRAY_OPT_RUNTIME": 0,
    "DEBUG_NRT": 0,
    "DISABLE_INTEL_SVML": 0,
    "DISABLE_JIT": 0,
    "ENABLE_PROFILING": 0,
    "EXTEND_VARIABLE_LIFETIMES": 0,
    "LLVM_REFPRUNE_FLAGS": "all",
    "LLVM_REFPRUNE_PASS": 1,
    "LOOP_VECTORIZE": 1,
    "OPT": 3,
    "PARFOR_MAX_TUPLE_SIZE": 100,
    "SLP_VECTORIZE": 0,
}
"""By their names in `numba.config`."""

_AVX = "NUMBA_ENABLE_AVX"  # whose default is the processor's
_FILE = ".numba_config.yaml"
_VARIABLES = (
    *(f"NUMBA_{name.removesuffix('_DEFAULT')}" for name in _DEFAULTS),
    "VS_PROFILER",
    _AVX,
)

_READ: list[tuple[object, ...]] = [()]
"""The environment as Numba's settings were last read from it."""


def numba_settings() -> str:
    """Settings as "LOOP_VECTORIZE=0 OPT=1"; empty where all are Numba's defaults.

    As Numba would compile now: a program may change them while it runs. Numba is imported only
    where its environment names one.
    """
    config: Any = sys.modules.get("numba.core.config")
    given = (*map(os.environ.get, _VARIABLES), os.path.exists(_FILE) or None)  # noqa: PTH110 - at every look-up
    if given.count(None) < len(given):
        config = importlib.import_module("numba.core.config")
    if config is None:
        return ""
    if given != _READ[0]:  # Numba looks again before it compiles
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            config.reload_config()
        _READ[0] = given
    changed = {
        name: value
        for name, usual in _DEFAULTS.items()
        if (value := getattr(config, name, usual)) != usual
    }
    if _AVX in os.environ:
        changed["ENABLE_AVX"] = getattr(config, "ENABLE_AVX", "")
    if getattr(getattr(config, "OPT", None), "is_opt_max", False):
        changed["OPT"] = "max"
    if not changed:
        return ""
    return " ".join(
        f"{name}={int(value) if isinstance(value, int) else value}"
        for name, value in sorted(changed.items())
    )
