"""Numba, imported without what kernels do not use."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from autotune.core.forking import LOADING


@functools.cache
def import_numba() -> Any:
    """Numba, whose compiler then starts without SciPy's linear algebra.

    Numba imports that to see whether it is there, whoever compiles or loads anything: a quarter of
    a second, most of what loading a kernel takes. Here it is looked for instead, and imported by
    what is compiled to calls of BLAS, as Numba does anyway.
    """
    with LOADING:
        linalg: Any = importlib.import_module("numba.np.linalg")
        ensure_blas = getattr(linalg, "ensure_blas", None)
        if ensure_blas is None:  # a Numba that looks elsewhere, or not at all
            return importlib.import_module("numba")
        linalg.ensure_blas = _look_for_scipy
        try:
            users: Any = importlib.import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = ensure_blas
        users.ensure_blas = ensure_blas
    return importlib.import_module("numba")


def _look_for_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ImportError("there is no SciPy")
