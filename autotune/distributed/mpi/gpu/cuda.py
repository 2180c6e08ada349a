"""A rank's GPU: how ranks take theirs, two streams of it, kernels that multiply or add, NCCL."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import re
import struct
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.device import Device
from autotune.core.dtypes import DTYPES
from autotune.core.errors import AutotuneError, InputError
from autotune.distributed.machine import GpuMachine, Products
from autotune.distributed.mpi.gpu.memory import Collective
from autotune.distributed.mpi.messages import GpuProduct, GpuSet
from autotune.distributed.mpi.processes import ask_apart, mapped_files, patience_s
from autotune.families.gpu.launch import LaunchStep
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.gpu.driver import activated, driver
from autotune.gpu.interface import Stream
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.nvidia.bindings import BindingsDriver
from autotune.gpu.nvidia.device import read_gpu

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_BLOCK = (256, 1, 1)
_BLOCKS = (1024, 1, 1)


def accumulate_source(dtype: str) -> Source:
    """The source of the kernel that adds matrices up."""
    text = resources.files("autotune.distributed.mpi.gpu").joinpath("accumulate.cu").read_text()
    return Source(f"typedef {DTYPES[dtype].c_type} T;\n\n{text}", "accumulate", (), "cuda", ".cu")


class Gpu:
    """A GPU whose primary context is this process's current one from now on.

    Args:
        ordinal: the driver's number of the device.

    Raises:
        MissingDependencyError: the bindings or the driver are missing.

    Attributes:
        name: of the device.
        bus: where it sits; two processes with the same one share a GPU.
    """

    def __init__(self, ordinal: int) -> None:
        device = read_gpu(ordinal)
        self.ordinal = ordinal
        self.name = device.fingerprint.name
        self.bus = device.state["pci_bus_id"]
        driver().enter(ordinal)


class CudaMachine(GpuMachine):
    """One rank's GPU as plans use it; see `autotune.distributed.mpi.gpu.memory.Machine`.

    Args:
        gpu: the GPU.
        product: the kernels that multiply, and their binaries.
        programs: holds sources and binaries.

    Raises:
        InputError: a family is not here, or not the one that the kernels were made from.
    """

    def __init__(self, gpu: Gpu, product: GpuProduct, programs: ProgramCache) -> None:
        self.product = product
        self.ordinal = gpu.ordinal
        dtype = product.kernels[0].dtype
        # Its streams have priorities, which PyCUDA's have not.
        products = Products(product.kernels, programs)
        super().__init__([gpu.ordinal], dtype, products, BindingsDriver())
        # NCCL's kernels get multiprocessors before the product's next blocks do.
        self.compute, self.transfer = (
            self.stream(gpu.ordinal, urgent=urgent) for urgent in (False, True)
        )
        self._module = self._driver.load(product.accumulate)
        self._accumulate = self._module.runner([LaunchStep("accumulate", _BLOCKS, _BLOCK)])
        self._pack = struct.Struct(f"PqPqqq{DTYPES[dtype].accumulated.letter}").pack

    def close(self) -> None:
        super().close()
        with activated(self.ordinal):
            self._module.unload()

    def expose(self, matrix: DeviceMatrix) -> object:
        return _Exposed(matrix)

    def accumulate(
        self, out: DeviceMatrix, other: DeviceMatrix | None, beta: float, stream: Any
    ) -> None:
        of = (0, 0) if other is None else (other.address, other.stride)
        packed = self._pack(out.address, out.stride, *of, *out.shape, beta)
        self._accumulate(packed, stream)

    def nccl(self, mpi: Intracomm) -> Collective:
        from mpi4py import MPI

        mine, everyone = mpi.Get_group(), MPI.COMM_WORLD.Get_group()
        ranks = tuple(mine.Translate_ranks(list(range(mpi.size)), everyone))
        if not _NCCL:
            atexit.register(_drop_nccl)  # while MPI and all ranks are still there
        if ranks not in _NCCL:
            _NCCL[ranks] = _CupyNccl(mpi, self.ordinal)
        return _NCCL[ranks]

    @contextlib.contextmanager
    def nccl_group(self) -> Iterator[None]:
        _nccl().groupStart()
        try:
            yield
        finally:
            _nccl().groupEnd()


class _Exposed:
    """A contiguous matrix as a CUDA-aware MPI takes it."""

    def __init__(self, matrix: DeviceMatrix) -> None:
        self._matrix = matrix
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (matrix.size,),
            "typestr": matrix.dtype.str,
            "data": (matrix.address, False),
            "strides": None,
        }


class _CupyNccl:
    """NCCL's communicator of some ranks; see `Collective`."""

    def __init__(self, mpi: Intracomm, ordinal: int) -> None:
        import cupy

        cupy.cuda.Device(ordinal).use()
        nccl = _nccl()
        identity = mpi.bcast(nccl.get_unique_id() if mpi.rank == 0 else None, 0)
        self._sum = nccl.NCCL_SUM
        self._comm = nccl.NcclCommunicator(mpi.size, identity, mpi.rank)

    def broadcast(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Stream
    ) -> None:
        self._comm.broadcast(sent, received, count, DTYPES[dtype].nccl, root, stream.handle)

    def reduce(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Stream
    ) -> None:
        kind = DTYPES[dtype].nccl
        self._comm.reduce(sent, received, count, kind, self._sum, root, stream.handle)

    def send(self, sent: int, count: int, dtype: str, peer: int, stream: Stream) -> None:
        self._comm.send(sent, count, DTYPES[dtype].nccl, peer, stream.handle)

    def receive(self, received: int, count: int, dtype: str, peer: int, stream: Stream) -> None:
        self._comm.recv(received, count, DTYPES[dtype].nccl, peer, stream.handle)

    def close(self) -> None:
        self._comm.destroy()


_NCCL: dict[tuple[int, ...], _CupyNccl] = session.keep("communicators of NCCL", {}, lasting=True)
"""NCCL's communicators, by their ranks among all: making one takes a good part of a second."""


def _drop_nccl() -> None:
    """Give NCCL's communicators back, in the order in which all their ranks have made them."""
    while _NCCL:
        _NCCL.pop(next(iter(_NCCL))).close()


def _nccl() -> Any:
    from cupy.cuda import nccl

    return nccl


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
            _taken = Gpu(place % visible)
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
        "import json; from mpi4py import MPI; from autotune.distributed.mpi.gpu import cuda; "
        "print(json.dumps([cuda.takes_gpu_memory(), cuda.has_nccl()]))",
        "MPI does not start",
        limit_s=patience_s(),
    )
    aware, nccl = json.loads(output.strip().rpartition("\n")[2])
    return aware, nccl
