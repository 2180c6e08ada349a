"""What a target is: where kernels run, and all that the engine needs of it.

Modules above targets know this class, and none of a target's own. `autotune.targets.registry`
says which targets there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.measuring.effort import Work as Work

if TYPE_CHECKING:
    from autotune.core.check import Check
    from autotune.core.configuration import Candidate, Configuration
    from autotune.core.device import Device, DeviceFingerprint
    from autotune.exporting.exportable import Exportable, Exported
    from autotune.families.family import KernelFamily, Language
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.background import Job
    from autotune.serving.clock import Clock
    from autotune.serving.kernel import BoundKernel, Kernel, Request
    from autotune.serving.reports import Forecast, Found, HostCalls, Model, Resources


@dataclass(frozen=True, slots=True)
class Option:
    """Something that a target can be told of itself: ``--gpus 4``, or ``load(..., gpus=4)``.

    Attributes:
        name: a Python name; the parameter of the target's constructor, too.
        help: one line for the command line.
        type: of its value.
        metavar: what stands for the value in help.
        choices: the values there are; empty where any of the type will do.
        decides: it is an object that only Python has, and whoever gives it means this target.
    """

    name: str
    help: str
    type: type = str
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    decides: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """How to ask again for the device that a record is of.

    Attributes:
        options: the target's, where they differ from the defaults.
        device: the name by which a device like it can be described; None where there is no choice.
        launcher: words that start the command.
        replaced: options that are left out of the command, since the launcher says them.
        arguments: what `load` is given in place of the options, as Python; None gives the options.
        comment: what else is to be known of that call.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    launcher: tuple[str, ...] = ()
    replaced: frozenset[str] = frozenset()
    arguments: tuple[tuple[str, str], ...] | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A command, as the one process sees it that speaks for all that were started with it.

    Attributes:
        target: with all of them.
        results: JSON-able; what is put here the others are left with.
    """

    target: Target
    results: list[dict[str, Any]] = field(default_factory=list)


class Target(ABC):
    """Where kernels run. Its constructor takes its options; making one touches no device.

    Attributes:
        name: what users call it, and what its families say they are for.
        OPTIONS: what it can be told.
        changes: whether what `device` gives may be another while a process lives, as limits of
            threads may.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    changes: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def language(cls) -> Language:
        """What its families are written in."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The target with some of its options.

        Raises:
            InputError: it has no such option, or a value is none that the option takes.
        """
        cls.check_options(options)
        return cls(**options)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check that the target has all of some options.

        Raises:
            InputError: it has not; the message names those it has.
        """
        known = {option.name for option in cls.OPTIONS}
        for name in options:
            if name not in known:
                takes = must_be("its option", name, sorted(known)) if known else "it has none"
                raise InputError(f"target {cls.name} takes no {name!r}: {takes}")

    @classmethod
    def is_usable(cls) -> bool:
        """Whether it is to be taken where nobody names a target; asked best first."""
        return False

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        """How to ask again for the device with a fingerprint of this target's."""
        return Placement()

    @property
    def names_devices(self) -> bool:
        """Whether it has several devices, of which one can be asked for by name or number."""
        return False

    @abstractmethod
    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """Read the live device; with a problem, under that problem's own caps.

        Args:
            problem: what is to run there.
            name: which device, where a target has several: a number or (part of) a name, also of
                one that is not here, to work on spaces and sources without it.

        Raises:
            UnknownNameError: there is no such device; the message lists those there are.
            InputError: the target has one device only, or the problem cannot run there.
            MissingDependencyError: a package or the device itself is missing.
        """

    def caps(self, problem: Problem) -> tuple[Hashable, ...] | None:
        """What of a problem `device` and `runnable` go by: it is the same device for equal caps.

        None where that is not said, and the device is read for every problem.
        """
        return None

    def runnable(self, device: Device) -> Device:
        """A device as kernels of this process may use it, which may be less than `device` says."""
        return device

    @abstractmethod
    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """A running evaluator for one problem; the caller closes it.

        Args:
            work: what it is for.
            beside: an evaluator of this target, for another problem, that stays open longer: its
                processes are used where they will do.

        Raises:
            InputError: the device is known by description only.
            MissingDependencyError: a package is missing.
        """

    @abstractmethod
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

        Raises:
            InputError: the device is known by description only.
            CompileError: the compiler refuses the source.
        """

    def job(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
    ) -> Job | None:
        """What compiles a candidate ahead of `kernel`, which has no binary of it to load.

        None where it is compiled, or where only `kernel` itself can do that.
        """
        return None

    @abstractmethod
    def load(self, request: Request) -> Kernel:
        """The kernel that serves what was asked for.

        `autotune.serving.loading.load_kernel` does that where one process looks it up for itself.

        Raises:
            NotTunedError: nothing good enough; the message names the command that would tune it.
            CacheError: the cache cannot be read.
        """

    def library(self, problem: Problem, tuned: Callable[[], BoundKernel]) -> BoundKernel | None:
        """The vendor's library in place of a tuned kernel; None where there is none.

        Args:
            problem: what it computes.
            tuned: makes the tuned kernel, for calls that the library has nothing for.
        """
        return None

    def clock(self) -> Clock:
        """A clock for single calls of a program."""
        from autotune.serving.clock import HostClock

        return HostClock()

    def export(self, exportable: Exportable, form: str) -> Exported:
        """Files with which programs run a kernel without this package.

        Args:
            exportable: the kernel.
            form: one of `autotune.exporting.exportable.FORMATS`.

        Raises:
            InputError: such a kernel cannot be exported; the message says why.
            CompileError: the compiler refuses the source.
            MissingDependencyError: the compiler is missing.
        """
        raise InputError(
            f"target {self.name} exports no kernels: `autotune emit --record "
            f"{exportable.record.id}` prints the program"
        )

    @contextmanager
    def joined(self, options: Mapping[str, str]) -> Iterator[Joined]:
        """The command's own work, where several processes may have been started with it.

        Only one of them gets to see the body, and speaks; the others help, and exit with it.

        Args:
            options: of the command, as text; the same for all of them.

        Raises:
            AutotuneError: they were started with different options, or cannot be used.
        """
        yield Joined(self)

    def resources(
        self,
        family: KernelFamily,
        source: Source,
        configuration: Configuration,
        problem: Problem,
        device: Device,
    ) -> Resources | None:
        """What a configuration needs of a device, as compiled; None where that is not known.

        Raises:
            CompileError: the compiler refuses the source.
        """
        return None

    def model(self, family: KernelFamily, problem: Problem, device: Device) -> Model | None:
        """What can be expected of a family's configurations before any is measured, if anything.

        Returns:
            A function of columns of parameter values: expected logarithms of times, up to a
            constant; NaN where a configuration cannot run.
        """
        return None

    def forecast(
        self, problem: Problem, device: Device, cache: str | None = None
    ) -> Forecast | None:
        """What a model says of the target's ways to compute a problem, if it has one."""
        return None

    def host_calls(
        self, problem: Problem, device: Device, programs: ProgramCache
    ) -> HostCalls | None:
        """Times calls from arrays of the host to a result there; None where operands are there."""
        return None

    @classmethod
    def found(cls) -> Found | None:
        """The devices of its own kind that are here, whether they can be used or not."""
        return None

    @classmethod
    def described_devices(cls) -> Sequence[str]:
        """Names of devices that need not be here, for shells to complete."""
        return ()

    @classmethod
    def examine(cls) -> Iterator[Check]:
        """Look at all that it needs of this machine, for ``autotune doctor``.

        What may hang or crash is looked at in a process of its own
        (`autotune.serving.examining`).
        """
        yield from ()
