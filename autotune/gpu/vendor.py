"""The vendor of a GPU: all that the engine needs of one. A process has GPUs of one vendor.

A target of GPUs names its vendor, an object of a module: "autotune.gpu.nvidia.vendor:NVIDIA".
All that lies above knows this interface, and the driver's (`autotune.gpu.interface`), alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.families.rendering import Source
    from autotune.gpu.interface import Driver, Stream
    from autotune.operations.problem import Problem


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources of one kernel, whatever it is launched with.

    Attributes:
        registers: registers per thread.
        local_bytes: stack frame of a thread: spilled registers and arrays outside registers.
        shared_bytes: static shared memory of a block, without what the system reserves.
        max_threads: threads per block it was compiled for; None when the source sets no bound.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int | None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled source; it can be sent between processes.

    Attributes:
        cubin: the binary.
        architecture: what it runs on: "sm_90".
        kernels: resources of each kernel, by name.
        spill_bytes: bytes of spill stores and loads in the code of each kernel.
        log: what the compiler said.
        seconds: how long it took; 0 for a binary that was kept.
    """

    cubin: bytes
    architecture: str
    kernels: Mapping[str, KernelResources]
    spill_bytes: Mapping[str, int]
    log: str
    seconds: float


class Compiler(Protocol):
    """Compiles the sources of one target."""

    def load(self) -> object:
        """Import what compiles: not in the time of the first candidate."""

    def label(self, source: Source) -> str:
        """Name and version, and a digest of all else that the binary of a source depends on.

        Raises:
            MissingDependencyError: the compiler is missing.
        """

    def compile(self, source: Source, path: Path, architecture: str) -> Compiled:
        """Compile a source.

        Raises:
            CompileError: the compiler refuses it; the message is its first error.
            MissingDependencyError: the compiler is missing, or does not know the architecture.
        """

    def read(self, binary: bytes) -> Mapping[str, KernelResources]:
        """The kernels of a binary, by name.

        Raises:
            InputError: this is no binary of the compiler's, or a damaged one.
        """


class Monitor(Protocol):
    """Clocks, power and temperature of one GPU."""

    def read(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Readings by name, as far as the GPU gives them; None takes all."""


class Blas(Protocol):
    """A function of the vendor's library for one problem, on one stream.

    Attributes:
        library: its name, "cuBLAS".
        version: "13.1.0".
        mode: how products are computed, for people.
        accuracy: the accuracy class of its results.
    """

    library: str
    version: str
    mode: str
    accuracy: str

    def launch(self, *arguments: Any) -> None:
        """Enqueue it; the arguments are those of a kernel's launch, without a stream.

        Raises:
            BlasError: it refuses.
        """

    def close(self) -> None:
        """Give back what the library holds."""


def blas_name(blas: Blas) -> str:
    """A library's name, version and arithmetic, for people."""
    return f"{blas.library} {blas.version} ({blas.mode})"


class BlasError(Exception):
    """A vendor's library refuses a call, or is missing."""


class Vendor(Protocol):
    """A vendor of GPUs.

    Attributes:
        compilers: by the name of the target whose sources they compile.
        support_target: the target in whose language the engine's own kernels are.
    """

    compilers: Mapping[str, Compiler]
    support_target: str

    def driver(self) -> Driver:
        """The driver, started.

        Raises:
            MissingDependencyError: it, or a package that calls it, is missing.
        """

    def is_usable(self) -> bool:
        """Can kernels run here?"""

    def read_gpu(self, index_or_name: int | str | None = None) -> Device:
        """One of the GPUs here, by number or (part of the) name; no context is made.

        Raises:
            MissingDependencyError: the driver, a package or a GPU is missing.
            UnknownNameError: there is no such device; the message lists those there are.
        """

    def described(self, name: str) -> Device:
        """A GPU that is not here, by its description.

        Raises:
            UnknownNameError: there is none of that name; the message lists those there are.
        """

    def check(self, device: Device) -> None:
        """Refuse compilers whose binaries the device's driver cannot load.

        Raises:
            MissingDependencyError: a compiler is missing or too new.
        """

    def alone(self, device: Device) -> dict[str, str]:
        """Environment of a process that sees this GPU only."""

    def monitor(self, device: str) -> Monitor:
        """A reader of clocks and power, of a GPU by its bus."""

    def blas(self, problem: Problem, stream: Stream) -> Sequence[Blas]:
        """The libraries' functions for a problem, the usual one first; empty without any.

        Raises:
            BlasError: the library does not start.
        """
