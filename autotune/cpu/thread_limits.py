"""How many threads a kernel may use in this process, as it was started and as it is limited."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any

import threadpoolctl

from autotune.core import session
from autotune.core.processors import integer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OPENBLAS_THREADS = 64
"""Threads that NumPy's OpenBLAS is built for; it has no more on any machine."""


def usable_threads(
    affinity: int, quota: float | None, numba_threads: str | None, pools: int | None
) -> int:
    """The threads a kernel may use: the least of the limits there are.

    Args:
        affinity: processors this process may run on.
        quota: processors' worth of time; a begun one counts. None if unlimited.
        numba_threads: the variable NUMBA_NUM_THREADS, which Numba cannot exceed.
        pools: as `pool_limit` gives it.
    """
    limits = [affinity]
    if quota is not None:
        limits.append(math.ceil(quota))
    if numba_threads and integer_of(numba_threads) > 0:
        limits.append(integer_of(numba_threads))
    if pools is not None:
        limits.append(pools)
    return max(1, min(limits))


def pool_limit(pools: Iterable[Mapping[str, Any]] | None = None) -> int | None:
    """The least that `threadpoolctl`, or a variable such as OMP_NUM_THREADS, leaves a thread pool.

    Pools that Numba starts later are not among them: before it does, NumPy's OpenBLAS alone tells
    of limits.

    Args:
        pools: as `threadpoolctl.threadpool_info` describes them; None asks it.

    Returns:
        Threads; None where no pool tells.
    """
    found = thread_pools() if pools is None else pools
    return min(
        (
            pool["num_threads"]
            for pool in found
            if pool["user_api"] == "openmp" or _is_limited_openblas(pool)
        ),
        default=None,
    )


def thread_pools() -> list[Mapping[str, Any]]:
    """The libraries with thread pools in this process, as `threadpool_info` describes them.

    What they say is asked for now; which there are, when more modules have been imported.
    """
    found: list[Mapping[str, Any]] = _libraries(len(sys.modules)).info()
    return found


def numpy_library() -> Mapping[str, Any] | None:
    """The BLAS that NumPy calls, as `threadpool_info` describes it.

    The one shipped in NumPy's own wheel is preferred where SciPy, say, has loaded another.
    """
    found = [each for each in thread_pools() if each["user_api"] == "blas"]
    return next((each for each in found if "numpy" in each["filepath"]), next(iter(found), None))


def lent_threads() -> tuple[Any, int] | None:
    """The function that has OpenBLAS's threads do a job, and their number with the caller's.

    It is ``gotoblas_pthread(jobs, function, arguments, bytes of one's arguments)``. None where
    NumPy calls another BLAS, or one without threads of its own.
    """
    found = numpy_library()
    if found is None or found.get("threading_layer") != "pthreads":
        return None
    library = ctypes.CDLL(found["filepath"])
    try:
        threads = ctypes.c_int.in_dll(library, "blas_num_threads").value
        return (library.gotoblas_pthread, threads) if threads > 1 else None
    except (AttributeError, ValueError):  # built otherwise
        return None


@session.cached(most=1)
def _libraries(modules: int) -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def _is_limited_openblas(pool: Mapping[str, Any]) -> bool:
    # MKL has a thread per core of its own accord, and BLIS one in all: neither tells of a limit.
    if pool["internal_api"] != "openblas" or pool["threading_layer"] == "disabled":
        return False
    return int(pool["num_threads"]) < _OPENBLAS_THREADS
