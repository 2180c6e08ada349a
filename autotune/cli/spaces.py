"""``autotune families`` and ``autotune space``: kernel families, and what prunes their spaces."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from autotune.cli.parser import CommandResult, common
from autotune.cli.scope import Scope, choose_target, placed_target, read_device, target_options
from autotune.cli.terminal import Style, folded, styled, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.core.device import Device, DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem


def add_families(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "families",
        parents=[common(), target_options()],
        description="Lists the kernel families found, with their parameters, values and presets; "
        "with --device also whether that GPU can run them.",
    )
    parser.add_argument("family", nargs="*", metavar="FAMILY", help="default: all")
    parser.set_defaults(run=run_families)


def run_families(args: argparse.Namespace) -> CommandResult:
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
    texts = [_family_text(family, limits) for family in own]
    texts += _adopted([family for family in shown if family.adopted])
    if not args.family:
        others = [name for name in target_names() if name not in targets]
        texts.append(f"other targets have families of their own: --target {', '.join(others)}")
    return CommandResult(
        [_family_document(family, limits) for family in shown], "\n\n".join(texts)
    )


def _family_document(family: KernelFamily, limits: DeviceLimits | None) -> dict[str, Any]:
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


def _family_text(family: KernelFamily, limits: DeviceLimits | None) -> str:
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


def add_space(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from autotune.cli.problems import operation_option, problem_options  # late: imports NumPy

    parser = commands.add_parser(
        "space",
        parents=[common(), problem_options(), target_options()],
        description="Counts the valid configurations of each family for a problem on a device, "
        "restriction by restriction. The device need not be here: --device h200.",
    )
    parser.add_argument("family", nargs="*", metavar="FAMILY", help="default: all")
    operation_option(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show restrictions that remove nothing, too"
    )
    parser.set_defaults(run=run_space)


def run_space(args: argparse.Namespace) -> CommandResult:
    """Count every family's space."""
    from autotune.cli.problems import problems, shapes_text

    scope = Scope.of(args, args.family)
    target = placed_target(scope.target, args)
    documents, texts = [], []
    for problem in problems(args, scope):
        device = target.device(problem, args.device)
        # Names of processors may be long.
        texts.append(f"{shapes_text(problem, blas=True)}\non {device.fingerprint.name}")
        for family in scope.chosen.values():
            # Where no class is asked for, a family is counted for its own, if it is of the type.
            own = family.accuracy if problem.dtype in family.dtypes else problem.accuracy
            accuracy = args.accuracy or own
            wanted = problem.defined.problem_from_key({**problem.key(), "accuracy": accuracy})
            document = _count(family, wanted, device)
            documents.append(document | {"problem": problem.key()})
            texts.append(_space_text(document, verbose=args.verbose))
        forecast = target.estimates.forecast(problem, device, args.cache)
        if forecast is not None:
            for document in documents[-len(scope.chosen) :]:
                document[forecast.name] = list(forecast.rows)
            drawn = table(forecast.header, forecast.cells, right=forecast.header[1:])
            texts.append(f"{forecast.text}\n{drawn}")
    return CommandResult(documents, "\n\n".join(texts))


def _count(family: KernelFamily, problem: Problem, device: Device) -> dict[str, Any]:
    started = time.perf_counter()
    space = family.space(problem, device.limits)
    unsupported = family.unsupported(problem)
    valid = space.size if unsupported is None else 0
    seconds = time.perf_counter() - started
    return {
        "family": family.name,
        "operation": problem.operation,
        "problem": problem.key(),
        "cartesian": space.cartesian,
        "restrictions": [
            {"expr": step.expr, "reason": step.reason, "remaining": step.remaining}
            for step in (space.funnel() if unsupported is None else ())
        ],
        "valid": valid,
        "unsupported": unsupported,
        "seconds": round(seconds, 6),
    }


def _space_text(document: dict[str, Any], *, verbose: bool) -> str:
    valid, cartesian = document["valid"], document["cartesian"]
    share = f", {_percent(valid, cartesian)}" if 0 < valid < cartesian else ""
    head = (
        f"{styled(document['family'], Style.BOLD)}: {valid:,} valid of {cartesian:,}{share} "
        f"({document['seconds'] * 1e3:.1f} ms)"
    )
    if document["unsupported"] is not None:
        return folded("", f"{head}: {document['unsupported']}")
    steps = list(_steps(document))
    shown = [cells for cells, removes in steps if removes or verbose]
    header = ("left", "removed", "%", "what must hold")
    lines = [head]
    if shown:
        lines.append(table(header, shown, right=header[:3], fold=True))
    hidden = len(steps) - len(shown)
    if hidden:
        noun = "restriction removes" if hidden == 1 else "restrictions remove"
        lines.append(f"{hidden} {'more ' if shown else ''}{noun} nothing (-v shows what)")
    return "\n".join(lines)


def _steps(document: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """A row for each restriction, in the order of the funnel, and whether it removes anything.

    There are question marks where counting would take minutes.
    """
    before: int | None = document["cartesian"]
    for step in document["restrictions"]:
        after: int | None = step["remaining"]
        what = f"{step['reason']}: {step['expr']}"
        if before is None or after is None:
            yield ("?" if after is None else f"{after:,}", "?", "?", what), True
        else:
            removed = before - after
            share = _percent(removed, before) if before else "-"
            yield (f"{after:,}", f"{removed:,}", share, what), removed > 0
        before = after


def _percent(part: int, whole: int) -> str:
    """A share with as many digits as it takes to tell it from nothing and from all."""
    share = 100 * part / whole
    if share == 0 or 1 <= share <= 99:
        return f"{share:.0f}%"
    if share > 99:
        return "100%" if part == whole else ">99%"
    return f"{share:.2g}%" if share >= 0.01 else "<0.01%"
