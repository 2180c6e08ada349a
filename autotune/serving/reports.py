"""What a target can tell beside what it computes: forecasts, resources, times of whole calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.families.family import KernelFamily
    from autotune.measuring.processes import Failure

Model: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]"
"""Expected logarithms of times from columns of parameter values, by name; NaN: cannot run."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one configuration needs of a device.

    Attributes:
        document: what the binary says, as JSON-able values; None where there is none.
        note: the same in one line, or why there is none.
    """

    document: dict[str, Any] | None
    note: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a model says of a target's ways to compute a problem, the best first.

    Attributes:
        name: of the whole in documents.
        rows: each way, as JSON-able values.
        text: what they are judged by, in words.
        header: names of the columns of `cells`; all but the first are numbers.
        cells: the ways as texts, a cell for every column.
    """

    name: str
    rows: tuple[dict[str, Any], ...]
    text: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Devices of one kind that are here.

    Attributes:
        kind: what they are called in text: "GPUs".
        documents: each as JSON-able values.
        texts: each in one line.
        missing: what keeps them from being used, and the remedy; empty when nothing does.
    """

    kind: str
    documents: tuple[dict[str, Any], ...]
    texts: tuple[str, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class HostCall:
    """What whole calls take: allocate, copy to the device, multiply, copy back, free.

    Attributes:
        context_s: making the process's context on the device, before the first call.
        cold_s: the first call of a process; loading the module, or starting the vendor's library,
            is part of it.
        warm_s: median of the later calls.
    """

    context_s: float
    cold_s: float
    warm_s: float


class HostCalls(Protocol):
    """Times whole calls of one problem, each kernel in a fresh process."""

    def kernel(self, family: KernelFamily, configuration: Configuration) -> HostCall | Failure:
        """Time a kernel that is known to work."""
        ...

    def vendor(self) -> HostCall | Failure:
        """Time the vendor's library."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
