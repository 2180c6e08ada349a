"""``autotune emit``: print the source of one configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.cli.parser import CommandResult, common
from autotune.cli.problems import operation_option, problem_options, problems
from autotune.cli.records import find_record, user_cache
from autotune.cli.scope import Scope, read_device, target_options
from autotune.core.configuration import Configuration, Value
from autotune.core.errors import (
    AutotuneError,
    CompileError,
    InputError,
    SpaceError,
    UnknownNameError,
)
from autotune.core.suggestions import must_be

if TYPE_CHECKING:
    from autotune.core.device import Device, DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import LaunchPlan
    from autotune.families.parts import Preset
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem


def add_emit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "emit",
        parents=[common(), problem_options(), target_options()],
        description="Prints the source that a family generates for a configuration: its "
        "defaults or a preset, changed by --set, or what a record stands for. For GPUs, it says "
        "how that is launched for the shape, and what it needs, as compiled for the device, which "
        "need not be here (--device h200).",
    )
    parser.add_argument("family", nargs="?", metavar="FAMILY")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter; may be given again",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="begin with the family's point NAME, or with the nearest that is valid here",
    )
    parser.add_argument(
        "--record",
        metavar="ID",
        help="the winner of this record, a stored or a shipped one, instead of a family",
    )
    operation_option(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Choice of what is printed.

    Attributes:
        family: whose source.
        configuration: the values of its parameters.
        problem: what it is for.
        device: where; None where it is not known here.
        notes: what the user should know, in lines.
        record: the record's id, if it is one's winner.
    """

    family: KernelFamily
    configuration: Configuration
    problem: Problem
    device: Device | None
    notes: tuple[str, ...] = ()
    record: str | None = None


def run(args: argparse.Namespace) -> CommandResult:
    """Render one configuration; for a GPU also compile it, where there is a compiler."""
    from autotune.families.gpu.launch import kernel_layout
    from autotune.families.rendering import render
    from autotune.targets.registry import target_class

    choice = _of_family(args) if args.record is None else _of_record(args)
    family, configuration, problem = choice.family, choice.configuration, choice.problem
    layout = kernel_layout(family, problem.layout)
    source = render(
        family,
        configuration,
        dtype=problem.dtype,
        layout=layout,
        out_dtype=problem.out_dtype,
    )
    notes = [*choice.notes]
    estimated: Mapping[str, Value] = {}
    binary: dict[str, Any] | None = None
    launch: dict[str, Any] | None = None
    faults: list[dict[str, Any]] = []
    exit_code = 0
    if choice.device is not None:
        limits = choice.device.limits
        plan = launch_of(family, configuration, source, problem, limits)
        if plan is not None:
            launch = launch_document(family, plan)
            notes.append(launch_note(family, plan, problem))
        known = family.values(configuration, problem, limits)
        estimated = {name: known[name] for name in family.derived}
        try:
            needs = target_class(family.target).estimates.resources(
                family, source, configuration, problem, choice.device
            )
        except CompileError as error:
            if not error.faults:
                raise
            faults, exit_code = fault_documents(source.text, error.faults), error.exit_code
            print(
                f"autotune: the emitted source does not compile\n{fault_text(faults)}",
                file=sys.stderr,
            )
        else:
            if needs is not None:
                binary = needs.document
                notes.append(needs.note)
    if not args.quiet:
        for note in notes:
            print(f"autotune: {note}", file=sys.stderr)
    document = {
        "source": source.text,
        "family": family.name,
        "target": family.target,
        "operation": family.operation,
        "problem": problem.key(),
        "record": choice.record,
        "configuration": dict(configuration),
        "digest": source.digest,
        "launch": launch,
        "resources": {"estimated": estimated, "compiled": binary},
        "errors": faults,
    }
    return CommandResult(document, source.text.rstrip("\n"), exit_code)


def _of_family(args: argparse.Namespace) -> _Choice:
    """A family's defaults or preset, with what was set."""
    if args.family is None:
        raise InputError("emit takes a FAMILY, or --record ID: `autotune families` lists them")
    scope = Scope.of(args, [args.family])
    family = scope.chosen[args.family]
    shapes = problems(args, scope, any_shape=True)
    if len(shapes) > 1:
        raise InputError(f"emit takes one --shape, got {len(shapes)}")
    problem = shapes[0]
    if (reason := family.unsupported(problem)) is not None:
        raise InputError(f"family {family.name!r} cannot serve {problem.label}: {reason}")
    device = read_device(scope.target, args, problem)
    preset, changes = _preset(family, args.preset), _changes(family, args.set)
    if preset is None:
        configuration = _nearest_with(changes, family, problem, device.limits)
        return _Choice(family, configuration, problem, device)
    stated = {name: preset.configuration[name] for name in preset.stated}
    try:
        configuration = _nearest_with({**stated, **changes}, family, problem, device.limits)
        return _Choice(family, configuration, problem, device)
    except SpaceError:
        near = _nearest_with(changes, _beginning_at(family, preset), problem, device.limits)
    moved = ", ".join(
        f"{name} = {near[name]} instead of {value}"
        for name, value in stated.items()
        if name not in changes and near[name] != value
    )
    note = f"preset {preset.name} is not valid for {problem.label} here; the nearest has {moved}"
    return _Choice(family, near, problem, device, (note,))


_OF_RECORDS = (
    "family",
    "set",
    "preset",
    "shape",
    "blas",
    "dtype",
    "out_dtype",
    "layout",
    "accuracy",
    "threads",
    "operation",
    "target",
)
"""Options for what a record says itself, beside the options of its target."""


def _of_record(args: argparse.Namespace) -> _Choice:
    """The winner of a record, for its own problem."""
    from autotune.targets.exported import device_of, family_of
    from autotune.targets.registry import all_options

    for option in (*_OF_RECORDS, *all_options()):
        if value := getattr(args, option, None):
            given = repr(value) if option == "family" else f"--{option.replace('_', '-')}"
            raise InputError(
                f"--record says itself what is printed, got {given} too: leave one of them out"
            )
    record = find_record(user_cache(args.cache), args.record)
    family = family_of(record, args.families)
    problem = family.defined.problem_from_key(record.problem)
    notes = []
    if family.digest != record.family_digest:
        notes.append(
            f"the files of family {family.name!r} have changed since record {record.id} was made: "
            "this is what they generate now"
        )
    device: Device | None = None
    try:
        device = device_of(record, problem, args.device)
    except AutotuneError as error:
        notes.append(f"its resources are not known here: {error}")
    configuration = family.conform(record.candidate.configuration)
    return _Choice(family, configuration, problem, device, tuple(notes), record.id)


def _nearest_with(
    changes: Mapping[str, Value], family: KernelFamily, problem: Problem, limits: DeviceLimits
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


def _beginning_at(family: KernelFamily, preset: Preset) -> KernelFamily:
    """The family with a preset's values as its defaults."""
    values = preset.configuration
    return replace(
        family, parameters=tuple(replace(p, default=values[p.name]) for p in family.parameters)
    )


def _preset(family: KernelFamily, name: str | None) -> Preset | None:
    """The preset of that name; none without a name."""
    if name is None:
        return None
    if not family.presets:
        raise UnknownNameError(f"family {family.name!r} has no presets, got {name!r}")
    if name not in family.presets:
        what = f"the preset of family {family.name!r}"
        raise UnknownNameError(must_be(what, name, list(family.presets)))
    return family.presets[name]


def _changes(family: KernelFamily, assignments: Sequence[str]) -> Mapping[str, Value]:
    """Values from ``name=value`` texts, matched against the values a parameter has."""
    values = {parameter.name: parameter.values for parameter in family.parameters}
    changes: dict[str, Value] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {assignment!r}")
        if name not in values:
            what = f"a parameter of family {family.name!r}"
            raise UnknownNameError(must_be(what, name, list(values)))
        matches = [value for value in values[name] if str(value) == text]
        if not matches:
            listed = ", ".join(map(str, values[name]))
            raise SpaceError(f"{name} must be one of {listed}, got {text!r}")
        changes[name] = matches[0]
    return changes


def launch_of(
    family: KernelFamily,
    configuration: Configuration,
    source: Source,
    problem: Problem,
    limits: DeviceLimits,
) -> LaunchPlan | None:
    """Launch of a call, all of it kernels that the source has; None on a CPU.

    Raises:
        SpaceError: the configuration cannot be launched for these sizes.
        FamilyError: the source has no such kernel.
    """
    from autotune.families.gpu.launched import check_launches
    from autotune.families.gpu.planning import planner_of

    if family.launch is None:
        return None
    plan = planner_of(family, configuration, problem.dtype, limits).plan(problem)
    kernels = family.language.kernels
    if kernels is not None:
        check_launches(family, plan, kernels(source.text))
    return plan


def launch_document(family: KernelFamily, plan: LaunchPlan) -> dict[str, Any]:
    """A plan as JSON-able values; bytes are bytes."""
    return {
        "kernels": [
            {
                "kernel": step.kernel,
                "grid": list(step.grid),
                "block": list(step.block),
                "dynamic_shared_bytes": step.shared_bytes,
                "cluster": list(step.cluster),
                **({"cooperative": True} if step.cooperative else {}),
            }
            for step in plan.steps
        ],
        "workspace_bytes": plan.workspace_bytes,
        "zeroed_bytes": plan.zeroed_bytes,
        "tensor_maps": [
            {key: value for key, value in asdict(each).items() if (key, value) != ("region", None)}
            for each in plan.maps
        ],
        "runtime": dict(zip(family.runtime_parameters, plan.runtime, strict=True)),
    }


def launch_note(family: KernelFamily, plan: LaunchPlan, problem: Problem) -> str:
    """A plan in one line."""
    parts = []
    for step in plan.steps:
        shared = f" with {step.shared_bytes} bytes of shared memory" if step.shared_bytes else ""
        clusters = f" in clusters of {_times(step.cluster)}" if max(step.cluster) > 1 else ""
        clusters += " that wait for each other" if step.cooperative else ""
        parts.append(
            f"{step.kernel} on {_times(step.grid)} blocks of {_times(step.block)}"
            f"{clusters}{shared}"
        )
    text = f"launched for {problem.label}: {', then '.join(parts)}"
    if plan.workspace_bytes is not None:
        zeroed = f", the first {plan.zeroed_bytes} zero" if plan.zeroed_bytes else ""
        text += f"; workspace of {plan.workspace_bytes} bytes{zeroed}"
    if plan.maps:
        boxes = (
            f"{each.operand}{' of the workspace' if each.region else ''} in boxes of "
            f"{_times(each.box)}"
            for each in plan.maps
        )
        text += f"; tensor maps of {' and '.join(boxes)} elements, as stored"
    if plan.runtime:
        values = zip(family.runtime_parameters, plan.runtime, strict=True)
        text += f"; {', '.join(f'{name} = {value}' for name, value in values)} at the call"
    return text


def _times(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))


_AROUND = 3


def fault_documents(text: str, faults: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    """Every error, with its line, counted from 1, and the numbered lines around it."""
    lines = text.split("\n")
    documents = []
    for line, message in faults:
        first = max(1, line - _AROUND)
        around = range(first, min(len(lines), line + _AROUND) + 1)
        documents.append(
            {
                "line": line,
                "message": message,
                "source": {str(number): lines[number - 1] for number in around},
            }
        )
    return documents


def fault_text(documents: Sequence[dict[str, Any]]) -> str:
    """The same for people; the line that is meant is marked."""
    parts = []
    for each in documents:
        parts.append(f"line {each['line']}: {each['message']}")
        for number, line in each["source"].items():
            mark = ">" if number == str(each["line"]) else " "
            parts.append(f"{mark}{number:>6} | {line}".rstrip())
    return "\n".join(parts)
