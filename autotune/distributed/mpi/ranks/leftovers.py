"""What ranks that are killed would leave behind in shared memory, taken away in time."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.distributed.mpi.mapped_files import mapped_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpi4py.MPI import Intracomm

SEGMENTS = "/dev/shm"
PREFIXES = ("mpich_shm_", "mpich_shar_tmp")
"""What MPICH calls the segments of its ranks and their windows. It unlinks windows when it has
made them, but the segment of a node only when MPI ends, which ranks that are killed do not see."""

OLD_S = 60.0
"""A segment that no process has mapped is somebody's who is just starting, unless it is so old."""


def unlink_segments(comm: Intracomm) -> None:
    """Take the names of MPI's segments away: all ranks have them mapped, and nobody else needs to.

    Args:
        comm: the ranks; all of them call this.
    """
    comm.Barrier()
    unlink(mapped(["self"]))


def mapped(processes: Iterable[int | str]) -> set[Path]:
    """The segments that processes have mapped, of those that still have a name."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for path in map(Path, mapped_files(process)):
                if path.parent == Path(SEGMENTS) and path.name.startswith(PREFIXES):
                    found.add(path)
    return {path for path in found if path.exists()}


def unlink(segments: Iterable[Path]) -> None:
    """Remove segments' names; what another rank has removed before is no matter."""
    for segment in segments:
        with contextlib.suppress(OSError):
            segment.unlink()


def sweep() -> None:
    """Remove the user's segments that no process has mapped: of ranks killed at their start."""
    old = set()
    for path in Path(SEGMENTS).glob("mpich_*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_old = time.time() - status.st_mtime > OLD_S
            if is_old and status.st_uid == os.getuid() and path.name.startswith(PREFIXES):
                old.add(path)
    if old:
        unlink(old - mapped(path.name for path in Path("/proc").glob("[0-9]*")))
