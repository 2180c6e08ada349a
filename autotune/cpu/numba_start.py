"""Numba, imported without what kernels do not use."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import UnavailableError
from autotune.core.forking import LOADING

if TYPE_CHECKING:
    from collections.abc import Iterator


def import_numba() -> Any:
    """Numba, whose compiler then starts without SciPy's linear algebra.

    Raises:
        UnavailableError: its environment variables keep it from working.
    """
    found = _imported()
    if isinstance(found, UnavailableError):
        raise UnavailableError(*found.args)
    return found


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Raise an UnavailableError for what Numba raises when it is set up wrongly."""
    try:
        yield
    except (ImportError, UnavailableError):
        raise
    except Exception as error:  # ValueError, and others by version
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UnavailableError(
            f"Numba does not start ({told}): see the environment variables NUMBA_*"
        ) from error


@session.cached()
def _imported() -> Any:
    """Numba, or the error that says why there is none; it is not imported twice.

    Numba imports that to see whether it is there, whoever compiles or loads anything: a quarter of
    a second, most of what loading a kernel takes. Here it is looked for instead, and imported by
    what is compiled to calls of BLAS, as Numba does anyway.
    """
    try:
        with LOADING, working():
            numba = _import()
            if numba.config.DISABLE_JIT:
                raise UnavailableError(
                    "NUMBA_DISABLE_JIT must be 0 for kernels to be compiled, got "
                    f"{numba.config.DISABLE_JIT}: unset it"
                )
            return numba
    except UnavailableError as error:
        return error


def _import() -> Any:
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
