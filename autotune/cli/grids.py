"""The process grids that a model of communication favours, for ``autotune space``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cli.table import table
from autotune.cost_model import NOMINAL, best_grids, least_words
from autotune.mpi_limits import MpiLimits

if TYPE_CHECKING:
    from autotune.device import DeviceLimits
    from autotune.problem import Gemm


def predicted_grids(problem: Gemm, limits: DeviceLimits) -> list[dict[str, Any]]:
    """The best grids by the model, best first; none for a device that is no set of ranks.

    Args:
        problem: what is computed.
        limits: of the device.
    """
    if not isinstance(limits, MpiLimits):
        return []
    sizes = problem.m, problem.n, problem.k
    least = least_words(*sizes, limits.ranks) * problem.itemsize
    return [
        {
            "grid": [grid.rows, grid.columns, grid.reduction],
            "bytes": cost.words * problem.itemsize,
            "least_bytes": round(least),
            "messages": cost.messages,
            "predicted_s": cost.seconds(NOMINAL, problem.itemsize),
        }
        for grid, cost in best_grids(*sizes, limits.ranks, NOMINAL, problem.itemsize)
    ]


def grids_text(grids: list[dict[str, Any]]) -> str:
    """A table of them, with what they were judged by."""
    rows = [
        (
            "x".join(map(str, each["grid"])),
            f"{each['bytes'] / 1e6:.3f}",
            f"{each['least_bytes'] / 1e6:.3f}",
            str(each["messages"]),
            f"{each['predicted_s'] * 1e3:.3f}",
        )
        for each in grids
    ]
    header = ("grid", "MB received", "least MB", "messages", "ms")
    return (
        "grids (rows x columns x reduction) by the model, for distributed operands: "
        f"{NOMINAL.latency_s * 1e6:g} us a message, {1e-9 / NOMINAL.seconds_per_byte:g} GB/s and "
        f"{NOMINAL.flops_per_s / 1e9:g} GFLOP/s a rank\n" + table(header, rows, right=header[1:])
    )
