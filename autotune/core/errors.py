"""Everything that autotune raises on purpose.

The tree::

    AutotuneError
    ├── InputError (also ValueError)       what the caller gave cannot be used; exit code 2
    │   ├── ProblemError                   sizes, dtype, layout or accuracy of a problem
    │   ├── ExpressionError                text outside the restriction language
    │   ├── UndefinedError                 an expression without a value there (autotune.space)
    │   ├── SpaceError                     a parameter, value or restriction of a search space
    │   ├── FamilyError                    a space file (TOML) or a template
    │   ├── UnknownNameError               a family, sampler, target or record that is not there
    │   ├── OperandError                   operands of a kernel call
    │   │   └── OperandTypeError           (also TypeError) of a type that nothing multiplies
    │   └── StudyError                     a study that belongs to another space, or a storage URL
    ├── CacheError                         the cache cannot be read or written; exit code 1
    ├── KernelError                        one kernel failed; the tuner turns it into an Outcome
    │   ├── CompileError
    │   └── LaunchError
    ├── WorkerError                        a process that measures does not start; exit code 1
    ├── UnavailableError                   kernels cannot be used; programs do without
    ├── MissingDependencyError             an optional package is absent (also ImportError)
    ├── NotTunedError                      nothing in the cache (also LookupError)
    ├── OutOfTimeError                     the run is over; the tuner ends with what it has
    └── TuningFailedError                  no valid configuration survived; exit code 1

Every message is one line: the rule, the value that broke it, and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


class AutotuneError(Exception):
    """Base of every error raised on purpose. Its message shows names of strangers safely."""

    exit_code: ClassVar[int] = 1
    """The exit status of the command line."""

    def __str__(self) -> str:
        return printable(super().__str__())


class InputError(AutotuneError, ValueError):
    """An argument cannot be used."""

    exit_code = 2


class ProblemError(InputError):
    """A problem's sizes, dtype, layout, accuracy or threads are not usable."""


class ExpressionError(InputError):
    """Text that is not in the restriction language, or a name it does not know."""


class SpaceError(InputError):
    """A search space that cannot be built, or a configuration that is not in it."""


class FamilyError(InputError):
    """A kernel family whose two files do not fit the format."""


class UnknownNameError(InputError):
    """A name that nothing is registered under; the message lists what there is."""


class OperandError(InputError):
    """Operands of a kernel call with the wrong shape, dtype, layout or memory."""


class OperandTypeError(OperandError, TypeError):
    """Operands of a type or element type that cannot be multiplied, or stored as asked."""


class StudyError(InputError):
    """A study of another search space, or a storage that cannot be opened."""


class CacheError(AutotuneError):
    """The cache cannot be read or written."""


class KernelError(AutotuneError):
    """One kernel failed to compile or to run."""


class CompileError(KernelError):
    """The compiler refused the emitted source.

    Attributes:
        faults: lines of the source, counted from 1, and what the compiler has against each; empty
            where it names no lines.
    """

    def __init__(self, message: str, faults: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class LaunchError(KernelError):
    """The kernel compiled and failed when it was run."""


class WorkerError(AutotuneError):
    """A process that compiles or measures does not start, or cannot make what it needs."""


class UnavailableError(AutotuneError):
    """Something that kernels need does not work as it is set up; libraries compute without it."""


class MissingDependencyError(AutotuneError, ImportError):
    """An optional package is not installed."""


class NotTunedError(AutotuneError, LookupError):
    """The cache holds no kernel for the problem."""


class OutOfTimeError(AutotuneError):
    """The time of the run ended before an answer came; nothing is known of what was asked."""


class TuningFailedError(AutotuneError):
    """Tuning ended without one valid, verified configuration."""
