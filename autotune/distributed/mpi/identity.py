"""A set of ranks as a device: its identity, its limits, and a look at all that it needs here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

from autotune.core import session
from autotune.core.check import Check, Status, attempt
from autotune.core.deadline import Deadline
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import OutOfTimeError
from autotune.core.installing import install_hint
from autotune.core.limits import MpiLimits
from autotune.distributed.mpi.messages import RankSet
from autotune.distributed.mpi.mpiexec import ask_apart, find_mpiexec, parse_library
from autotune.distributed.mpi.patience import VARIABLE, patience_s
from autotune.distributed.mpi.processes import SIZE_NAMES, number_in
from autotune.serving.examining import Apart

_START_S = 60.0
_RANKS = 2


def device_of(ranks: RankSet, local: Device, *, distributed: bool) -> Device:
    """The device that a set of ranks is.

    Where the operands are belongs to its identity: what is best for operands that have to travel
    from rank 0 is not what is best for those in place.

    Args:
        ranks: as they describe themselves.
        local: multiplies within rank 0: the CPU of its node, or its GPU; the others' are alike.
        distributed: operands are kept in blocks by all ranks, instead of whole by rank 0.
    """
    plural = "" if ranks.ranks == 1 else "s"
    fields = {
        **local.fingerprint.fields,
        "ranks": ranks.ranks,
        "nodes": ranks.nodes,
        "cores": ranks.cores,
        "mpi": ranks.library,
        "transport": ranks.transport,
        "operands": "distributed" if distributed else "root",
    }
    limits = MpiLimits(ranks.ranks, ranks.nodes, ranks.cores, int(distributed))
    if (gpus := ranks.gpus) is not None:
        on_gpus = {
            "gpus": gpus.count,
            "cuda_aware": int(gpus.cuda_aware),
            "nccl": int(gpus.nccl),
        }
        fields = {**fields, "gpu": gpus.name, **on_gpus}
        limits = replace(limits, **on_gpus)
    name = f"{ranks.ranks} rank{plural} on {local.fingerprint.name}"
    return replace(
        local,
        fingerprint=DeviceFingerprint("mpi", name, fields),
        limits=limits,
        toolchain={**local.toolchain, "mpi": f"{ranks.library} {ranks.version}".strip()},
    )


def expected(ranks: int, cores: int) -> RankSet:
    """The set that so many ranks started here will be, as far as is known before they are.

    Args:
        ranks: number of ranks.
        cores: hardware threads of this machine.

    Raises:
        MissingDependencyError: mpi4py or mpiexec is missing, or the MPI library does not load.
    """
    return RankSet(ranks, 1, cores, *parse_library(_library_version()))


@session.cached()
def _library_version() -> str:
    find_mpiexec()
    return ask_apart(
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())",
        "mpi4py does not find its MPI library",
        f": {install_hint('mpi')}",
    )


def examine() -> Iterator[Check]:
    """Look at mpi4py, the launcher, the MPI library, and at ranks that meet.

    Nothing of it keeps a CPU or a GPU from working, so that all of it is notes.
    """
    hint = install_hint("mpi")
    if importlib.util.find_spec("mpi4py") is None:
        yield Check.note("mpi4py", "not installed", hint)
        return
    if os.environ.get(VARIABLE):
        yield attempt(VARIABLE, _patience, Status.NOTE)
    launcher = attempt("mpiexec", lambda: Check.ok("mpiexec", str(find_mpiexec())), Status.NOTE)
    yield launcher
    if launcher.status is not Status.OK:
        return
    with Apart() as apart:
        found = attempt("MPI", lambda: apart(library), Status.NOTE, hint)
    yield found
    if found.status is not Status.OK:
        return
    if (number_in(SIZE_NAMES, os.environ) or 1) > 1:
        yield Check.ok("ranks", "this process is one of several")
    else:
        yield attempt("ranks", _ranks, Status.NOTE)


def library() -> Check:
    """The library that mpi4py loads."""
    ranks = expected(1, 1)
    version = metadata.version("mpi4py")
    return Check.ok("MPI", f"mpi4py {version} loads {ranks.library} {ranks.version}".rstrip())


def _ranks() -> Check:
    """Start ranks that meet; they end with the process that started them."""
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
