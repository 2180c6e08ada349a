"""A rank's GPU, and the GPUs of a set of ranks."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.device import Device
from autotune.core.errors import AutotuneError, InputError
from autotune.distributed.mpi.messages import GpuSet
from autotune.distributed.mpi.mpiexec import ask_apart
from autotune.distributed.mpi.patience import patience_s
from autotune.distributed.mpi.processes import mapped_files

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.distributed.mpi.gpu.cuda import Gpu

_taken: Gpu | None = None


def count_gpus() -> int:
    """The number of GPUs that this process may use, at least one."""
    from autotune.gpu.nvidia.device import load_driver, read_gpu

    read_gpu()  # says clearly what is missing
    _, count = load_driver().cuDeviceGetCount()
    return int(count)


def check_gpus(ranks: int) -> Device:
    """The first GPU here; so many ranks have one like it each.

    Raises:
        InputError: there are fewer GPUs than ranks.
        MissingDependencyError: there is none, or a package for them is missing.
    """
    from autotune.gpu.driver import driver
    from autotune.gpu.nvidia.device import read_gpu

    count = count_gpus()
    if ranks > count:
        raise InputError(too_few(ranks, count))
    driver()
    return read_gpu()


def too_few(ranks: int, gpus: int) -> str:
    """The message where ranks of one machine cannot have a GPU each."""
    have = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    return f"each rank takes a GPU of its own, got {ranks} ranks with {have}: start {gpus}"


def take_gpu(comm: Intracomm) -> Gpu:
    """This rank's GPU, which is the process's from now on: one for each rank of a node, in order.

    Raises:
        InputError: there are fewer GPUs than ranks on a node; on every rank.
        MissingDependencyError: a package or the driver is missing; on every rank.
        LaunchError: the driver refuses a GPU; on every rank.
    """
    global _taken
    from mpi4py import MPI

    from autotune.distributed.mpi.gpu import cuda

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    place, neighbours = node.rank, node.size
    node.Free()
    error: AutotuneError | None = None
    if _taken is None:
        try:
            visible = count_gpus()
            # A scheduler may show every rank one GPU, its own.
            if visible < neighbours and visible > 1:
                raise InputError(too_few(neighbours, visible))
            _taken = cuda.Gpu(place % visible)
        except AutotuneError as refused:
            error = refused
    mine = (MPI.Get_processor_name(), "" if _taken is None else _taken.bus)
    answers = comm.allgather((error, mine))
    for fault, _ in answers:
        if fault is not None:
            raise fault
    buses = [where for _, where in answers]
    here = [bus for name, bus in buses if name == mine[0]]
    if len(set(buses)) < len(buses):
        raise InputError(too_few(len(here), len(set(here))))
    assert _taken is not None
    return _taken


def describe_gpus(comm: Intracomm) -> GpuSet:
    """The GPUs of all ranks; called by all of them, the same on each.

    Raises:
        InputError: they are not alike, or there are fewer than ranks.
        MissingDependencyError: a package or the driver is missing.
    """
    gpu = take_gpu(comm)
    answers = comm.allgather((gpu.name, takes_gpu_memory(), has_nccl()))
    names = sorted({name for name, _, _ in answers})
    if len(names) > 1:
        raise InputError(f"the ranks' GPUs must be alike, got {', '.join(names)}")
    return GpuSet(
        name=names[0],
        count=comm.size,
        cuda_aware=all(aware for _, aware, _ in answers),
        nccl=all(nccl for _, _, nccl in answers),
    )


def expected_gpus(ranks: int, gpu: Device) -> GpuSet:
    """The GPUs, all like `gpu`, of ranks started here, as far as is known before they are."""
    aware, nccl = _abilities()
    return GpuSet(gpu.fingerprint.name, ranks, aware, nccl)


def takes_gpu_memory() -> bool:
    """Ask the MPI library, which is loaded and started, whether it is CUDA-aware."""
    for path in loaded_mpi(mapped_files("self")):
        query = getattr(ctypes.CDLL(path), "MPIX_Query_cuda_support", None)
        if query is not None:
            return bool(query())
    return False


def loaded_mpi(paths: Iterable[str]) -> list[str]:
    """The paths of MPI libraries among others."""
    return sorted(path for path in paths if re.search(r"/libmpi(ch)?\.so[.\d]*$", path))


def has_nccl() -> bool:
    """Tell whether CuPy is here with its binding of NCCL."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        return False
    return bool(getattr(nccl, "available", True))


@session.cached()
def _abilities() -> tuple[bool, bool]:
    """`takes_gpu_memory` and `has_nccl`, asked in a process of its own, which starts MPI."""
    output = ask_apart(
        "import json; from mpi4py import MPI; from autotune.distributed.mpi.gpu import gpus; "
        "print(json.dumps([gpus.takes_gpu_memory(), gpus.has_nccl()]))",
        "MPI does not start",
        limit_s=patience_s(),
    )
    aware, nccl = json.loads(output.strip().rpartition("\n")[2])
    return aware, nccl
