"""Messages between the process that tunes and a set of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autotune.cpu.kernel import CpuProgram
from autotune.distributed.machine import LocalKernel
from autotune.families.rendering import Source
from autotune.measuring import messages as measuring
from autotune.measuring.effort import Effort
from autotune.operations.problem import Gemm

FAULT = "autotune rank"
"""The beginning of the line that a rank prints before it ends all of them."""


@dataclass(frozen=True, slots=True)
class GpuSet:
    """The GPUs of a set of ranks, and how messages get from one to another.

    Attributes:
        name: of every GPU: they are alike.
        count: number of GPUs on all nodes together.
        cuda_aware: MPI takes addresses in their memory.
        nccl: NCCL can be used.
    """

    name: str
    count: int
    cuda_aware: bool
    nccl: bool


@dataclass(frozen=True, slots=True)
class RankSet:
    """A set of ranks, as they describe themselves.

    Attributes:
        ranks: number of ranks.
        nodes: machines they run on.
        cores: hardware threads they may use, all together.
        library: name of the MPI library: "MPICH".
        version: its version.
        transport: of its messages, where it says so: "ch4:ofi".
        gpus: the ranks', where each multiplies on a GPU of its own.
    """

    ranks: int
    nodes: int
    cores: int
    library: str
    version: str
    transport: str
    gpus: GpuSet | None = None


@dataclass(frozen=True, slots=True)
class LocalProduct:
    """The kernel that multiplies within a rank, which writes `source` where its node reads it."""

    source: Source
    family: str
    program: CpuProgram


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """The kernels that multiply within a rank that has a GPU.

    Attributes:
        kernels: best first, all compiled; the first that is valid for some sizes serves them.
        accumulate: the binary of the kernel that adds matrices up.
    """

    kernels: tuple[LocalKernel, ...]
    accumulate: bytes


@dataclass(frozen=True, slots=True)
class MpiProgram:
    """A candidate, as ranks are sent it; `local` multiplies within a rank, None is NumPy."""

    source: Source
    family: str
    local: LocalProduct | GpuProduct | None

    @property
    def digest(self) -> str:
        """Its source's, from which the product within a rank follows."""
        return self.source.digest


@dataclass(frozen=True, slots=True)
class Setup:
    """The subject of the requests that follow.

    Attributes:
        programs: folder for emitted programs, on every node.
        distributed: operands are kept in blocks by all ranks, instead of whole by rank 0.
        cores: hardware threads of a node.
        alone: multiplies the whole problem on one GPU, where ranks have one each.
        gpu: its name.
    """

    problem: Gemm
    effort: Effort
    programs: Path
    distributed: bool
    seed: int
    cores: int = 1
    alone: GpuProduct | None = None
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class MeasureNetwork:
    """Time messages between ranks 0 and 1; answered by a `Network`."""


@dataclass(frozen=True, slots=True)
class Network:
    """The cost of a message: `latency_s` plus `seconds_per_byte` times its length.

    These are alpha and beta of Hockney's model.
    """

    latency_s: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The ranks do not agree on a request, or it came too early."""

    reason: str


Request: TypeAlias = Setup | MeasureNetwork | measuring.Request

Reply: TypeAlias = Network | Refused | measuring.Reply
