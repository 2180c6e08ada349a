"""Numba-CUDA, where tests can use it."""

from __future__ import annotations

import pytest


def needs_numba() -> None:
    """Skip tests of Numba-CUDA where it, or what it is built on, is missing or does not fit."""
    from autotune.core.errors import MissingDependencyError
    from autotune.gpu.nvidia.numba_compiler import check_numba

    try:
        check_numba()
    except MissingDependencyError as missing:
        pytest.skip(str(missing), allow_module_level=True)
