"""What a target is: where kernels run, and what the engine needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from autotune.core.device import Device

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Effort, Evaluator
    from autotune.operations.problem import Problem


BoundKernel: TypeAlias = Callable[..., Any]
"""``kernel(a, b, out, alpha, beta, stream)``: checks operands, computes or enqueues, returns C."""


class Target(Protocol):
    """What the tuner and the runtime need of a target."""

    name: ClassVar[str]

    def default_family(self, device: Device) -> str:
        """The family whose default configuration serves a problem nothing was tuned for."""
        ...

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """Read the live device; with a problem, under that problem's own caps.

        Args:
            problem: what is to run there.
            name: which device, where a target has several: a number or (part of) a name, also of
                one that is not here, to work on spaces and sources without it.

        Raises:
            UnknownNameError: there is no such device; the message lists those there are.
            MissingDependencyError: a package or the device itself is missing.
        """
        ...

    def evaluator(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None,
        workers: int | None,
        seed: int,
        beside: Evaluator | None = None,
    ) -> Evaluator:
        """A running evaluator for one problem; the caller closes it.

        Args:
            problem: what is computed.
            families: by name.
            device: as `device` gives it.
            programs: where sources and binaries go.
            effort: how long and how exactly to measure; None takes the default.
            workers: compile workers; None takes one for each core.
            seed: seeds the operands.
            beside: an evaluator of this target, for another problem, that stays open longer: its
                processes are used where they will do.
        """
        ...

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """The compiled kernel of a candidate.

        Args:
            family: the candidate's family.
            candidate: which kernel.
            problem: what it computes.
            device: where it runs, as `device` gives it.
            programs: where sources are, and what was compiled from them.
            binary: what the candidate was compiled to before; None compiles it.
        """
        ...
