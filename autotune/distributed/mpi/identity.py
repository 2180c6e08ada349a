"""A set of ranks as a device: its identity, its limits, and what is recorded beside them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

from autotune.core import session
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import MissingDependencyError
from autotune.core.installing import install_hint
from autotune.core.interpreter import python
from autotune.core.limits import MpiLimits
from autotune.distributed.mpi.messages import GpuSet, RankSet
from autotune.distributed.mpi.mpiexec import find_mpiexec


def device_of(ranks: RankSet, local: Device, *, distributed: bool) -> Device:
    """The device that a set of ranks is.

    Where the operands are belongs to its identity: what is best for operands that have to travel
    from rank 0 is not what is best for those in place.

    Args:
        ranks: as they describe themselves.
        local: what a rank multiplies on, as rank 0 has it: the CPU of its node, or its GPU; the
            others are taken to be alike.
        distributed: whether operands are kept in blocks by all ranks, or whole by rank 0.
    """
    plural = "" if ranks.ranks == 1 else "s"
    gpus = ranks.gpus
    return replace(
        local,
        fingerprint=DeviceFingerprint(
            kind="mpi",
            name=f"{ranks.ranks} rank{plural} on {local.fingerprint.name}",
            fields={
                **local.fingerprint.fields,
                "ranks": ranks.ranks,
                "nodes": ranks.nodes,
                "cores": ranks.cores,
                "mpi": ranks.library,
                "transport": ranks.transport,
                "operands": "distributed" if distributed else "root",
                **({} if gpus is None else _gpu_fields(gpus)),
            },
        ),
        limits=MpiLimits(
            ranks.ranks,
            ranks.nodes,
            ranks.cores,
            int(distributed),
            gpus=0 if gpus is None else gpus.count,
            cuda_aware=int(gpus is not None and gpus.cuda_aware),
            nccl=int(gpus is not None and gpus.nccl),
        ),
        toolchain={**local.toolchain, "mpi": f"{ranks.library} {ranks.version}".strip()},
    )


def _gpu_fields(gpus: GpuSet) -> dict[str, str | int]:
    """What the identity of ranks with GPUs has besides: these, and how messages travel."""
    return {
        "gpu": gpus.name,
        "gpus": gpus.count,
        "cuda_aware": int(gpus.cuda_aware),
        "nccl": int(gpus.nccl),
    }


def expected(ranks: int, cores: int) -> RankSet:
    """The set that `ranks` ranks started here will be, as far as is known before they are.

    Args:
        ranks: how many.
        cores: hardware threads of this machine.

    Raises:
        MissingDependencyError: mpi4py or mpiexec is missing, or the MPI library does not load.
    """
    library, version, transport = parse_library(_library_version())
    return RankSet(ranks, 1, cores, library, version, transport)


@session.cached()
def _library_version() -> str:
    """What the MPI library says of itself, asked in a process of its own.

    Importing mpi4py starts MPI, which a program does once, if at all, and as it likes.
    """
    find_mpiexec()
    asked = subprocess.run(
        python(
            "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
            "print(MPI.Get_library_version())"
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        told = asked.stderr.strip().rpartition("\n")[2]
        raise MissingDependencyError(
            f"mpi4py does not find its MPI library ({told[:200]}): {install_hint('mpi')}",
            name="mpi4py",
        )
    return asked.stdout


def parse_library(text: str) -> tuple[str, str, str]:
    """Name, version and transport from what ``MPI_Get_library_version`` says.

    The transport is what MPICH calls its device; others do not say, and it is empty.
    """
    first = text.strip().splitlines()[0] if text.strip() else ""
    known = re.match(r"(MPICH|Open MPI|Intel\(R\) MPI)\D*([\d.]+)", first)
    name, version = (known[1], known[2]) if known else (first.split(",")[0] or "unknown", "")
    device = re.search(r"^MPICH Device:\s*(.+)$", text, re.MULTILINE)
    return name, version.strip("."), device[1].strip() if device else ""
