"""The heading of a family file: what names the family, its operation, and the digest of its files.

It is all that look-ups need; `autotune.families.reading` reads the rest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DEFAULT_DTYPE
from autotune.core.errors import ExpressionError, InputError
from autotune.core.printable import shown
from autotune.core.toml_table import Table
from autotune.families.operation_file import OPERATION_FILE, read_operation
from autotune.families.scope import Scope
from autotune.families.templating import template_digest, template_exists
from autotune.operations.formula import Formula
from autotune.operations.layers import LAYERS
from autotune.operations.problem import GEMM, OPERATIONS, element_sizes, product_operation
from autotune.operations.python_reference import PythonReference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from autotune.core.facts import Stamp
    from autotune.families.family import Language
    from autotune.operations.operation import Operation

_PATH = re.compile(r"(?=.{1,200}$)\w[\w.+-]*(/\w[\w.+-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Heading:
    """The part of a family that says which one it is; fields are those of `KernelFamily`.

    Attributes:
        parts: its file, and the fragments that it includes.
    """

    parts: tuple[Table, ...]
    template_folders: tuple[Path, ...]
    name: str
    operation: str
    target: str
    language: Language
    template: str
    defined: Operation
    epilogue: bool
    template_digest: str
    template_files: tuple[Stamp, ...]
    digest: str
    files: tuple[Path, ...]


def is_foreign(path: Path, languages: Mapping[str, Language]) -> bool:
    """Return whether a file is the family of a target that `languages` lacks."""
    target = Table.read(path).value("target")
    return isinstance(target, str) and target not in languages


def read_heading(
    path: Path,
    template_folders: tuple[Path, ...],
    fragment_folders: tuple[Path, ...] = (),
    operation_file: Path | str | None = None,
    *,
    languages: Mapping[str, Language],
) -> Heading:
    """Read the heading of one family.

    Args:
        path: the TOML file.
        template_folders: where its template and their partials are looked up, first match wins.
        fragment_folders: where the fragments it includes are looked up, first match wins.
        operation_file: of an operation whose product it computes, with an epilogue, or the name
            of a layer, which needs no file; None reads it as the family of its own operation.
        languages: of the targets there are, by name.

    Raises:
        FamilyError: the file cannot be read or does not fit the format; the message names the
            file, the key, and what was expected.
    """
    top = Table.read(path)
    top.text("target")
    target = top.choice("target", languages)
    language = languages[target]
    operation = _operation_name(top, target, languages)
    epilogue = _computes_epilogues(top, operation, languages, language)
    # A family's expressions may use a fragment's parameters, and a fragment's all of the family's.
    parts = (top, *_fragments(top, fragment_folders))
    definition: list[Table] = []
    if operation_file is None:
        defined, definition = _defined(top, operation)
    elif isinstance(operation_file, str):
        defined = LAYERS[operation_file].operation
        _check_apart(top, defined, parts, target, language)
    else:
        definition = [Table.read(operation_file)]
        defined = read_operation(definition[0])
        _check_apart(definition[0], defined, parts, target, language)
    template = top.text("template")
    if not _PATH.fullmatch(template) or not template_exists(template, template_folders):
        top.fail(
            "template",
            f"must be a file in {' or '.join(map(str, template_folders))}, got {shown(template)}",
        )
    templates = template_digest(template, template_folders)
    sources = [part.source for part in (*parts, *definition)]
    if isinstance(operation_file, str):
        sources.append(f"{defined.name}: {defined.result.text}")
    if isinstance(defined.result, PythonReference):
        sources.append(defined.result.text)
    return Heading(
        parts=parts,
        template_folders=template_folders,
        name=top.name("family"),
        operation=defined.name,
        target=target,
        language=language,
        template=template,
        defined=defined,
        epilogue=epilogue,
        template_digest=templates.digest,
        template_files=templates.stamps,
        digest=_digest(sources[0], templates.digest, *sources[1:]),
        files=tuple(part.path for part in (*parts, *definition)),
    )


def _operation_name(top: Table, target: str, languages: Mapping[str, Language]) -> str:
    operation = top.name("operation")
    if operation not in OPERATIONS and not languages[target].own_operations:
        able = [name for name, language in languages.items() if language.own_operations]
        top.fail(
            "operation",
            f"must be {' or '.join(OPERATIONS)} on {target}: others are for {', '.join(able)}, "
            f"got {shown(operation)}",
        )
    return operation


def _computes_epilogues(
    top: Table, operation: str, languages: Mapping[str, Language], language: Language
) -> bool:
    """Return whether a family also computes operations that are gemm with an epilogue."""
    offered = top.flag("epilogue")
    if offered and (operation not in OPERATIONS or language.epilogue is None):
        able = [name for name, each in languages.items() if each.epilogue is not None]
        top.fail(
            "epilogue", f"must be false, but for families of gemm on {' or '.join(able)}, got true"
        )
    return offered


def _check_apart(
    definition: Table,
    defined: Operation,
    parts: Iterable[Table],
    target: str,
    language: Language,
) -> None:
    """Refuse an operation that is called as a family calls a parameter or a derived name.

    What it reads has names of its own in emitted sources (`epilogue_text`), which a family's
    parameters could have, too.
    """
    taken = {
        name
        for part in parts
        for key in ("parameters", "derived")
        if key in part
        for name in part.table(key)
    }
    for name in (defined.name, *sorted(language.reserved(defined))):
        if name in taken:
            definition.fail(
                "operation" if name == defined.name else "operands",
                f"must have another name: families of gemm on {target} have a parameter or a "
                f"derived name {name!r}",
            )


def _defined(top: Table, name: str) -> tuple[Operation, list[Table]]:
    """The operation of a family, and the file that defines it if there is one.

    That file lies beside the family file or one folder above it; a family file without one says
    itself what C becomes of A, B and C.
    """
    if name in OPERATIONS:
        return OPERATIONS[name], []
    if "formula" not in top:
        for folder in (top.path.parent, top.path.parent.parent):
            if (path := folder / OPERATION_FILE).is_file():
                table = Table.read(path)
                operation = read_operation(table)
                if operation.name != name:
                    top.fail("operation", f"must be {operation.name}, as {path} says")
                return operation, [table]
        top.fail(
            "formula",
            f"is missing: it says what C becomes, where no {OPERATION_FILE} defines the operation",
        )
    return _product(top, name), []


def _product(top: Table, name: str) -> Operation:
    """The operation of a family file that says itself what C becomes."""
    try:
        formula = Formula(top.text("formula"))
    except ExpressionError as error:
        top.fail("formula", f"must say what C becomes: {error}")
    known = Scope(frozenset({*GEMM.sizes, *element_sizes(DEFAULT_DTYPE)}), frozenset())
    flops = top.text("flops")
    known.expression(top, "flops", flops, exact_division=True)
    try:
        return product_operation(name, formula, flops, finite=top.flag("finite"))
    except InputError as error:
        top.fail("formula", f"must say what C becomes: {error}")


def _fragments(top: Table, folders: tuple[Path, ...]) -> Iterator[Table]:
    """The files that a family includes: parameters, derived names and restrictions to share."""
    names = top.items("include") if "include" in top else []
    for number, name in enumerate(names, start=1):
        if name in names[: number - 1]:
            top.fail(f"include[{number}]", f"must not repeat a file, got {shown(name)}")
        yield Table.read(_find(top, f"include[{number}]", name, folders))


def _find(top: Table, key: str, name: Any, folders: tuple[Path, ...]) -> Path:
    """The file called `name` in the first of `folders` that has it; nothing outside them."""
    is_path = isinstance(name, str) and _PATH.fullmatch(name)
    roots = [folder.resolve() for folder in folders if is_path]
    try:
        paths: list[Path] = [
            path for root in roots if (path := (root / name).resolve()).is_relative_to(root)
        ]
        found = next((path for path in paths if path.is_file()), None)
    except (OSError, RuntimeError):  # a name that is too long, a loop of symbolic links
        found = None
    if found is None:
        places = " or ".join(map(str, folders)) or "a folder of families"
        top.fail(key, f"must be a file in {places}, got {shown(name)}")
    return found


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
