"""A rank's GPU: two streams of it, the kernels that multiply and add up, and NCCL."""

from __future__ import annotations

import struct
from importlib import resources
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.distributed.machine.machine import GpuMachine
from autotune.distributed.machine.products import Products
from autotune.distributed.mpi.gpu.collective import communicator, group
from autotune.families.gpu.launch import LaunchStep
from autotune.families.rendering import Source
from autotune.gpu.driver import activated, driver
from autotune.gpu.nvidia.bindings import BindingsDriver
from autotune.gpu.nvidia.device import read_gpu

if TYPE_CHECKING:
    import contextlib

    from mpi4py.MPI import Intracomm

    from autotune.distributed.mpi.gpu.order import Collective
    from autotune.distributed.mpi.messages import GpuProduct
    from autotune.families.program_cache import ProgramCache
    from autotune.gpu.matrix import DeviceMatrix

_BLOCK = (256, 1, 1)
_BLOCKS = (1024, 1, 1)


def accumulate_source(dtype: str) -> Source:
    """The source of what adds matrices up."""
    text = resources.files("autotune.distributed.mpi.gpu").joinpath("accumulate.cu").read_text()
    return Source(f"typedef {DTYPES[dtype].c_type} T;\n\n{text}", "accumulate", (), "cuda", ".cu")


class Gpu:
    """A GPU whose primary context is this process's current one from now on.

    Args:
        ordinal: the driver's number of the device.

    Raises:
        MissingDependencyError: the bindings or the driver are missing.

    Attributes:
        ordinal: the driver's number of the device.
        name: its name.
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
        product: the kernels that multiply, and what they are compiled to.
        programs: where sources are, and what was compiled from them before.

    Raises:
        InputError: a family is not here, or not the one that the kernels were made from.

    Attributes:
        product: what it was made from.
        ordinal: the driver's number of the GPU.
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
        """Free everything; plans must have been freed first."""
        super().close()
        with activated(self.ordinal):
            self._module.unload()

    def expose(self, matrix: DeviceMatrix) -> object:
        """See `Machine.expose`."""
        return _Exposed(matrix)

    def accumulate(
        self, out: DeviceMatrix, other: DeviceMatrix | None, beta: float, stream: Any
    ) -> None:
        """See `Machine.accumulate`."""
        of = (0, 0) if other is None else (other.address, other.stride)
        packed = self._pack(out.address, out.stride, *of, *out.shape, beta)
        self._accumulate(packed, stream)

    def nccl(self, mpi: Intracomm) -> Collective:
        """See `Machine.nccl`."""
        return communicator(mpi, self.ordinal)

    def nccl_group(self) -> contextlib.AbstractContextManager[object]:
        """See `Machine.nccl_group`."""
        return group()


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
