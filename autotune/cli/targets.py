"""Options that say where to work, shared by the commands, and what they stand for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import InputError

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.operations.problem import Problem
    from autotune.targets.base import Target
    from autotune.targets.mpi.ranks.world import Ranks


def target_options(*, device: bool = True) -> argparse.ArgumentParser:
    """A parent parser with the options that choose target, device and families' folders.

    Args:
        device: whether ``--device`` is one of them.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("target")
    group.add_argument(
        "--target",
        metavar="T",
        help="where to run: cpu, cuda, numba-cuda, mpi or hybrid (default: the best there is)",
    )
    if device:
        group.add_argument(
            "--device",
            metavar="NAME|INDEX",
            help="which GPU; where nothing is run also one that is not here, such as h200 "
            "(default: the first)",
        )
    group.add_argument(
        "--families",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a folder with kernel families of your own; may be given again",
    )
    if device:
        _add_distributed(parser)
    return parser


def _add_distributed(parser: argparse.ArgumentParser) -> None:
    """The options of the two targets that divide a product."""
    mpi = parser.add_argument_group("with --target mpi only")
    mpi.add_argument(
        "--ranks", type=int, metavar="N", help="ranks to start here (default: one per core)"
    )
    mpi.add_argument(
        "--local",
        metavar="TARGET",
        help="what a rank multiplies on: cpu, or cuda, a GPU of its own (default cpu)",
    )
    hybrid = parser.add_argument_group("with --target hybrid only")
    hybrid.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs to use, the first ones (default: all)"
    )
    both = parser.add_argument_group("with --target mpi or hybrid")
    both.add_argument(
        "--operands",
        metavar="WHERE",
        help="where A, B and C are; mpi: root, whole on rank 0 (the default), or distributed, in "
        "blocks on all ranks; hybrid: host (the default), device, whole on the first GPU, or "
        "blocks, on all GPUs",
    )


def choose_target(args: argparse.Namespace) -> str:
    """The name of the target that the options mean.

    Without ``--target`` that is the best this machine has, or CUDA where a device is named.

    Args:
        args: parsed options of `target_options`.

    Raises:
        UnknownNameError: there is no such target.
        InputError: a device is named for a target without any.
    """
    from autotune.families.family import GPU_TARGETS, LIMIT_NAMES
    from autotune.targets.registry import make_target

    if args.target is None:
        return make_target(None).name if args.device is None else "cuda"
    if args.target not in LIMIT_NAMES:
        make_target(args.target)  # says which there are
    on_gpus = args.target in {*GPU_TARGETS, "hybrid"} or args.local == "cuda"
    if args.device is not None and not on_gpus:
        instead = ", or add --local cuda" if args.target == "mpi" else ""
        raise InputError(
            f"--device names a GPU, got {args.device!r} with --target {args.target}: "
            f"leave one of them out{instead}"
        )
    return str(args.target)


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
    from autotune.targets.hybrid.target import HybridTarget
    from autotune.targets.mpi.target import MpiTarget

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


def read_device(target: str, args: argparse.Namespace, problem: Problem | None = None) -> Device:
    """The device that the options mean: the live one, or one described in a table.

    Raises:
        UnknownNameError: there is no such device.
        MissingDependencyError: a package or the device itself is missing.
    """
    from autotune.targets.registry import make_target

    return make_target(placed_target(target, args)).device(problem, args.device)
