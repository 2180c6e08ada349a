"""The target `mpi`: emitted mpi4py programs, measured by a set of ranks that outlives trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.distributed.mpi.load import MpiKernel as MpiKernel
    from autotune.distributed.mpi.target import MpiTarget as MpiTarget

_HOMES = {
    "MpiKernel": "load",
    "MpiTarget": "target",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
