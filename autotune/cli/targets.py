"""Options that say where to work, shared by the commands, and what they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import InputError

if TYPE_CHECKING:
    from autotune.device import Device
    from autotune.evaluators.mpi.world import Ranks
    from autotune.problem import Gemm
    from autotune.targets import Target


def target_options(*, device: bool = True) -> argparse.ArgumentParser:
    """A parent parser with the options that choose target, device and families' folders.

    Args:
        device: whether ``--device`` is one of them.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("target")
    group.add_argument("--target", metavar="T", help="where to run (default: the best there is)")
    if device:
        group.add_argument(
            "--device",
            metavar="NAME|INDEX",
            help="which GPU; where nothing is run also one that is not here, such as h200 "
            "(default: the first)",
        )
        group.add_argument(
            "--ranks",
            type=int,
            metavar="N",
            help="with --target mpi: ranks to start here (default: one per core)",
        )
        group.add_argument(
            "--operands",
            metavar="WHERE",
            help="with --target mpi: root, whole on rank 0, or distributed, in blocks on all "
            "ranks (default root)",
        )
    group.add_argument(
        "--families",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a folder with kernel families of your own; may be given again",
    )
    return parser


def choose_target(args: argparse.Namespace, families: Sequence[str] = ()) -> str:
    """The target that the options mean, by name.

    Without ``--target`` that is the best this machine has, or CUDA where a device is named. If it
    lacks one of the families named, and one other target has them all, it is that one.

    Args:
        args: parsed options of `target_options`.
        families: names of families given on the command line.

    Raises:
        UnknownNameError: there is no such target.
        InputError: a device is named for a target without any, or several targets have the
            families.
    """
    from autotune.catalog import find_families
    from autotune.family import GPU_TARGETS, LIMIT_NAMES
    from autotune.targets import make_target

    if args.target is not None:
        if args.target not in LIMIT_NAMES:
            make_target(args.target)  # says which there are
        if args.device is not None and args.target not in GPU_TARGETS:
            raise InputError(
                f"--device names a GPU, got {args.device!r} with --target {args.target}: "
                "leave one of them out"
            )
        return str(args.target)
    default = make_target(None).name if args.device is None else "cuda"
    if not families:
        return default
    owned = {(family.target, family.name) for family in find_families(args.families)}
    fitting = [
        target
        for target in LIMIT_NAMES
        if (args.device is None or target in GPU_TARGETS)
        and all((target, family) in owned for family in families)
    ]
    if default in fitting or not fitting:
        return default
    if len(fitting) > 1:
        raise InputError(
            f"{', '.join(families)} can be had for {' and '.join(fitting)}: choose with --target"
        )
    return fitting[0]


def placed_target(
    target: str, args: argparse.Namespace, attached: Ranks | None = None
) -> str | Target:
    """The target with what ``--ranks`` and ``--operands`` say of it.

    Args:
        target: its name.
        args: parsed options of `target_options`.
        attached: ranks that run already, where this process is one of them.

    Raises:
        InputError: the options are for another target, or not those of the attached ranks.
    """
    from autotune.mpi_target import MpiTarget

    if target == "mpi":
        if attached is not None and args.ranks not in (None, attached.describe().ranks):
            raise InputError(
                f"--ranks starts ranks, got {args.ranks} with {attached.describe().ranks} under "
                "mpiexec: leave it out"
            )
        return MpiTarget(args.ranks, args.operands or "root", attached)
    for name, value in (("ranks", args.ranks), ("operands", args.operands)):
        if value is not None:
            raise InputError(f"--{name} is for --target mpi, got {value!r} with target {target}")
    return target


def read_device(target: str, args: argparse.Namespace, problem: Gemm | None = None) -> Device:
    """The device that the options mean: the live one, or one described in a table.

    Raises:
        UnknownNameError: there is no such device.
        MissingDependencyError: a package or the device itself is missing.
    """
    from autotune.targets import make_target

    return make_target(placed_target(target, args)).device(problem, args.device)
