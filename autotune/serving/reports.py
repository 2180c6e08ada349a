"""The answers of a target beside its kernels: its machine, exported files, estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from autotune.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from autotune.core.check import Check
    from autotune.core.configuration import Configuration
    from autotune.core.device import Device
    from autotune.exporting.exportable import Exportable, Exported
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.measuring.failure import Failure
    from autotune.operations.problem import Problem

Model: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]"
"""Expected logarithms of times from columns of parameter values, by name; NaN: cannot run."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers, memory and the like that one configuration needs of a device.

    Attributes:
        document: from the binary, as JSON-able values; None where there is none.
        note: the same in one line, or why there is none.
    """

    document: dict[str, Any] | None
    note: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """A model's ranking of a target's ways to compute a problem, the best first.

    Attributes:
        name: of the whole in documents.
        rows: one per way, as JSON-able values.
        text: the criterion, in words.
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
        kind: their name in text: "GPUs".
        documents: one per device, as JSON-able values.
        texts: one line per device.
        missing: what keeps them from being used, and the remedy; empty when nothing does.
    """

    kind: str
    documents: tuple[dict[str, Any], ...]
    texts: tuple[str, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class HostCall:
    """Times of whole calls: allocate, copy to the device, multiply, copy back, free.

    Attributes:
        context_s: making the process's context on the device, before the first call.
        cold_s: the first call of a process, with the loading of the module or the start of the
            vendor's library.
        warm_s: median of the later calls.
    """

    context_s: float
    cold_s: float
    warm_s: float


class HostCalls(AbstractContextManager["HostCalls"], Protocol):
    """Times whole calls of one problem, each kernel in a fresh process."""

    def kernel(self, family: KernelFamily, configuration: Configuration) -> HostCall | Failure:
        """Time a kernel that is known to work."""
        ...

    def vendor(self, name: str) -> HostCall | Failure:
        """Time the vendor's library of a baseline's name."""
        ...


class Doctor:
    """A target's view of this machine, for `doctor`, `device` and shells; here: nothing to see."""

    def examine(self) -> Iterator[Check]:
        """Check all that the target needs of this machine.

        What may hang or crash is looked at in a process of its own
        (`autotune.serving.examining`).
        """
        yield from ()

    def found(self) -> Found | None:
        """The devices of the target's own kind that are here, usable or not."""
        return None

    def described_devices(self) -> Sequence[str]:
        """Names of devices that need not be here, for shells to complete."""
        return ()


class Exporter:
    """Files with which programs run a target's kernels without this package; here: none."""

    def export(self, exportable: Exportable, form: str) -> Exported:
        """Make the files of a kernel.

        Args:
            exportable: the kernel.
            form: one of `autotune.exporting.exportable.FORMATS`.

        Raises:
            InputError: such a kernel cannot be exported; the message says why.
            CompileError: the compiler refuses the source.
            MissingDependencyError: the compiler is missing.
        """
        record = exportable.record
        raise InputError(
            f"target {record.target} exports no kernels: `autotune emit --record {record.id}` "
            "prints the program"
        )


class Estimates:
    """A target's answers about kernels that nobody has timed; here: none."""

    def resources(
        self,
        family: KernelFamily,
        source: Source,
        configuration: Configuration,
        problem: Problem,
        device: Device,
    ) -> Resources | None:
        """The needs of a configuration, as compiled; None where they are not known.

        Raises:
            CompileError: the compiler refuses the source.
        """
        return None

    def model(self, family: KernelFamily, problem: Problem, device: Device) -> Model | None:
        """Expected times of a family's configurations, up to a constant factor."""
        return None

    def forecast(
        self, problem: Problem, device: Device, cache: str | None = None
    ) -> Forecast | None:
        """A model's ranking of the target's ways to compute a problem."""
        return None

    def host_calls(
        self, problem: Problem, device: Device, programs: ProgramCache
    ) -> HostCalls | None:
        """Timer of calls from host arrays to a result there; None where operands are there."""
        return None
