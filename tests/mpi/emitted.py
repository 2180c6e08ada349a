"""For scripts that mpiexec runs: emitted programs drawn from a space, loaded, and their errors."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from mpi4py import MPI
from mpi_grids import grid_of

from autotune.core.configuration import Configuration

comm = MPI.COMM_WORLD


def drawn(found: Sequence[Configuration], count: int) -> list[Configuration]:
    """Some configurations for these ranks: all but one of them for as many ranks as can be."""
    most = max((grid_of(each).size for each in found), default=0)
    full = [each for each in found if grid_of(each).size == most]
    rest = [each for each in found if grid_of(each).size < most]
    draw = random.Random(comm.size)
    return draw.sample(full, min(count, len(full))) + draw.sample(rest, min(1, len(rest)))


def load(text: str, number: int) -> ModuleType:
    """Import a program from the folder that the script was given."""
    path = Path(sys.argv[1]) / f"program_{comm.rank}_{number}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def error_of(c: np.ndarray, operands: tuple[np.ndarray, ...], alpha: float, beta: float) -> float:
    """The largest error, in units of what the rounding of a sum of n terms allows."""
    a, b, before = (operand.astype("float64") for operand in operands)
    right = alpha * (a @ b) + (beta * before if beta else 0)
    allowed = np.abs(alpha) * (np.abs(a) @ np.abs(b)) + (abs(beta * before) if beta else 0)
    scale = 16 * np.finfo(c.dtype).eps * allowed + np.finfo(c.dtype).tiny
    return float(np.nan_to_num(np.abs(c - right) / scale, nan=np.inf).max())
