"""``autotune emit``: print the source of one configuration."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cli.options import common
from autotune.cli.problems import problem_options, problems
from autotune.cli.result import CommandResult
from autotune.cli.targets import choose_target, read_device, target_options
from autotune.configuration import Configuration, Value
from autotune.errors import InputError, SpaceError, UnknownNameError

if TYPE_CHECKING:
    from autotune.device import DeviceLimits
    from autotune.family import KernelFamily
    from autotune.problem import Gemm


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "emit",
        parents=[common(), problem_options(), target_options()],
        description="Prints the source that a family generates for a configuration: its "
        "defaults, changed by --set. For GPUs, resources are those of the binary too, compiled "
        "for the device: it need not be here (--device h200).",
    )
    parser.add_argument("family", metavar="FAMILY")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter; may be given again",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Render one configuration; for a GPU also compile it, where there is a compiler."""
    from autotune.catalog import load_families, select_families
    from autotune.cli import resources
    from autotune.family import GPU_TARGETS
    from autotune.rendering import render

    target = choose_target(args, [args.family])
    families = load_families(target=target, operation="gemm", extra=args.families)
    family = select_families(families, [args.family])[args.family]
    shapes = problems(args, family.accuracy)
    if len(shapes) > 1:
        raise InputError(f"emit takes one --shape, got {len(shapes)}")
    problem = shapes[0]
    if (reason := family.unsupported(problem)) is not None:
        raise InputError(f"family {family.name!r} cannot serve {problem.label}: {reason}")
    device = read_device(target, args, problem)
    configuration = _nearest_with(_changes(family, args.set), family, problem, device.limits)
    layout = problem.layout if problem.layout in family.layouts else "nn"
    source = render(family, configuration, dtype=problem.dtype, layout=layout)
    estimated = resources.estimates(family, configuration, problem, device)
    binary, missing = resources.compiled(family, source, configuration, problem, device)
    if not args.quiet and family.target in GPU_TARGETS:
        note = missing or resources.summary(estimated, binary or {}, device)
        print(f"autotune: {note}", file=sys.stderr)
    document = {
        "source": source.text,
        "family": family.name,
        "target": family.target,
        "configuration": dict(configuration),
        "digest": source.digest,
        "resources": {"estimated": estimated, "compiled": binary},
    }
    return CommandResult(document, source.text.rstrip("\n"))


def _nearest_with(
    changes: Mapping[str, Value], family: KernelFamily, problem: Gemm, limits: DeviceLimits
) -> Configuration:
    """The valid configuration nearest to the defaults that has the values asked for.

    Raises:
        SpaceError: there is none; the message says what stands in the way.
    """
    parameters = tuple(
        replace(parameter, values=(changes[parameter.name],), default=changes[parameter.name])
        if parameter.name in changes
        else parameter
        for parameter in family.parameters
    )
    try:
        return replace(family, parameters=parameters).default(problem, limits)
    except SpaceError:
        wanted = Configuration({**family.default(problem, limits), **changes})
        rejection = family.space(problem, limits).rejection(wanted)
        raise SpaceError(f"no valid configuration has {wanted}: {rejection}") from None


def _changes(family: KernelFamily, assignments: Sequence[str]) -> Mapping[str, Value]:
    """Values from ``name=value`` texts, matched against the values a parameter has."""
    values = {parameter.name: parameter.values for parameter in family.parameters}
    changes: dict[str, Value] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {assignment!r}")
        if name not in values:
            close = difflib.get_close_matches(name, values, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UnknownNameError(
                f"family {family.name!r} has no parameter {name!r}, it has "
                f"{', '.join(values)}{hint}"
            )
        matches = [value for value in values[name] if str(value) == text]
        if not matches:
            listed = ", ".join(map(str, values[name]))
            raise SpaceError(f"{name} must be one of {listed}, got {text!r}")
        changes[name] = matches[0]
    return changes
