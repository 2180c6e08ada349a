"""``autotune families``: the kernel families there are, with their parameters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli.options import CommandResult, common
from autotune.cli.targets import choose_target, read_device, target_options
from autotune.cli.terminal import Style, folded, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "families",
        parents=[common(), target_options()],
        description="Lists the kernel families found, with their parameters, values and presets; "
        "with --device also whether that GPU can run them.",
    )
    parser.add_argument("family", nargs="*", metavar="FAMILY", help="default: all")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """List the families of a target, or those named wherever they are."""
    from autotune.targets.families import find_families, select_families
    from autotune.targets.registry import launched_targets, target_names

    target = choose_target(args)
    limits: DeviceLimits | None = None
    targets: Sequence[str] = [target]
    if args.device is not None:
        limits = read_device(target, args).limits
        if args.target is None:
            targets = launched_targets()
    elif args.family and args.target is None:
        targets = target_names()
    families = [family for family in find_families(args.families) if family.target in targets]
    families.sort(key=lambda family: (family.name, targets.index(family.target)))
    named = select_families({family.name: family for family in families}, args.family)
    shown = [family for family in families if family.name in named]
    own = [family for family in shown if not family.adopted]
    texts = [_text(family, limits) for family in own]
    texts += _adopted([family for family in shown if family.adopted])
    if not args.family:
        others = [name for name in target_names() if name not in targets]
        texts.append(f"other targets have families of their own: --target {', '.join(others)}")
    return CommandResult([_document(family, limits) for family in shown], "\n\n".join(texts))


def _document(family: KernelFamily, limits: DeviceLimits | None) -> dict[str, Any]:
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
        "epilogue": family.epilogue,
        "presets": [
            {
                "name": preset.name,
                "configuration": dict(preset.configuration),
                "summary": preset.summary,
            }
            for preset in family.presets.values()
        ],
        "unavailable": None if limits is None else _unavailable(family, limits),
    }


def _adopted(families: Sequence[KernelFamily]) -> list[str]:
    """Operations that gemm's families compute: what they are, and which families those are."""
    names: dict[tuple[str, str], list[str]] = {}
    defined = {}
    for family in families:
        names.setdefault((family.operation, family.target), []).append(family.name)
        defined[family.operation] = family.defined
    return [
        "\n".join(
            [
                f"{styled(operation, Style.BOLD)}  (gemm with an epilogue, on {target}: "
                f"{defined[operation].result.text})",
                folded("  ", defined[operation].summary),
                folded("  families of gemm: ", ", ".join(able)),
            ]
        )
        for (operation, target), able in names.items()
    ]


def _unavailable(family: KernelFamily, limits: DeviceLimits) -> str | None:
    """The demand on the device itself that it does not meet, or None."""
    names = limits.names()
    for restriction in family.restrictions:
        expression = restriction.expression
        if expression.names <= names.keys() and not expression.holds(names):
            return f"{restriction.reason} ({restriction.text})"
    return None


def _text(family: KernelFamily, limits: DeviceLimits | None) -> str:
    served = f"{family.accuracy}, {', '.join(family.dtypes)}, layout {', '.join(family.layouts)}"
    lines = [
        f"{styled(family.name, Style.BOLD)}  ({family.operation} on {family.target}, {served})",
        folded("  ", family.summary),
    ]
    if limits is not None and (reason := _unavailable(family, limits)) is not None:
        lines.append(folded("  ", f"not on this device: {reason}"))
    width = max(len(parameter.name) for parameter in family.parameters)
    for parameter in family.parameters:
        values = ", ".join(map(str, parameter.values))
        lines.append(folded(f"  {parameter.name:<{width}} ", f"{{{values}}}  {parameter.summary}"))
    if family.presets:
        lines.append(folded("  presets: ", ", ".join(family.presets)))
    return "\n".join(lines)
