"""Options that say where to work, shared by the commands, and what they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.parser import rare
from autotune.core.errors import InputError
from autotune.core.version import __version__

if TYPE_CHECKING:
    from autotune.core.device import Device
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
        raise InputError(
            f"--device names a GPU, got {args.device!r} with --target {args.target}: "
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
