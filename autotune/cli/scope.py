"""The scope of a command line: a target, an operation, and the families for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cli.targets import choose_target
from autotune.core.errors import InputError, UnknownNameError
from autotune.core.suggestions import must_be
from autotune.operations.problem import GEMM, OPERATIONS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from autotune.families.family import KernelFamily
    from autotune.operations.operation import Operation

_DEFAULT_OPERATION = GEMM.name


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
        from autotune.targets.families import (
            find_families,
            load_families,
            operation_of,
            select_families,
        )

        target, operation = choose_target(args), args.operation or _DEFAULT_OPERATION
        every: Sequence[KernelFamily] = ()
        if named or operation != _DEFAULT_OPERATION:
            every = find_families(args.families)
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
