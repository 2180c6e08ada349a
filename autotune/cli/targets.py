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
            "ranks (default root); with --target hybrid: host, device, whole on the first GPU, or "
            "blocks, on all GPUs (default host)",
        )
        group.add_argument(
            "--local",
            metavar="TARGET",
            help="with --target mpi: what a rank multiplies on, cpu or cuda, a GPU of its own "
            "(default cpu)",
        )
        group.add_argument(
            "--gpus",
            type=int,
            metavar="N",
            help="with --target hybrid: GPUs to use, the first ones (default: all)",
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
        if args.device is not None and args.target not in {*GPU_TARGETS, "hybrid"}:
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
    """The target with what ``--ranks``, ``--local``, ``--gpus`` and ``--operands`` say of it.

    Args:
        target: its name.
        args: parsed options of `target_options`.
        attached: ranks that run already, where this process is one of them.

    Raises:
        InputError: the options are for another target, or not those of the attached ranks.
    """
    from autotune.hybrid_target import HybridTarget
    from autotune.mpi_target import MpiTarget

    for name, value, owners in (
        ("ranks", args.ranks, ("mpi",)),
        ("local", args.local, ("mpi",)),
        ("gpus", args.gpus, ("hybrid",)),
        ("operands", args.operands, ("mpi", "hybrid")),
    ):
        if value is not None and target not in owners:
            raise InputError(
                f"--{name} is for --target {' and '.join(owners)}, got {value!r} with target "
                f"{target}"
            )
    if target == "hybrid":
        return HybridTarget(args.gpus, args.operands or "host")
    if target == "mpi":
        if attached is not None and args.ranks not in (None, attached.describe().ranks):
            raise InputError(
                f"--ranks starts ranks, got {args.ranks} with {attached.describe().ranks} under "
                "mpiexec: leave it out"
            )
        return MpiTarget(args.ranks, args.operands or "root", attached, args.local or "cpu")
    return target


def read_device(target: str, args: argparse.Namespace, problem: Gemm | None = None) -> Device:
    """The device that the options mean: the live one, or one described in a table.

    Raises:
        UnknownNameError: there is no such device.
        MissingDependencyError: a package or the device itself is missing.
    """
    from autotune.targets import make_target

    return make_target(placed_target(target, args)).device(problem, args.device)
