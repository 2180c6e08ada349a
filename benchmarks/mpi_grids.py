"""The process grids of the shipped MPI families, by the names of their parameters."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core.configuration import Value
from autotune.distributed.grid import ProcessGrid


def grid_of(configuration: Mapping[str, Value]) -> ProcessGrid:
    """The grid of a configuration: what its family does not have is 1."""
    side = int(configuration.get("side", 1))
    return ProcessGrid(
        int(configuration.get("rows", side)),
        int(configuration.get("columns", side)),
        int(configuration.get("reduction", 1)),
    )
