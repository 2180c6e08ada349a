"""A rank's GPU through the driver: memory, streams, and a tuned kernel for every size."""

from __future__ import annotations

import atexit
import contextlib
import struct
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError, LaunchError
from autotune.families.bound import Bound
from autotune.families.launch import LaunchStep, plan_or_none
from autotune.families.rendering import Source
from autotune.operations.problem import Gemm
from autotune.targets.cuda.device.identity import read_gpu
from autotune.targets.cuda.driver.bindings import BindingsDriver
from autotune.targets.cuda.driver.context import describe
from autotune.targets.cuda.driver.interface import DriverError, driver
from autotune.targets.cuda.launch.launch import CudaKernel
from autotune.targets.cuda.launch.program import CudaProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

    from autotune.core.limits import CudaLimits
    from autotune.families.family import KernelFamily
    from autotune.targets.cuda.driver.interface import Event, Memory
    from autotune.targets.mpi.gpu.matrix import Collective, GpuMatrix
    from autotune.targets.mpi.messages import GpuKernel, GpuProduct

_BLOCK = (256, 1, 1)
_BLOCKS = (1024, 1, 1)


def accumulate_source(dtype: str) -> Source:
    """The source of what adds matrices up."""
    text = resources.files("autotune.targets.mpi.gpu").joinpath("accumulate.cu").read_text()
    return Source(f"typedef {DTYPES[dtype].c_type} T;\n\n{text}", "accumulate", (), "cuda")


class Gpu:
    """A GPU whose primary context is this process's current one from now on.

    Args:
        ordinal: the driver's number of the device.

    Raises:
        MissingDependencyError: the bindings or the driver are missing.

    Attributes:
        ordinal: the driver's number of the device.
        limits: its limits.
        name: its name.
        bus: where it sits; two processes with the same one share a GPU.
    """

    def __init__(self, ordinal: int) -> None:
        device = read_gpu(ordinal)
        self.ordinal = ordinal
        self.name = device.fingerprint.name
        self.bus = device.state["pci_bus_id"]
        self.limits: CudaLimits = device.limits  # type: ignore[assignment]
        driver().enter(ordinal)


class CudaMachine:
    """One rank's GPU as plans use it; see `Machine`.

    Args:
        gpu: the GPU.
        product: the kernels that multiply, and what they are compiled to.
        families: the families that they are of, by name.

    Raises:
        InputError: a family is not here, or not the one that the kernels were made from.

    Attributes:
        product: what it was made from.
    """

    def __init__(
        self, gpu: Gpu, product: GpuProduct, families: Mapping[str, KernelFamily]
    ) -> None:
        self.product = product
        self._gpu = gpu
        # Its streams have priorities, which PyCUDA's have not.
        self._driver = BindingsDriver()
        self._dtype = product.dtype
        # NCCL's kernels get multiprocessors before the product's next blocks do.
        self._streams = [
            self._driver.stream(blocking=False, urgent=urgent) for urgent in (False, True)
        ]
        self.compute, self.transfer = (int(stream) for stream in self._streams)
        self._kernels = [_Sized(each, product.dtype, gpu, families) for each in product.kernels]
        self._launches: dict[tuple[int, int, int], Callable[..., None]] = {}
        module = self._driver.load(product.accumulate)
        self._accumulate = module.runner([LaunchStep("accumulate", _BLOCKS, _BLOCK)])
        self._pack = struct.Struct(f"PqPqqq{DTYPES[product.dtype].accumulated.letter}").pack

    def allocate(self, size: int) -> Memory:
        """See `Machine.allocate`."""
        with _launch_errors():
            memory: Memory = self._driver.allocate(size)
        return memory

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """See `Machine.pinned`."""
        with _launch_errors():
            return self._driver.pinned(size, np.uint8)[0]

    def pin(self, address: int, size: int) -> None:
        """See `Machine.pin`."""
        if not self._driver.lock(address, size):
            raise LaunchError(f"the GPU's driver does not page-lock {size} bytes of the host")

    def unpin(self, address: int) -> None:
        """See `Machine.unpin`."""
        self._driver.unlock(address)

    def copy(
        self,
        stream: int,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
    ) -> None:
        """See `Machine.copy`."""
        with _launch_errors():
            self._driver.copy_rows(target, source, row_bytes, rows, stream)

    def record(self, stream: int) -> Event:
        """See `Machine.record`."""
        with _launch_errors():
            event: Event = self._driver.event(timed=False)
            event.record(stream)
        return event

    def follow(self, stream: int, event: Event) -> None:
        """See `Machine.follow`."""
        with _launch_errors():
            self._streams[(self.compute, self.transfer).index(stream)].wait_for_event(event)

    def is_past(self, event: Event) -> bool:
        """See `Machine.is_past`."""
        with _launch_errors():
            return event.query()

    def settle(self, event: Event) -> None:
        """See `Machine.settle`."""
        with _launch_errors():
            event.synchronize()

    def drain(self) -> None:
        """See `Machine.drain`."""
        with _launch_errors():
            for stream in self._streams:
                stream.synchronize()

    def expose(self, matrix: GpuMatrix) -> object:
        """See `Machine.expose`."""
        return _Exposed(matrix)

    def multiply(
        self, a: GpuMatrix, b: GpuMatrix, out: GpuMatrix, alpha: float, beta: float
    ) -> None:
        """See `Machine.multiply`."""
        sizes = (*a.shape, b.shape[1])
        launch = self._launches.get(sizes)  # type: ignore[arg-type]
        if launch is None:
            m, n, k = sizes
            launch = self._launches[m, n, k] = self._launch_for(Gemm(m, n, k, self._dtype))
        places = (value for each in (a, b, out) for value in (each.address, _leading(each)))
        launch(*places, alpha, beta, self.compute)

    def accumulate(self, out: GpuMatrix, other: GpuMatrix | None, beta: float) -> None:
        """See `Machine.accumulate`."""
        rows, columns = out.shape
        of = (0, 0) if other is None else (other.address, _leading(other))
        packed = self._pack(out.address, _leading(out), *of, rows, columns, beta)
        self._accumulate(packed, self.compute)

    def nccl(self, mpi: Intracomm) -> Collective:
        """See `Machine.nccl`."""
        from mpi4py import MPI

        group, everyone = mpi.Get_group(), MPI.COMM_WORLD.Get_group()
        ranks = tuple(group.Translate_ranks(list(range(mpi.size)), everyone))
        if not _NCCL:
            atexit.register(_drop_nccl)  # while MPI and all ranks are still there
        if ranks not in _NCCL:
            _NCCL[ranks] = _CupyNccl(mpi, self._gpu.ordinal)
        return _NCCL[ranks]

    @contextlib.contextmanager
    def nccl_group(self) -> Any:
        """See `Machine.nccl_group`."""
        _nccl().groupStart()
        try:
            yield
        finally:
            _nccl().groupEnd()

    def _launch_for(self, problem: Gemm) -> Callable[..., None]:
        """The first kernel that is valid for the sizes."""
        for kernel in self._kernels:
            if (launch := kernel.launch(problem)) is not None:
                return launch
        raise LaunchError(f"no local kernel can be launched for {problem.label}")


class _Sized:
    """A kernel of one configuration, for whatever sizes plans come with."""

    def __init__(
        self, kernel: GpuKernel, dtype: str, gpu: Gpu, families: Mapping[str, KernelFamily]
    ) -> None:
        family = families.get(kernel.family)
        if family is None or family.digest != kernel.digest:
            raise InputError(
                f"family {kernel.family!r} of target cuda must be the same on all nodes"
            )
        self._family = family
        self._kernel = kernel
        self._dtype = dtype
        self._gpu = gpu
        self._loaded: CudaKernel | None = None

    def launch(self, problem: Gemm) -> Callable[..., None] | None:
        """What multiplies matrices of these sizes; None where it is not valid for them."""
        bound = Bound(self._family, self._kernel.configuration, problem, self._gpu.limits)
        plan = plan_or_none(bound, problem)
        if plan is None:
            return None
        if self._loaded is None:
            program = CudaProgram(self._kernel.cubin, plan, self._dtype)
            self._loaded = CudaKernel(program, self._gpu.ordinal)
        return self._loaded.launcher(plan)


@contextlib.contextmanager
def _launch_errors() -> Iterator[None]:
    """What the driver refuses is an error that callers know."""
    try:
        yield
    except DriverError as error:
        raise LaunchError(f"the GPU's driver fails: {describe(error)}") from error


class _Exposed:
    """A contiguous matrix as a CUDA-aware MPI takes it."""

    def __init__(self, matrix: GpuMatrix) -> None:
        self._matrix = matrix
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (matrix.size,),
            "typestr": matrix.dtype.str,
            "data": (matrix.address, False),
            "strides": None,
        }


class _CupyNccl:
    """See `Collective`: NCCL as CuPy binds it."""

    def __init__(self, mpi: Intracomm, ordinal: int) -> None:
        import cupy

        cupy.cuda.Device(ordinal).use()
        nccl = _nccl()
        identity = mpi.bcast(nccl.get_unique_id() if mpi.rank == 0 else None, 0)
        self._sum = nccl.NCCL_SUM
        self._comm = nccl.NcclCommunicator(mpi.size, identity, mpi.rank)

    def broadcast(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: int
    ) -> None:
        """See `Collective.broadcast`."""
        self._comm.broadcast(sent, received, count, DTYPES[dtype].nccl, root, stream)

    def reduce(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: int
    ) -> None:
        """See `Collective.reduce`."""
        kind = DTYPES[dtype].nccl
        self._comm.reduce(sent, received, count, kind, self._sum, root, stream)

    def send(self, sent: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """See `Collective.send`."""
        self._comm.send(sent, count, DTYPES[dtype].nccl, peer, stream)

    def receive(self, received: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """See `Collective.receive`."""
        self._comm.recv(received, count, DTYPES[dtype].nccl, peer, stream)

    def close(self) -> None:
        """Give it back."""
        self._comm.destroy()


_NCCL: dict[tuple[int, ...], _CupyNccl] = {}
"""NCCL's communicators, by their ranks among all: making one takes a good part of a second."""


def _drop_nccl() -> None:
    """Give NCCL's communicators back, in the order in which all their ranks have made them."""
    while _NCCL:
        _NCCL.pop(next(iter(_NCCL))).close()


def _nccl() -> Any:
    from cupy.cuda import nccl

    return nccl


def _leading(matrix: GpuMatrix) -> int:
    """Elements from one row to the next."""
    return matrix.strides[0] if matrix.shape[0] > 1 else max(1, matrix.shape[1])
