"""A rank's GPU: two streams of it, kernels that multiply and add up, and NCCL as CuPy binds it."""

from __future__ import annotations

import atexit
import contextlib
import struct
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.dtypes import DTYPES
from autotune.distributed.machine.machine import GpuMachine
from autotune.distributed.machine.products import Products
from autotune.distributed.mpi.gpu.order import Collective
from autotune.distributed.mpi.messages import GpuProduct
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
    """One rank's GPU as plans use it; see `autotune.distributed.mpi.gpu.order.Machine`.

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
