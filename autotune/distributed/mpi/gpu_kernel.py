"""Kernels of ranks with GPUs: operands of any library in a rank's GPU, as plans take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.device import check_place
from autotune.arrays.libraries import library_of
from autotune.core.errors import OperandError
from autotune.distributed.mpi.kernel import DistributedKernel
from autotune.gpu.arrays.kernel import describe
from autotune.gpu.driver import finish
from autotune.gpu.matrix import check_apart

if TYPE_CHECKING:
    from autotune.distributed.mpi.gpu.rank import GpuRank
    from autotune.distributed.mpi.loading import Plan
    from autotune.gpu.matrix import DeviceMatrix
    from autotune.operations.problem import Gemm


class GpuDistributedKernel(DistributedKernel):
    """As `DistributedKernel`; distributed operands are device arrays, each in its rank's GPU.

    A call waits for what is enqueued on the operands' streams, and returns when C is there.

    Args:
        problem: what is computed.
        comm: the ranks.
        plan: the emitted program's plan for the problem, on `comm`.
        gpu: what the plan was given.
        distributed: whether operands are kept in blocks by all ranks, or whole by rank 0, in the
            host's memory.
    """

    def __init__(
        self, problem: Gemm, comm: Any, plan: Plan, gpu: GpuRank, *, distributed: bool
    ) -> None:
        super().__init__(problem, comm, plan, distributed=distributed)
        self._gpu = gpu
        self._ordinal = gpu.machine.ordinal
        self._given: list[DeviceMatrix] = []

    def free(self) -> None:
        """Give communicators, datatypes, code and memory back."""
        super().free()
        self._gpu.close()

    def _check_blocks(self, a: Any, b: Any, out: Any, beta: float) -> Any:
        in_a, in_b, in_c = (block.shape for block in self.blocks)
        given = [self._matrix("a", a, in_a), self._matrix("b", b, in_b)]
        if out is None:
            if beta != 0:
                raise OperandError(
                    f"beta = {beta} scales what out holds: pass out=, or use beta = 0"
                )
            out = library_of(a).empty(a, in_c, self._problem.dtype, None)
        at_c = self._matrix("out", out, in_c)
        check_apart(at_c, a=given[0], b=given[1])
        self._given = [*given, at_c]
        return out

    def _multiply_blocks(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        given, self._given = self._given, []
        self._plan.on_blocks(*given, alpha, beta)  # type: ignore[call-arg, arg-type]

    def _matrix(self, name: str, array: Any, shape: tuple[int, int]) -> DeviceMatrix:
        """A block as plans take it.

        Raises:
            OperandError: it does not fit, or is not in this rank's GPU.
        """
        rank, dtype = self._comm.rank, self._problem.dtype
        if 0 in shape:
            return self._gpu.empty(shape, dtype)
        library = library_of(array)
        stream = self._gpu.machine.compute.handle
        found = describe(name, array, stream)
        whose = f"{name} of rank {rank}"
        address, (leading,) = check_place(whose, found, shape, dtype, written=name == "out")
        if found.device != self._ordinal:
            raise OperandError(
                f"{whose} must be in GPU {self._ordinal}, the rank's own, is in {found.device}"
            )
        if leading != shape[1]:
            raise OperandError(f"{whose} must be contiguous: pass a copy")
        own = library.current_stream(array) if library.ordered else found.stream
        if own is not None:
            finish(self._ordinal, own)
        return self._gpu.at(address, shape, np.dtype(dtype), (array, found))
