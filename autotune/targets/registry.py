"""Targets: where kernels run. One table; each entry knows its device, evaluator and callable."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.core.errors import UnknownNameError
from autotune.core.suggestions import must_be
from autotune.targets.base import Target
from autotune.targets.cpu.target import CpuTarget
from autotune.targets.cuda.target import CudaTarget, NumbaCudaTarget
from autotune.targets.hybrid.target import HybridTarget
from autotune.targets.mpi.target import MpiTarget

if TYPE_CHECKING:
    pass

_log = logging.getLogger(__name__)


# Best first.
_TARGETS: Mapping[str, Callable[[], Target]] = {
    "cuda": CudaTarget,
    "numba-cuda": NumbaCudaTarget,
    "cpu": CpuTarget,
    "mpi": MpiTarget,
    "hybrid": HybridTarget,
}


def target_names() -> Sequence[str]:
    """The targets there are, best first."""
    return tuple(_TARGETS)


def make_target(name: str | Target | None) -> Target:
    """The target called `name`; None picks the best this machine has. A target is itself.

    Where None means the CPU although a GPU is here, a warning says why, once in a process.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
    """
    if name is None:
        from autotune.targets.cuda.device.presence import can_run

        if can_run():
            return CudaTarget()
        _warn_of_unused_gpu()
        return CpuTarget()
    if not isinstance(name, str):
        return name
    if name not in _TARGETS:
        raise UnknownNameError(must_be("target", name, _TARGETS))
    return _TARGETS[name]()


@functools.cache
def _warn_of_unused_gpu() -> None:
    from autotune.targets.cuda.device.presence import unused

    told = unused()
    if told is not None:
        _log.warning("%s", told)
