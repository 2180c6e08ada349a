"""The Jinja environment of the kernel templates: how they are found, digested and blamed."""

from __future__ import annotations

import functools
import hashlib
import json
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
    meta,
    nodes,
)

from autotune.errors import FamilyError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What an expression inside a template can raise, beside Jinja's own errors.
_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)

_REFERENCES = (nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include)


_LONGEST_LOOP = 4096


def _bounded_range(*bounds: int) -> range:
    """`range` for templates: their numbers are a space's, whose author may be anybody."""
    loop = range(*bounds)
    if loop and abs(loop[-1] - loop[0]) // abs(loop.step) >= _LONGEST_LOOP:
        raise ValueError(f"range{bounds} is too long a loop, at most {_LONGEST_LOOP} steps")
    return loop


@functools.lru_cache(maxsize=32)
def environment(folders: tuple[Path, ...]) -> Environment:
    """The environment for templates in `folders`, first match wins.

    Nothing is escaped: what is emitted is source code, not markup.
    """
    jinja = Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.globals["range"] = _bounded_range
    return jinja


def expand(template: str, folders: tuple[Path, ...], names: dict[str, object]) -> str:
    """Render a template with `names` in scope.

    Raises:
        FamilyError: the template is at fault; the message names its file and line.
    """
    with _blaming(template, folders):
        return environment(folders).get_template(template).render(names)


def template_digest(template: str, folders: tuple[Path, ...]) -> str:
    """Sixteen hex digits over a template and every partial it includes, imports or extends.

    Raises:
        FamilyError: a template is missing, malformed or not UTF-8, or includes a computed name.
    """
    jinja = environment(folders)
    assert jinja.loader is not None
    sources: dict[str, str] = {}
    waiting = [template]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        with _blaming(name, folders):
            sources[name], path, _ = jinja.loader.get_source(jinja, name)
            tree = jinja.parse(sources[name], name, path)
        for line, reference in _references(tree):
            where = f"{path}:{line}: an included template"
            if reference is None:
                raise FamilyError(
                    f"{where} must be named by a plain string, so that the digest covers its text"
                )
            if not template_exists(reference, folders):
                raise FamilyError(
                    f"{where} must be in {_listed(folders)}, and {reference!r} is not"
                )
            waiting.append(reference)
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:16]


def _references(tree: nodes.Template) -> Iterator[tuple[int, str | None]]:
    """Line and name of every template that `tree` refers to; None for a computed name."""
    for node in tree.find_all(_REFERENCES):
        for name in meta.find_referenced_templates(nodes.Template([node])):
            yield node.lineno, name


def template_exists(template: str, folders: tuple[Path, ...]) -> bool:
    """Whether one of `folders` has the template."""
    return any((folder / template).is_file() for folder in folders)


def _listed(folders: tuple[Path, ...]) -> str:
    return " or ".join(map(str, folders))


@contextmanager
def _blaming(template: str, folders: tuple[Path, ...]) -> Iterator[None]:
    """Turn whatever a template raises into a FamilyError that names file and line."""
    try:
        yield
    except TemplateSyntaxError as error:
        raise FamilyError(f"{error.filename}:{error.lineno}: {error.message}") from error
    except TemplateNotFound as error:
        raise FamilyError(
            f"template {error.name!r} must be in {_listed(folders)}, and is not"
        ) from error
    except UnicodeDecodeError as error:
        raise FamilyError(f"template {template!r} must be UTF-8: {error}") from error
    except _FAULTS as error:
        # Jinja gives its frames the template's file name and line.
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if any(Path(frame.filename).is_relative_to(folder) for folder in folders)
        ]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else template
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise FamilyError(f"{where}: {kind}{error}") from error
