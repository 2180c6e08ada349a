"""``autotune families``: the kernel families there are, with their parameters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli.options import common
from autotune.cli.problems import target_options
from autotune.cli.result import CommandResult

if TYPE_CHECKING:
    from autotune.family import KernelFamily


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "families",
        parents=[common(), target_options()],
        help="list the kernel families and their parameters",
        description="Lists the kernel families found, with their parameters and values.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """List the families of a target, or of all."""
    from autotune.catalog import load_families
    from autotune.targets import make_target, target_names

    targets = target_names() if args.target is None else [make_target(args.target).name]
    families = [
        family
        for target in targets
        for family in load_families(target=target, extra=args.families).values()
    ]
    return CommandResult(
        document=[_document(family) for family in families],
        text="\n\n".join(_text(family) for family in families),
    )


def _document(family: KernelFamily) -> dict[str, Any]:
    return {
        "family": family.name,
        "operation": family.operation,
        "target": family.target,
        "accuracy": family.accuracy,
        "summary": family.summary,
        "dtypes": list(family.dtypes),
        "layouts": list(family.layouts),
        "digest": family.digest,
        "parameters": [
            {
                "name": parameter.name,
                "values": list(parameter.values),
                "default": parameter.default,
                "runtime": parameter.runtime,
                "summary": parameter.summary,
            }
            for parameter in family.parameters
        ],
    }


def _text(family: KernelFamily) -> str:
    lines = [
        f"{family.name}  ({family.operation} on {family.target}, {family.accuracy})",
        f"  {family.summary}",
    ]
    for parameter in family.parameters:
        values = ", ".join(map(str, parameter.values))
        lines.append(f"  {parameter.name:<8} {{{values}}}  {parameter.summary}")
    return "\n".join(lines)
