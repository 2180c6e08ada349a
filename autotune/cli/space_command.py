"""``autotune space``: how large a family's space is, and what prunes it."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from autotune.cli.grids import predicted_grids
from autotune.cli.options import common
from autotune.cli.problems import problem_options, problems, shapes_text
from autotune.cli.result import CommandResult
from autotune.cli.table import table
from autotune.cli.targets import choose_target, read_device, target_options

if TYPE_CHECKING:
    from autotune.device import Device
    from autotune.family import KernelFamily
    from autotune.problem import Gemm


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "space",
        parents=[common(), problem_options(), target_options()],
        description="Counts the valid configurations of each family for a problem on a device, "
        "restriction by restriction. The device need not be here: --device h200.",
    )
    parser.add_argument("family", nargs="*", metavar="FAMILY", help="default: all")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Count every family's space."""
    from autotune.catalog import load_families, select_families

    target = choose_target(args, args.family)
    families = select_families(
        load_families(target=target, operation="gemm", extra=args.families), args.family
    )
    documents, texts = [], []
    for problem in problems(args):
        device = read_device(target, args, problem)
        texts.append(f"{shapes_text(problem)} on {device.fingerprint.name}")
        for family in families.values():
            document = _count(family, problem, device)
            documents.append(document)
            texts.append(_text(document))
        grids, grids_text = predicted_grids(problem, device, args.cache)
        if grids:
            for document in documents[-len(families) :]:
                document["grids"] = grids
            texts.append(grids_text)
    return CommandResult(documents, "\n\n".join(texts))


def _count(family: KernelFamily, problem: Gemm, device: Device) -> dict[str, Any]:
    started = time.perf_counter()
    space = family.space(problem, device.limits)
    valid = space.size
    seconds = time.perf_counter() - started
    return {
        "family": family.name,
        "problem": problem.key(),
        "cartesian": space.cartesian,
        "restrictions": [
            {"expr": step.expr, "reason": step.reason, "remaining": step.remaining}
            for step in space.funnel()
        ],
        "valid": valid,
        "seconds": round(seconds, 6),
    }


def _text(document: dict[str, Any]) -> str:
    head = (
        f"{document['family']}: {document['valid']:,} valid of {document['cartesian']:,} "
        f"({document['seconds'] * 1e3:.1f} ms)"
    )
    if not document["restrictions"]:
        return head
    rows = [
        (_count_text(step["remaining"]), step["reason"], step["expr"])
        for step in document["restrictions"]
    ]
    return head + "\n" + table(("left", "reason", "restriction"), rows, right=["left"])


def _count_text(remaining: int | None) -> str:
    """A count, or a question mark where counting would take minutes."""
    return "?" if remaining is None else f"{remaining:,}"
