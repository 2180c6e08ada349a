"""Processors that this process may use, as Linux tells of them in small text files."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path


def usable_processors() -> int:
    """Processors for as many processes of ours: as affinity and quota allow, and at least one."""
    affinity, quota = affinity_count(), own_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def own_quota() -> float | None:
    """Processors' worth of time that this process is granted; None if unlimited."""
    return read_quota(Path("/sys/fs/cgroup"), text_of(Path("/proc/self/cgroup")))


def affinity_count() -> int:
    """Number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_quota(root: Path, membership: str) -> float | None:
    """Processors' worth of time that control groups grant this process; None if unlimited.

    Args:
        root: where the control groups are mounted.
        membership: the text of ``/proc/self/cgroup``.
    """
    files = _quota_files(root, membership)
    quotas = [parse_quota(*map(text_of, one)) for one in files if os.path.exists(one[0])]  # noqa: PTH110 - at every look-up
    return min(filter(None, quotas), default=None)


@functools.lru_cache(maxsize=16)
def _quota_files(root: Path, membership: str) -> list[tuple[Path, ...]]:
    """Files that may say what a group and those above it are granted."""
    files: list[tuple[Path, ...]] = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            files += [(group / "cpu.max",) for group in _with_ancestors(root, path)]
        elif "cpu" in controllers.split(","):  # version 1, mounted under one name or the other
            for mount in (root / controllers, root / "cpu"):
                files += [
                    (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
                    for group in _with_ancestors(mount, path)
                ]
    return files


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


def status_of(process: Path) -> list[str]:
    """All that Linux tells of a process or a thread, from its state on; empty when it is gone.

    Args:
        process: its folder under ``/proc``.
    """
    # Before that stand its number and, in parentheses, its name, which may hold anything.
    return text_of(process / "stat").rpartition(")")[2].split()


def text_of(path: Path) -> str:
    """The text of a file, stripped; empty where there is none to read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def integer_of(text: str) -> int:
    """A decimal or hexadecimal whole number; 0 when it is not one."""
    try:
        return int(text, 0)
    except ValueError:
        return 0
