"""How many threads a kernel may use in this process, as it was started and as it is limited."""

from __future__ import annotations

import functools
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import threadpoolctl

from autotune.targets.cpu.system_files import integer_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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


def affinity_count() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def _is_limited_openblas(pool: Mapping[str, Any]) -> bool:
    # MKL has a thread per core of its own accord, and BLIS one in all: neither tells of a limit.
    if pool["internal_api"] != "openblas" or pool["threading_layer"] == "disabled":
        return False
    return int(pool["num_threads"]) < _OPENBLAS_THREADS


def read_quota(root: Path, membership: str) -> float | None:
    """Processors' worth of time that control groups grant this process; None if unlimited.

    Args:
        root: where the control groups are mounted.
        membership: the text of ``/proc/self/cgroup``.
    """
    quotas: list[float | None] = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            quotas += [
                parse_quota(text_of(group / "cpu.max")) for group in _with_ancestors(root, path)
            ]
        elif "cpu" in controllers.split(","):  # version 1, mounted under one name or the other
            for mount in (root / controllers, root / "cpu"):
                quotas += [
                    parse_quota(
                        text_of(group / "cpu.cfs_quota_us"), text_of(group / "cpu.cfs_period_us")
                    )
                    for group in _with_ancestors(mount, path)
                ]
    return min((quota for quota in quotas if quota is not None), default=None)


def parse_quota(quota: str, period: str = "") -> float | None:
    """Processors in the text of ``cpu.max``, e.g. 1.5 for "150000 100000"; None if unlimited.

    Version 1 of control groups has two files for the two numbers, and -1 for no limit.
    """
    if not period:
        quota, _, period = quota.partition(" ")
    microseconds, every = integer_of(quota), integer_of(period)
    return microseconds / every if microseconds > 0 and every > 0 else None


def _with_ancestors(mount: Path, path: str) -> list[Path]:
    """A group's folder and those above it, whose quotas bind it too.

    Inside a container the path may be the host's, of which only the root is visible.
    """
    group = mount / path.strip("/")
    return [place for place in (group, *group.parents) if place.is_relative_to(mount)]
