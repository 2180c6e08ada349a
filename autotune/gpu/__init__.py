"""The targets `cuda` and `numba-cuda`: emitted sources on an NVIDIA GPU.

Compiling, devices, their driver, launches, arrays and measuring lie in packages of their own,
each above the one before; binaries are made and judged without a device, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.gpu.target import CudaTarget as CudaTarget
    from autotune.gpu.target import NumbaCudaTarget as NumbaCudaTarget

_HOMES = {
    "CudaTarget": "target",
    "NumbaCudaTarget": "target",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
