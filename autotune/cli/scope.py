"""The scope of a command line: a target and its device, an operation, and families for both."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.parser import rare
from autotune.core.errors import InputError, UnknownNameError
from autotune.core.suggestions import must_be
from autotune.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.operation import Operation
    from autotune.operations.problem import Problem
    from autotune.serving.target import Joined, Target


def target_options(*, device: bool = True) -> argparse.ArgumentParser:
    """A parent parser with the options that choose target, device and families' folders.

    Args:
        device: whether ``--device`` and the targets' own options are some of them.
    """
    from autotune.targets.registry import target_names

    *names, last = target_names()
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("target")
    group.add_argument(
        "--target",
        metavar="T",
        help=f"where to run: {', '.join(names)} or {last} (default: the best there is)",
    )
    if device:
        group.add_argument(
            "--device",
            metavar="NAME|INDEX",
            help="which GPU; where nothing is run also one that is not here, such as h200 "
            "(default: the first)",
        )
    families_option(group)
    if device:
        _add_own_options(parser)
    return parser


def families_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--families``."""
    parser.add_argument(
        "--families",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a folder with kernel families of your own; may be given again",
    )


def _add_own_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of targets, in groups by the targets that they are for."""
    from autotune.targets.registry import all_options

    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, owned in all_options().items():
        option = owned[0][1]
        if option.decides:
            continue  # an object, which nobody can write on a command line
        owners = " or ".join(owner for owner, _ in owned)
        if owners not in groups:
            groups[owners] = parser.add_argument_group(f"with --target {owners} only")
        told = (each.help if len(owned) == 1 else f"{owner}: {each.help}" for owner, each in owned)
        rare(
            groups[owners].add_argument(
                f"--{name.replace('_', '-')}",
                type=option.type,
                metavar=option.metavar,
                help="; ".join(told),
            )
        )


def choose_target(args: argparse.Namespace) -> str:
    """The name of the target that the options mean.

    Without ``--target`` that is the best this machine has, or the best of those that have devices
    to choose from where one is named.

    Args:
        args: parsed options of `target_options`.

    Raises:
        UnknownNameError: there is no such target.
        InputError: a device is named for a target without any.
    """
    from autotune.targets.registry import make_target, target_class, target_names

    if args.device is None:
        return make_target(args.target).name
    if args.target is None:
        return next(name for name in target_names() if target_class(name)().names_devices)
    chosen = target_class(args.target)
    if not chosen.of(_own_options(args, args.target)).names_devices:
        several = getattr(args, "devices", None)  # of which the first is the device
        rule = "--device names a GPU" if several is None else "--devices names GPUs"
        raise InputError(
            f"{rule}, got {several or args.device!r} with --target {args.target}: "
            f"leave one of them out{_instead(chosen)}"
        )
    return chosen.name


def _own_options(args: argparse.Namespace, target: str) -> dict[str, object]:
    """The given options that a target has."""
    from autotune.targets.registry import target_class

    names = [option.name for option in target_class(target).OPTIONS]
    given = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _instead(target: type[Target]) -> str:
    """With what option the target would have devices to choose from, if there is one."""
    for option in target.OPTIONS:
        for choice in option.choices:
            if target.of({option.name: choice}).names_devices:
                return f", or add --{option.name} {choice}"
    return ""


def placed_target(target: str, args: argparse.Namespace) -> Target:
    """The target, with what the options say of it.

    Args:
        target: its name.
        args: parsed options of `target_options`.

    Raises:
        InputError: an option is for another target, or not right.
    """
    from autotune.targets.registry import all_options, make_target

    options = {name: getattr(args, name, None) for name in all_options()}
    return make_target(target, options, dashes="--")


@contextmanager
def joined_target(target: str, args: argparse.Namespace) -> Iterator[Joined]:
    """The target for the one process that works, where several run the same command.

    Args:
        target: its name.
        args: parsed options, the same in all of them.

    Raises:
        AutotuneError: the options are for another target, or differ between the processes.
    """
    given = {name: value for name, value in vars(args).items() if not callable(value)}
    options = {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}
    with placed_target(target, args).joined(
        {**options, "version of autotune": __version__}
    ) as joined:
        yield joined


def read_device(target: str, args: argparse.Namespace, problem: Problem | None = None) -> Device:
    """The device that the options mean: the live one, or one described in a table.

    Raises:
        UnknownNameError: there is no such device.
        MissingDependencyError: a package or the device itself is missing.
    """
    return placed_target(target, args).device(problem, args.device)


_DEFAULT_OPERATION = "gemm"


@dataclass(frozen=True, slots=True)
class Scope:
    """A target, an operation, and the families for both.

    Attributes:
        target: the target's name.
        operation: the operation's name.
        defined: the operation itself.
        families: every family of the operation on the target, by name.
        chosen: those named on the command line, in that order; all of them if none is.
        named: the names given.
    """

    target: str
    operation: str
    defined: Operation
    families: Mapping[str, KernelFamily]
    chosen: Mapping[str, KernelFamily]
    named: tuple[str, ...]

    @classmethod
    def of(cls, args: argparse.Namespace, named: Sequence[str] = ()) -> Scope:
        """Read the options.

        Without ``--target`` that is the best target this machine has, or the best with devices to
        choose from where one is named. If it lacks one of the families named, or the operation,
        and one other target has them, it is that one. The operation is the families', where none
        is named.

        Args:
            args: parsed options of `target_options`, with `operation`.
            named: names of families given on the command line.

        Raises:
            UnknownNameError: there is no such target, operation or family.
            InputError: several targets or operations have the families.
        """
        from autotune.operations.problem import OPERATIONS  # late: `families` needs no NumPy
        from autotune.targets.families import (
            find_families,
            load_families,
            operation_of,
            select_families,
        )

        target, operation = choose_target(args), args.operation or _DEFAULT_OPERATION
        every: Sequence[KernelFamily] = ()
        if named or operation != _DEFAULT_OPERATION:
            every = find_families(args.families, args.operation)
            target, operation = _place(args, target, every, named)
            families = {
                family.name: family
                for family in every
                if (family.target, family.operation) == (target, operation)
            }
        else:
            families = load_families(target=target, operation=operation, extra=args.families)
        if not families and operation not in OPERATIONS:
            elsewhere = sorted({each.target for each in every if each.operation == operation})
            raise UnknownNameError(
                f"operation {operation!r} has families for {' and '.join(elsewhere)}, none for "
                f"target {target}: choose one of those with --target"
            )
        return cls(
            target=target,
            operation=operation,
            defined=operation_of(families, operation),
            families=families,
            chosen=select_families(families, named),
            named=tuple(named),
        )


def _place(
    args: argparse.Namespace, default: str, every: Sequence[KernelFamily], named: Sequence[str]
) -> tuple[str, str]:
    """The target and the operation of which there are all the families named."""
    from autotune.targets.registry import launched_targets, target_names

    _check_operation(args.operation, every)
    owned = {(family.target, family.operation, family.name) for family in every}
    if args.target is not None:
        targets: Sequence[str] = [args.target]
    else:
        targets = target_names() if args.device is None else launched_targets()
    operations = (
        sorted({family.operation for family in every})
        if args.operation is None
        else [args.operation]
    )
    places = [
        (target, operation)
        for target in targets
        for operation in operations
        if any(owner[:2] == (target, operation) for owner in owned)
        and all((target, operation, family) in owned for family in named)
    ]
    if not places:
        return default, args.operation or _DEFAULT_OPERATION
    wanted = ", ".join(named) or args.operation
    target = _only([target for target, _ in places], default, wanted, "--target")
    fitting = [operation for place, operation in places if place == target]
    return target, _only(fitting, _DEFAULT_OPERATION, wanted, "operation")


def _only(found: Sequence[str], default: str, wanted: str, option: str) -> str:
    """The default where it was found, else the one that was."""
    distinct = list(dict.fromkeys(found))
    if default in distinct:
        return default
    if len(distinct) > 1:
        raise InputError(f"{wanted} can be had for {' and '.join(distinct)}: choose with {option}")
    return distinct[0]


def _check_operation(operation: str | None, every: Sequence[KernelFamily]) -> None:
    known = sorted({family.operation for family in every})
    if operation is None or operation in known:
        return
    if operation in {family.name for family in every}:
        raise UnknownNameError(
            f"the operation must be one of {', '.join(known)}, and {operation!r} is a family: "
            f"--family {operation}"
        )
    raise UnknownNameError(
        f"{must_be('the operation', operation, known)}; one of your own needs --families DIR, the "
        "folder that defines it"
    )
