"""Kernels of one's own from a few lines of Python: tuned on first use, loaded ever after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.own.decorating import kernel as kernel
    from autotune.own.own_kernel import OwnKernel as OwnKernel

_HOMES = {"OwnKernel": "own_kernel", "kernel": "decorating"}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
