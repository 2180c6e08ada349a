"""What the target `mpi` needs of this machine: an MPI library, its launcher, ranks that meet.

Nothing of it keeps a CPU or a GPU from working, so that all of it is notes.
"""

from __future__ import annotations

import importlib.util
import os
from importlib import metadata
from typing import TYPE_CHECKING

from autotune.core.check import Check, Status, attempt
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.installing import install_hint
from autotune.distributed.mpi.identity import expected
from autotune.distributed.mpi.mpiexec import find_mpiexec
from autotune.distributed.mpi.patience import VARIABLE, patience_s
from autotune.distributed.mpi.ranks.launched import SIZE_NAMES, told
from autotune.serving.examining import Apart

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALL = install_hint("mpi")
_START_S = 60.0
_RANKS = 2


def examine() -> Iterator[Check]:
    """Look at each of them."""
    if importlib.util.find_spec("mpi4py") is None:
        yield Check.note("mpi4py", "not installed", _INSTALL)
        return
    if os.environ.get(VARIABLE):
        yield attempt(VARIABLE, _patience, Status.NOTE)
    launcher = attempt("mpiexec", _launcher, Status.NOTE)
    yield launcher
    if launcher.status is not Status.OK:
        return
    with Apart() as apart:
        found = attempt("MPI", lambda: apart(library), Status.NOTE, _INSTALL)
    yield found
    if found.status is not Status.OK:
        return
    if (told(SIZE_NAMES, os.environ) or 1) > 1:
        yield Check.ok("ranks", "this process is one of several")
    else:
        yield attempt("ranks", _ranks, Status.NOTE)


def library() -> Check:
    """What mpi4py loads."""
    ranks = expected(1, 1)
    version = metadata.version("mpi4py")
    return Check.ok("MPI", f"mpi4py {version} loads {ranks.library} {ranks.version}".rstrip())


def _launcher() -> Check:
    return Check.ok("mpiexec", str(find_mpiexec()))


def _ranks() -> Check:
    """Whether ranks start and meet; they end with the process that started them."""
    from autotune.distributed.mpi.ranks.world import World

    limit_s = min(_START_S, patience_s(_START_S))
    try:
        with World(_RANKS) as world:
            world.describe(Deadline(limit_s))
    except OutOfTimeError:
        return Check.note(
            "ranks",
            f"{_RANKS} ranks did not meet within {limit_s:g} s",
            "see whether `mpiexec -n 2 hostname` ends; mpiexec and mpi4py's library must be of "
            "one MPI",
        )
    return Check.ok("ranks", f"{_RANKS} ranks start and meet")


def _patience() -> Check:
    return Check.ok(VARIABLE, f"ranks wait {patience_s():g} s for each other")
