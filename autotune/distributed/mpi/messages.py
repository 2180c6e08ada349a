"""What the process that tunes asks of a set of ranks, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autotune.cpu.kernel import CpuProgram
from autotune.distributed.machine.interface import LocalKernel
from autotune.families.rendering import Source
from autotune.measuring import messages as measuring
from autotune.measuring.evaluator import Effort
from autotune.operations.problem import Gemm

FAULT = "autotune rank"
"""What the line begins with that a rank prints before it ends all of them."""


@dataclass(frozen=True, slots=True)
class RankSet:
    """A set of ranks, as they describe themselves.

    Attributes:
        ranks: how many there are.
        nodes: machines they run on.
        cores: hardware threads they may use, all together.
        library: name of the MPI library: "MPICH".
        version: its version.
        transport: what it communicates through, where it says so: "ch4:ofi".
        gpus: what each rank multiplies on, where that is a GPU of its own.
    """

    ranks: int
    nodes: int
    cores: int
    library: str
    version: str
    transport: str
    gpus: GpuSet | None = None


@dataclass(frozen=True, slots=True)
class GpuSet:
    """The GPUs of a set of ranks, and how messages get from one to another.

    Attributes:
        name: of each: they are alike.
        count: how many there are, on all nodes together.
        cuda_aware: whether MPI takes addresses in their memory.
        nccl: whether NCCL can be used.
    """

    name: str
    count: int
    cuda_aware: bool
    nccl: bool


@dataclass(frozen=True, slots=True)
class LocalProduct:
    """The kernel that multiplies within a rank.

    Attributes:
        source: the emitted module; every rank writes it where its own node can read it.
        family: the family it is of.
        program: how it is called.
    """

    source: Source
    family: str
    program: CpuProgram


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """What multiplies within a rank that has a GPU.

    Attributes:
        kernels: best first, all compiled; the first that is valid for some sizes serves them.
        accumulate: the binary of what adds matrices up.
    """

    kernels: tuple[LocalKernel, ...]
    accumulate: bytes


@dataclass(frozen=True, slots=True)
class MpiProgram:
    """A candidate, as ranks are told of it.

    Attributes:
        source: the emitted program.
        family: the family it is of.
        local: what multiplies within a rank; None for NumPy.
    """

    source: Source
    family: str
    local: LocalProduct | GpuProduct | None

    @property
    def digest(self) -> str:
        """Its source's, from which what multiplies within a rank follows."""
        return self.source.digest


@dataclass(frozen=True, slots=True)
class Setup:
    """What the requests that follow are about.

    Attributes:
        problem: what is computed.
        effort: how long and how exactly to measure.
        programs: folder for emitted programs, on every node.
        distributed: whether operands are kept in blocks by all ranks, or whole by rank 0.
        seed: seeds the operands.
        cores: hardware threads of a node.
        alone: what one GPU multiplies the whole problem with, where ranks have one each.
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
    """What a message costs: `latency_s` plus `seconds_per_byte` times its length.

    Attributes:
        latency_s: seconds of a message of no length (alpha in Hockney's model).
        seconds_per_byte: further seconds for every byte (its beta).
    """

    latency_s: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The ranks do not agree on what they are asked, or are asked too early."""

    reason: str


Request: TypeAlias = Setup | MeasureNetwork | measuring.Request

Reply: TypeAlias = Network | Refused | measuring.Reply
