"""The opening comment of emitted source: family, template, configuration and launch.

Nothing in it varies between runs, devices or problems.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autotune.core.configuration import Configuration, Value
    from autotune.families.family import KernelFamily
    from autotune.families.parts import AuxiliaryKernel
    from autotune.space import Expression

_WIDTH = 97  # of a hundred columns a comment takes three
# Space files are data of strangers, and nothing of theirs may end a comment or a text.
_HARMLESS = re.compile(r"[\w +\-*/%().,<>=!'\[\]]*", re.ASCII)
_TIE = "\0"  # a space at which no line ends
_ALONE = f"(1,{_TIE}1,{_TIE}1)"  # a block in no cluster
_ELSEWHERE = "(see the family's file)"


def banner(
    family: KernelFamily,
    compiled: Configuration,
    constants: Mapping[str, Value],
    types: str,
    layout: str,
) -> str:
    """The opening lines of emitted source.

    Args:
        family: whose source it is.
        compiled: the parameters that are compiled in.
        constants: all that follows from them.
        types: of operands and results, in words.
        layout: of the operands.
    """
    lines = [
        f"{family.operation} for {family.target}: family {family.name}, {types}, layout {layout}.",
        "",
        f"template: {family.template}, digest {family.template_digest}",
        *_wrapped("configuration: " + compiled.json.replace('": ', f'":{_TIE}')),
        *launch_lines(family, constants, layout),
    ]
    return "\n".join(lines)


def launch_lines(family: KernelFamily, constants: Mapping[str, Value], layout: str) -> list[str]:
    """Lines on the launch, over sizes, limits and parameters passed at the call."""
    launch = family.launch
    if launch is None:
        return []
    names: dict[str, None] = {}
    turned = {operand for operand, stored in zip("AB", layout, strict=True) if stored == "t"}

    def told(expression: Expression) -> str:
        text = _told(expression, constants)
        names.update(dict.fromkeys(each for each in expression.ordered_names))
        return text

    def extents(expressions: Iterable[Expression]) -> str:
        return f"({', '.join(map(told, expressions))})".replace(" ", _TIE)

    def auxiliary(place: str, kernels: tuple[AuxiliaryKernel, ...]) -> Iterator[str]:
        for each in kernels:
            if each.when.names <= constants.keys():
                if not each.when.holds(constants):
                    continue
                where = ""
            else:
                where = f", where {told(each.when)}"
            shared = told(each.shared_bytes)
            memory = "" if shared == "0" else f", {shared} bytes of dynamic shared memory"
            yield (
                f"  {place} it{where}: {each.kernel}, grid {extents(each.grid)}, "
                f"block {extents(each.block)}{memory}"
            )

    shared = told(launch.shared_bytes)
    cluster = extents(launch.cluster)
    clusters = "" if cluster == _ALONE else f"clusters of {cluster}, "
    clusters += "cooperative, " if launch.cooperative else ""
    lines = [
        f"launch: grid {extents(launch.grid)}, block {extents(launch.block)}, {clusters}"
        f"{'no' if shared == '0' else f'{shared} bytes of'} dynamic shared memory"
    ]
    if launch.workspace_bytes is not None:
        line = f"  workspace: {told(launch.workspace_bytes)} bytes"
        zeroed = told(launch.zeroed_bytes)
        lines.append(line if zeroed == "0" else f"{line}, of which the first {zeroed} are zero")
    written = {each.name for each in family.defined.operands if each.written}
    for each in launch.maps(constants):
        rows, columns = map(told, each.stored_box(transposed=each.operand in turned))
        size = f"{rows} rows and {columns} columns"
        if each.operand in written:
            size = f"{rows} rows of {columns} bytes"
        of = f"{each.operand} as stored"
        if (region := each.region) is not None:
            of = (
                f"{told(region.rows)} x {told(region.columns)} {region.dtype}, rows "
                f"{told(region.leading)} apart, at byte {told(region.offset)} of the workspace"
            )
        swizzle = told(each.swizzle)
        swizzled = f", swizzled in {swizzle} bytes" if swizzle != "0" else ""
        rounded = f", rounded to {each.rounded}" if each.rounded else ""
        lines.append(f"  {each.argument}: boxes of {size} of {of}{swizzled}{rounded}")
    lines += [*auxiliary("before", launch.before), *auxiliary("after", launch.after)]
    lines += _definitions(family, constants, names)
    return [part for line in lines for part in _wrapped(line)]


def _definitions(
    family: KernelFamily, constants: Mapping[str, Value], names: Iterable[str]
) -> Iterator[str]:
    """Derived names that are no constants, in the order of the file."""
    wanted = family.derived_for(names) - constants.keys()
    for name, expression in family.derived.items():
        if name in wanted:
            yield f"  {name} = {_told(expression, constants)}"


def _told(expression: Expression, constants: Mapping[str, Value]) -> str:
    """An expression with numbers in place of what is compiled in; a number if that is all."""
    text = expression.fold(constants).simplify().text
    return text if _HARMLESS.fullmatch(text) and "*/" not in text else _ELSEWHERE


def _wrapped(line: str) -> list[str]:
    indent = len(line) - len(line.lstrip())
    wrapped = textwrap.wrap(
        line,
        _WIDTH,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_TIE, " ") for part in wrapped]
