"""Languages: in what the families of each target are written, as the target itself says.

Families lie below targets and know none of them by name. Whoever knows the targets (their
registry) says here, once, how a name is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.configuration import Value
    from autotune.families.epilogue_text import EpilogueText
    from autotune.families.family import KernelFamily
    from autotune.operations.epilogue import Epilogue
    from autotune.operations.operation import Operation


def _nothing(
    family: KernelFamily, constants: Mapping[str, Value], dtype: str, out_dtype: str
) -> dict[str, Any]:
    return {}


def _defaults() -> str:
    return ""


def _no_names(operation: Operation) -> frozenset[str]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class Language:
    """What the families of a target are written in.

    Attributes:
        limits: device limits that a family's expressions may use, by name.
        check: refuses emitted text that is not such source; raises FamilyError.
        names: what templates are given, beside what all are, for a family, what is compiled
            in, and the element types of operands and result.
        reserved: names that the source of an operation gives a meaning of its own.
        suffix: of the files that sources are written to.
        settings: of the compiler, as far as they are not its defaults and change its code: what
            is compiled under them is kept apart.
        lay_out: breaks long lines of emitted text, which the second argument, what the kernels
            take, may be part of.
        headers: whether sources may include headers in quotes, which become part of them.
        kernels: names of the kernels of emitted text; None where a source has one only.
        launched: whether families say how they are launched and what one block needs ([launch]).
        runtime: whether kernels take parameters at the call (`runtime = true`).
        mapped: whether kernels may take tensor maps, run in clusters, and use features of one
            architecture alone.
        own_operations: whether a family may compute an operation that its user defines.
        epilogue: what templates are given of an epilogue for operands of a dtype; None where
            families compute no epilogues.
        threaded: whether families may say how many threads of the host they use (`threads`).
        local: for programs that leave a product to a kernel of another target ([local]): which
            targets that may be, each with what it demands of the device, texts with reasons.
        folders: folders of the target's own families, where they are not this project's.
    """

    limits: frozenset[str]
    check: Callable[[KernelFamily, str], None]
    names: Callable[[KernelFamily, Mapping[str, Value], str, str], dict[str, Any]] = _nothing
    reserved: Callable[[Operation], frozenset[str]] = _no_names
    suffix: str = ".py"
    settings: Callable[[], str] = _defaults
    lay_out: Callable[[str, str], str] | None = None
    headers: bool = False
    kernels: Callable[[str], tuple[str, ...]] | None = None
    launched: bool = False
    runtime: bool = True
    mapped: bool = False
    own_operations: bool = False
    epilogue: Callable[[Epilogue, str], EpilogueText | None] | None = None
    threaded: bool = False
    local: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()


class Speakers(Protocol):
    """Who knows the targets."""

    def names(self) -> Sequence[str]:
        """The targets there are, best first."""
        ...

    def language(self, target: str) -> Language:
        """What the families of a target are written in.

        Raises:
            UnknownNameError: there is no such target; the message lists those there are.
        """
        ...


_speakers: list[Speakers] = []


def ask(speakers: Speakers) -> None:
    """Have names of targets answered by `speakers` from now on."""
    _speakers[:] = [speakers]


def language_of(target: str) -> Language:
    """What the families of a target are written in.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
    """
    return _speakers[0].language(target)


def target_names() -> Sequence[str]:
    """The targets there are, best first."""
    return _speakers[0].names()


def launched_targets() -> Sequence[str]:
    """Targets whose families say how they are launched."""
    return [name for name in target_names() if language_of(name).launched]
