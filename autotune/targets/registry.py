"""The targets there are: the shipped ones, and those of installed packages.

A package adds a target by an entry point of the group `GROUP`, which names the target and its
class::

    [project.entry-points."autotune.targets"]
    mine = "my_package.target:MyTarget"

No module of a target is imported before somebody asks for it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import InputError, UnknownNameError
from autotune.core.suggestions import must_be

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from autotune.families.family import Language
    from autotune.serving.target import Option, Target

_log = logging.getLogger(__name__)

GROUP = "autotune.targets"
"""Entry points by which other packages add targets."""

# Best first.
_SHIPPED: Mapping[str, str] = {
    "cuda": "autotune.gpu.nvidia.target:CudaTarget",
    "numba-cuda": "autotune.gpu.nvidia.target:NumbaCudaTarget",
    "cpu": "autotune.cpu.target:CpuTarget",
    "mpi": "autotune.distributed.mpi.target:MpiTarget",
    "hybrid": "autotune.distributed.hybrid.target:HybridTarget",
}


def target_names() -> Sequence[str]:
    """The targets there are, best first; those of other packages last."""
    return (*_SHIPPED, *(name for name in _installed() if name not in _SHIPPED))


@session.cached()
def _installed() -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def rescan() -> None:
    """Look again for other packages' targets, as after one was installed."""
    for cached in (_installed, target_class, language_of):
        cached.cache_clear()


@session.cached()
def target_class(name: str) -> type[Target]:
    """The class of the target called `name`.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
        InputError: another package's target cannot be imported, or is none.
    """
    if name in _SHIPPED:
        module, _, member = _SHIPPED[name].partition(":")
        found: type[Target] = getattr(importlib.import_module(module), member)
        return found
    if name not in _installed():
        raise UnknownNameError(must_be("target", name, target_names()))
    from autotune.serving.target import Target

    entry = _installed()[name]
    try:
        loaded = entry.load()
    except Exception as error:  # whatever somebody else's module raises
        raise InputError(
            f"target {name!r} cannot be imported from {entry.value}: {error}; mend or uninstall "
            "its package"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Target)) or loaded.name != name:
        raise InputError(
            f"target {name!r} must be a subclass of autotune.targets.Target with that name, and "
            f"{entry.value} is {loaded!r}"
        )
    return loaded


def target_classes() -> Sequence[type[Target]]:
    """Every target's class, best first; a warning tells of one that cannot be imported."""
    found = []
    for name in target_names():
        try:
            found.append(target_class(name))
        except InputError as error:
            _warn(str(error))
    return found


@session.cached()
def _warn(text: str) -> None:
    _log.warning("%s", text)


def make_target(
    name: str | Target | None, options: Mapping[str, Any] | None = None, *, dashes: str = ""
) -> Target:
    """The target called `name`; None picks the best this machine has. A target is itself.

    An option that decides picks its target, where none is named. Options that are None are left
    out; `dashes` begin them in messages.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
        InputError: an option is another target's, nobody's, or not right.
    """
    given = {option: value for option, value in (options or {}).items() if value is not None}
    if name is None:
        name = _decided(given) or _best()
    if isinstance(name, str):
        chosen = target_class(name)
        for option, value in given.items():
            if option not in {owned.name for owned in chosen.OPTIONS}:
                raise _misplaced(option, value, name, dashes)
        return chosen.of(given)
    for option, value in given.items():
        raise InputError(
            f"{dashes}{option} is for the constructor of a target that is made already, got "
            f"{value!r} with {name.name}: give it there"
        )
    return name


def all_options() -> Mapping[str, Sequence[tuple[str, Option]]]:
    """Every option of the targets by its name, with the names of the targets that have it."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for target in target_classes():
        for option in target.OPTIONS:
            found.setdefault(option.name, []).append((target.name, option))
    return found


HOMES: Mapping[str, str] = {"gpu": "cuda", "host": "cpu"}
"""Targets that products are best computed on, by the memory that their operands lie in."""


def home_of(array: Any) -> str:
    """The name of the target that arrays like this one are best multiplied on."""
    from autotune.arrays.libraries import memory_of  # late: it imports NumPy

    return HOMES[memory_of(array)]


def _decided(options: Mapping[str, Any]) -> str | None:
    if not options:
        return None
    owners = all_options()
    deciding = (
        owner for name in options for owner, option in owners.get(name, ()) if option.decides
    )
    return next(deciding, None)


def _best() -> str:
    return next(name for name in _SHIPPED if target_class(name).is_usable())


def _misplaced(option: str, value: Any, target: str, dashes: str) -> InputError:
    owners = [owner for owner, _ in all_options().get(option, ())]
    if not owners:
        known = list(all_options())
        return InputError(must_be("an option of a target", option, known))
    shown = f"{dashes}{option.replace('_', '-') if dashes else option}"
    return InputError(
        f"{shown} is for {dashes}target {' and '.join(owners)}, got {value!r} with target {target}"
    )


@session.cached()
def language_of(target: str) -> Language:
    """The language that the families of a target are written in.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
    """
    return target_class(target).language()


class _Languages(Mapping[str, "Language"]):
    """Languages by target, best target first; an unknown name raises as `target_class` does."""

    def __getitem__(self, target: str) -> Language:
        return language_of(target)

    def __iter__(self) -> Iterator[str]:
        return (target.name for target in target_classes())

    def __len__(self) -> int:
        return len(target_classes())

    def __contains__(self, target: object) -> bool:
        return target in target_names()


LANGUAGES: Mapping[str, Language] = _Languages()
"""Languages of all targets, for reading families."""


def launched_targets() -> Sequence[str]:
    """Targets whose families say how they are launched."""
    return [name for name, language in LANGUAGES.items() if language.launched]
