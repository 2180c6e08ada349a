"""The target `hybrid`: emitted programs whose host threads drive the streams of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.distributed.hybrid.kernel import HybridKernel as HybridKernel
    from autotune.distributed.hybrid.target import HybridTarget as HybridTarget

_HOMES = {
    "HybridKernel": "kernel",
    "HybridTarget": "target",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
