"""Reading a kernel family from its TOML file. Data only: nothing in the file is executed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Configuration
from autotune.core.dtypes import DEFAULT_DTYPE, DTYPES, ELEMENTS, USUAL_DTYPES
from autotune.core.printable import shown
from autotune.core.toml_table import Table
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch_table import extents, launch_restrictions, read_launch, size
from autotune.families.heading import read_heading
from autotune.families.local import local_restrictions, read_local
from autotune.families.parts import ONE, ZERO, Launch, Preset, Work
from autotune.families.rendering import WORD, reserved_names
from autotune.families.scope import Scope
from autotune.operations.problem import (
    ACCURACIES,
    LAYOUTS,
    MatrixOperation,
    element_sizes,
)
from autotune.space import Expression, Restriction, TunableParameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from autotune.core.configuration import Value
    from autotune.families.family import Language
    from autotune.families.heading import Heading
    from autotune.operations.operation import Operation

_DEFAULT_LAYOUTS = ("nn",)


def read_family(
    path: Path,
    template_folders: tuple[Path, ...],
    fragment_folders: tuple[Path, ...] = (),
    operation_file: Path | str | None = None,
    *,
    languages: Mapping[str, Language],
) -> KernelFamily:
    """Read one family; arguments and errors are those of `read_heading`."""
    head = read_heading(
        path, template_folders, fragment_folders, operation_file, languages=languages
    )
    return read_body(head)


def read_body(head: Heading) -> KernelFamily:
    """Read the rest of a family whose heading was read.

    Raises:
        FamilyError: as `read_heading`.
    """
    top, language, defined = head.parts[0], head.language, head.defined
    tuned = read_tuned(head.parts, defined, head.target, language)
    known = DTYPES if isinstance(defined, MatrixOperation) else ELEMENTS
    local, restrictions = None, tuned.restrictions
    if language.local:
        local = read_local(top, language, tuned.scope)
        restrictions += tuple(local_restrictions(local, tuned.derived, language))
    family = KernelFamily(
        name=head.name,
        operation=head.operation,
        target=head.target,
        language=language,
        template=head.template,
        accuracy=top.choice("accuracy", ACCURACIES),
        summary=top.text("summary"),
        dtypes=top.choices("dtypes", known, USUAL_DTYPES),
        out_dtypes=top.choices("out_dtypes", DTYPES, ()) if "out_dtypes" in top else (),
        layouts=top.choices("layouts", LAYOUTS, _DEFAULT_LAYOUTS),
        parameters=tuned.parameters,
        derived=tuned.derived,
        restrictions=restrictions,
        launch=tuned.launch,
        path=top.path,
        template_folders=head.template_folders,
        template_digest=head.template_digest,
        digest=head.digest,
        files=head.files,
        template_files=head.template_files,
        presets=dict(_presets(top.table("presets", {}), tuned.parameters)),
        defined=defined,
        local=local,
        threads=_threads(top, tuned) if language.threaded else None,
        work=_work(top.table("work"), tuned.scope, language) if "work" in top else None,
        any_sizes=language.launched and top.flag("any_sizes"),
        epilogue=head.epilogue,
        default_for=_default_for(top, defined, language),
    )
    for part in head.parts:
        part.close()
    return family


@dataclass(frozen=True, slots=True)
class Tuned:
    """The space and the launch of a family.

    Attributes:
        parameters: in the order of the file.
        derived: names for expressions.
        restrictions: those that the launch implies, then the explicit ones.
        launch: where the target's kernels have one.
        scope: the names that further expressions may use.
    """

    parameters: tuple[TunableParameter, ...]
    derived: Mapping[str, Expression]
    restrictions: tuple[Restriction, ...]
    launch: Launch | None
    scope: Scope


def read_tuned(
    parts: tuple[Table, ...], defined: Operation, target: str, language: Language
) -> Tuned:
    """Read the parameters, derived names, restrictions and launch of a family.

    Args:
        parts: its file, and the fragments that it includes.
        defined: what it computes.
        target: where it runs.
        language: of the target.

    Raises:
        InputError: something does not fit; the message names file and key.
    """
    top = parts[0]
    scope = Scope(
        frozenset({*defined.sizes, *element_sizes(DEFAULT_DTYPE)}) | language.limits,
        reserved_names(defined, language),
    )
    lists = {name: values for part in parts for name, values in _lists(part)}
    parameters = tuple(each for part in parts for each in _parameters(part, scope, lists))
    derived = {name: text for part in parts for name, text in _derived(part, scope)}
    restrictions = tuple(each for part in parts for each in _restrictions(part, scope))
    for parameter in parameters:
        if parameter.runtime and not language.runtime:
            key = f"parameters.{parameter.name}.runtime"
            top.fail(key, f"must be false: {target} kernels take no parameters at the call")
    launch = None
    if language.launched:
        compiled = (each.name for each in parameters if not each.runtime)
        fixed = Scope(_following(compiled, derived), frozenset())
        included = [part.table("launch") for part in parts[1:] if "launch" in part]
        launch = read_launch(top.table("launch"), scope, fixed, defined, language, included)
        limits = launch_restrictions(launch, derived, top, scope, language)
        restrictions = (*limits, *restrictions)
    return Tuned(parameters, derived, restrictions, launch, scope)


def _lists(part: Table) -> Iterator[tuple[str, list[Any]]]:
    """Lists of values that parameters name."""
    table = part.table("lists", {})
    for name in table:
        yield name, table.items(name)


def _parameters(
    part: Table, scope: Scope, lists: Mapping[str, list[Any]]
) -> Iterator[TunableParameter]:
    if "lists" in part and "parameters" not in part:
        return
    table = part.table("parameters")
    if not list(table):
        table.fail("*", "is missing: a family has at least one parameter")
    for name in table:
        scope.define(table, name)
        entry = table.table(name)
        named = entry.value("values")
        if isinstance(named, str) and named not in lists:
            entry.fail(
                "values",
                f"must be a list, or the name of one in [lists], got {shown(named)}: there is "
                f"{', '.join(lists) or 'none'}",
            )
        values = tuple(lists[named] if isinstance(named, str) else entry.items("values"))
        _check_values(entry, values)
        if isinstance(values[0], str):
            scope.define_text(name)
        default = entry.value("default")
        if default is not None:
            _check_choice(entry, "default", default, values)
        runtime = entry.flag("runtime")
        if runtime and type(values[0]) is not int:
            entry.fail("runtime", "parameters are passed as integers; its values are not")
        summary = entry.text("summary") if "summary" in entry else ""
        entry.close()
        yield TunableParameter(name, values, default, summary, runtime)


def _check_choice(table: Table, key: str, value: Any, values: tuple[Value, ...]) -> None:
    if type(value) is not type(values[0]) or value not in values:
        table.fail(key, f"must be one of its values {_plain(values)}, got {shown(value)}")


def _check_values(entry: Table, values: tuple[Value, ...]) -> None:
    kind = type(values[0])
    for value in values:
        if type(value) is not kind or kind not in (bool, int, float, str):
            entry.fail(
                "values", f"must be all integers, floats, strings or booleans, got {shown(value)}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            entry.fail("values", f"must be finite, got {shown(value)}")
        if isinstance(value, int) and abs(value) >= 2**63:
            entry.fail("values", f"must fit 64 bits, got {shown(value)}")
        # Texts end up in the emitted source, which is run.
        if isinstance(value, str) and not WORD.fullmatch(value):
            entry.fail(
                "values",
                f"must be words: letters, digits and underscores, joined by single hyphens, "
                f"got {shown(value)}",
            )
    if len(set(values)) < len(values):
        entry.fail("values", f"must not repeat a value, got {_plain(values)}")


def _derived(part: Table, scope: Scope) -> Iterator[tuple[str, Expression]]:
    table = part.table("derived", {})
    for name in table:
        expression = scope.expression(table, name, table.value(name), exact_division=True)
        if scope.is_text(expression):
            # What a template inserts is a number, or a value that a parameter declares.
            table.fail(name, f"must be a number, and {shown(expression.text)} is a text")
        scope.define(table, name)
        yield name, expression


def _restrictions(part: Table, scope: Scope) -> Iterator[Restriction]:
    for table in part.tables("restrictions"):
        text = table.text("expr")
        reason = table.text("reason")
        yield Restriction(scope.expression(table, "expr", text, exact_division=False), reason)
        table.close()


def _presets(
    table: Table, parameters: tuple[TunableParameter, ...]
) -> Iterator[tuple[str, Preset]]:
    """Presets; parameters that one does not mention take their declared defaults."""
    for name in table:
        entry = table.table(name)
        summary = entry.text("summary")
        chosen: dict[str, Value] = {}
        stated: list[str] = []
        for parameter in parameters:
            value = entry.value(parameter.name)
            if value is not None:
                _check_choice(entry, parameter.name, value, parameter.values)
                stated.append(parameter.name)
            elif (value := parameter.default) is None:
                entry.fail(parameter.name, "is missing, and the parameter declares no default")
            chosen[parameter.name] = value
        entry.close()
        yield name, Preset(name, summary, Configuration(chosen), frozenset(stated))


def _work(table: Table, scope: Scope, language: Language) -> Work:
    rows, columns, steps = extents(table, "tile", scope, "rows, columns and reduction steps")
    others = {"parts": "1", "in_block": "0", "copied": "0", "share": "0"}
    parts, in_block, copied, share = (
        scope.expression(
            table, key, table.text(key) if key in table else default, exact_division=True
        )
        for key, default in others.items()
    )
    text = table.text("rate") if "rate" in table else "1"
    device = Scope(language.limits, frozenset())
    rate = device.expression(table, "rate", text, exact_division=False)
    warp = None
    if "warp" in table:
        down, across = extents(table, "warp", scope, "rows and columns", count=2)
        warp = down, across
    blocks = size(table, "blocks", scope) if "blocks" in table else ONE
    idle = size(table, "idle", scope) if "idle" in table else ZERO
    table.close()
    return Work((rows, columns, steps), parts, in_block, copied, share, rate, warp, blocks, idle)


def _following(parameters: Iterable[str], derived: Mapping[str, Expression]) -> frozenset[str]:
    """Names of parameters, and what follows from them and the element types alone."""
    known = {*parameters, *element_sizes(DEFAULT_DTYPE)}
    for name, expression in derived.items():
        if expression.names <= known:
            known.add(name)
    return frozenset(known)


def _threads(top: Table, tuned: Tuned) -> Expression | None:
    """The threads of a CPU kernel: as the file says, or its parameter of that name."""
    known = _following((each.name for each in tuned.parameters), tuned.derived)
    if "threads" not in top:
        return Expression.parse("threads") if "threads" in known else None
    return size(top, "threads", Scope(known, frozenset()))


def _default_for(top: Table, defined: Operation, language: Language) -> Expression | None:
    """Where it is the default, in terms of sizes and of limits of the device."""
    if "default_for" not in top:
        return None
    text = top.text("default_for")
    known = {*defined.sizes, *element_sizes(DEFAULT_DTYPE)}
    scope = Scope(language.limits | known, frozenset())
    return scope.expression(top, "default_for", text, exact_division=False)


def _plain(values: Iterable[Value]) -> str:
    return ", ".join(map(shown, values))
