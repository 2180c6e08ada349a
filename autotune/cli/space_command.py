"""``autotune space``: how large a family's space is, and what prunes it."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from autotune.cli.options import CommandResult, common
from autotune.cli.problems import operation_option, problem_options, problems, shapes_text
from autotune.cli.scope import Scope
from autotune.cli.targets import placed_target, target_options
from autotune.cli.terminal import Style, folded, styled, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Count every family's space."""
    scope = Scope.of(args, args.family)
    target = placed_target(scope.target, args)
    documents, texts = [], []
    for problem in problems(args, scope):
        device = target.device(problem, args.device)
        texts.append(f"{shapes_text(problem, blas=True)} on {device.fingerprint.name}")
        for family in scope.chosen.values():
            # Where no class is asked for, a family is counted for its own.
            accuracy = args.accuracy or family.accuracy
            wanted = problem.defined.problem_from_key({**problem.key(), "accuracy": accuracy})
            document = _count(family, wanted, device)
            documents.append(document | {"problem": problem.key()})
            texts.append(_text(document, verbose=args.verbose))
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


def _text(document: dict[str, Any], *, verbose: bool) -> str:
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
