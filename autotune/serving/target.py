"""The interface `Target`: where kernels run, and all that the engine needs of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.measuring.effort import Work as Work
from autotune.serving.reports import Doctor, Estimates, Exporter

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.core.device import Device, DeviceFingerprint
    from autotune.families.family import KernelFamily, Language
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.background import Job
    from autotune.serving.clock import Clock
    from autotune.serving.kernel import BoundKernel, Kernel, Request


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a target: ``--gpus 4``, or ``load(..., gpus=4)``.

    Attributes:
        name: a Python name; the parameter of the target's constructor, too.
        help: one line for the command line.
        type: of its value.
        metavar: stands for the value in help.
        choices: allowed values; empty where any of the type will do.
        decides: an object that only Python has; giving it chooses this target.
    """

    name: str
    help: str
    type: type = str
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    decides: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The arguments that ask again for the device of a record.

    Attributes:
        options: the target's, where they differ from the defaults.
        device: the name by which a device like it can be described; None where there is no choice.
        launcher: words that start the command.
        replaced: options that are left out of the command, since the launcher says them.
        arguments: of `load`, in place of the options, as Python; None gives the options.
        comment: stands after that call.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    launcher: tuple[str, ...] = ()
    replaced: frozenset[str] = frozenset()
    arguments: tuple[tuple[str, str], ...] | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A command in the one process that speaks for all that were started with it.

    Attributes:
        target: on all of them.
        results: JSON-able; the others get what is put here.
    """

    target: Target
    results: list[dict[str, Any]] = field(default_factory=list)


class Target(ABC):
    """Where kernels run. A subclass is one way to generate, compile, measure and call kernels.

    The life of a target::

        target_class(name)                    language(): what its families are written in
              |
          .of(options)                        a value; making one touches no device
              |
          .device(problem, name) ------------ limits, fingerprint, toolchain: spaces and records
              |                               are of these
        +-----+---------------------+
        | tune                      | load, matmul
        |                           |
     .evaluator(work)            (load_jointly)   where several processes look up together
        | prepare, evaluate,        |
        | finals: measurements   the winner of a record, or a model's choice
        |                           |
        +--> records -------------> .job(...)      compiles it elsewhere, in the background
                                    |    \
                                    |     .library(...)   computes meanwhile, or if faster
                                    |
                                 .kernel(...)      loads or compiles it: a `BoundKernel`
                                    |
                                 .kernel_class()   wraps it: the `Kernel` that users call

    A target of another package must give `name`, `language`, `device`, `evaluator` and `kernel`;
    the rest has defaults. All else that commands ask belongs to objects of its own: `doctor` (this
    machine), `estimates` (kernels that nobody has timed) and `exporter` (files).

    Modules above targets know this class, and none of a target's own.
    `autotune.targets.registry` lists the targets.

    Attributes:
        name: for users, and in families' files.
        OPTIONS: of its constructor.
        changes: true where limits of `device` may change while a process lives, as threads may.
        doctor: its view of this machine.
        estimates: answers about kernels before they run.
        exporter: makes files of its kernels.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    changes: ClassVar[bool] = True
    doctor: ClassVar[Doctor] = Doctor()
    estimates: ClassVar[Estimates] = Estimates()
    exporter: ClassVar[Exporter] = Exporter()

    @classmethod
    @abstractmethod
    def language(cls) -> Language:
        """The language that its families are written in."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The target with some of its options.

        Raises:
            InputError: it has no such option, or a value is none that the option takes.
        """
        for name in options:
            known = {option.name for option in cls.OPTIONS}
            if name not in known:
                takes = must_be("its option", name, sorted(known)) if known else "it has none"
                raise InputError(f"target {cls.name} takes no {name!r}: {takes}")
        return cls(**options)

    @classmethod
    def is_usable(cls) -> bool:
        """True if it may be taken where nobody names a target; asked best first."""
        return False

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        """The arguments that ask again for the device with a fingerprint of this target's."""
        return Placement()

    @property
    def names_devices(self) -> bool:
        """True if it has several devices, of which one can be named."""
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
        """The part of a problem that `device` and `runnable` depend on.

        Equal caps mean the same device. None has the device read for every problem.
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
            binary: of the candidate, compiled before; None compiles it.

        Raises:
            InputError: the device is known by description only.
            CompileError: the compiler refuses the source.
        """

    def checker(self, problem: Problem) -> BoundKernel:
        """A kernel that computes nothing, and refuses the calls that those of a problem refuse."""
        return lambda *inputs, **options: None

    def job(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
    ) -> Job | None:
        """The compilation of a candidate that has no binary, ahead of `kernel`.

        None where it is compiled, or where only `kernel` itself can do that.
        """
        return None

    def kernel_class(self, problem: Problem) -> type[Kernel]:
        """The class of what users call."""
        from autotune.operations.problem import MatrixOperation
        from autotune.serving.kernel import Kernel, ProductKernel

        return ProductKernel if isinstance(problem.defined, MatrixOperation) else Kernel

    def load_jointly(self, request: Request) -> Kernel | None:
        """The kernel, where several processes load it together; None: this process for itself.

        Raises:
            NotTunedError: nothing good enough; the message names the command that would tune it.
            CacheError: the cache cannot be read.
        """
        return None

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

    @contextmanager
    def joined(self, options: Mapping[str, str]) -> Iterator[Joined]:
        """Run a command's own work, where several processes may have been started with it.

        Only one of them gets to see the body, and speaks; the others help, and exit with it.

        Args:
            options: of the command, as text; the same for all of them.

        Raises:
            AutotuneError: they were started with different options, or cannot be used.
        """
        yield Joined(self)
