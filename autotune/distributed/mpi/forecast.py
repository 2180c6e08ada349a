"""The process grids that a model of communication favours, for ``autotune space``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.limits import MpiLimits
from autotune.distributed.mpi.cost_model import best_grids, least_words
from autotune.operations.problem import only_gemm
from autotune.serving.reports import Forecast

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.operations.problem import Problem


def predicted_grids(problem: Problem, device: Device, cache: str | None = None) -> Forecast | None:
    """The best grids by the model, best first, and what they are judged by.

    None for a device that is no set of ranks on CPUs.

    Args:
        problem: what is computed.
        device: where.
        cache: as for `autotune.load`.
    """
    limits = device.limits
    if not isinstance(limits, MpiLimits) or limits.gpus:
        return None
    from autotune.distributed.mpi.machine import known_machine

    known = known_machine(only_gemm(problem, "target mpi"), device, cache)
    machine = known.machine
    m, n, k = problem.shape
    sizes = m, n, k
    least = least_words(*sizes, limits.ranks) * problem.itemsize
    grids: list[dict[str, Any]] = [
        {
            "grid": [grid.rows, grid.columns, grid.reduction],
            "bytes": cost.words * problem.itemsize,
            "least_bytes": round(least),
            "messages": cost.messages,
            "predicted_s": cost.seconds(machine, problem.itemsize),
            "sources": {"messages": known.network_source, "flops": known.rate_source},
        }
        for grid, cost in best_grids(*sizes, limits.ranks, machine, problem.itemsize)
    ]
    cells = [
        (
            "x".join(map(str, each["grid"])),
            f"{each['bytes'] / 1e6:.3f}",
            f"{each['least_bytes'] / 1e6:.3f}",
            str(each["messages"]),
            f"{each['predicted_s'] * 1e3:.3f}",
        )
        for each in grids
    ]
    return Forecast(
        name="grids",
        rows=tuple(grids),
        text=(
            "grids (rows x columns x reduction) by the model, for distributed operands and a core "
            f"for every rank:\n  messages: {machine.latency_s * 1e6:.3g} us, "
            f"{1e-9 / machine.seconds_per_byte:.3g} GB/s, {known.network_source}\n"
            f"  products: {machine.flops_per_s / 1e9:.3g} GFLOP/s a rank, {known.rate_source}"
        ),
        header=("grid", "MB received", "least MB", "messages", "ms"),
        cells=tuple(cells),
    )
