"""Checks of arguments that targets of several GPUs and of ranks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.device import Device
from autotune.core.errors import InputError, OperandError

if TYPE_CHECKING:
    from autotune.operations.problem import Problem


def check_layout(problem: Problem | None, target: str) -> None:
    """Refuse a problem that is no gemm, or whose operands are transposed."""
    from autotune.operations.problem import only_gemm  # late: listing targets needs no NumPy

    if problem is not None and only_gemm(problem, f"target {target}").layout != "nn":
        raise InputError(
            f"layout must be nn on target {target}, got {problem.label}: transpose the operands"
        )


def check_beta(beta: float, out: object) -> None:
    """Refuse a beta without an output that it scales."""
    if out is None and beta != 0:
        raise OperandError(f"beta = {beta} scales what out holds: pass out=, or use beta = 0")


def described_gpu(name: int | str, which: str) -> Device:
    """The GPU of that name, which need not be here.

    Args:
        name: as for target cuda.
        which: "target mpi uses ..", for who gives a number.
    """
    from autotune.gpu.nvidia.target import CudaTarget

    if str(name).strip().isdecimal():
        raise InputError(f"{which}, got device {name}: choose them with CUDA_VISIBLE_DEVICES")
    return CudaTarget().device(None, name)
