"""The Jinja environment of the kernel templates: how they are found, digested and blamed.

Jinja is imported late: a program that loads what was rendered before needs none of it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import FamilyError
from autotune.core.facts import Stamp, stamps_of, unchanged
from autotune.core.forking import LOADING
from autotune.core.paths import data_dir
from autotune.families.headers import with_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Environment

# What an expression inside a template can raise, beside Jinja's own errors.
_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Digested:
    """The digest of a template and of all it includes, while none of the files changes.

    Attributes:
        digest: sixteen hex digits.
        stamps: the files, as they were.
    """

    digest: str
    stamps: tuple[Stamp, ...]


_REFERRING = re.compile(
    r"\{#.*?#\}|(\{%[-+]?\s*(?:extends|from|import|include)\b.*?%\})", re.DOTALL
)
_IS_CUDA = re.compile(r"\.cuh?(\.j2)?$")

_DIGESTED: dict[tuple[str, tuple[Path, ...]], Digested] = session.keep(
    "digests of templates", {}, lasting=True
)


_LONGEST_LOOP = 4096

LARGEST_TEMPLATE = 1 << 20
"""Bytes that a template may have."""


def _bounded_range(*bounds: int) -> range:
    """`range` for templates: their numbers are a space's, whose author may be anybody."""
    loop = range(*bounds)
    if loop and abs(loop[-1] - loop[0]) // abs(loop.step) >= _LONGEST_LOOP:
        raise ValueError(f"range{bounds} is too long a loop, at most {_LONGEST_LOOP} steps")
    return loop


@session.cached(most=32)
def environment(folders: tuple[Path, ...]) -> Environment:
    """The environment for templates in `folders`, first match wins.

    Nothing is escaped: what is emitted is source code, not markup.
    """
    with LOADING:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

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


def template_digest(template: str, folders: tuple[Path, ...]) -> Digested:
    """The digest of a template and every partial it includes, imports or extends.

    It is worked out again only where one of those files has changed.

    Raises:
        FamilyError: a template is missing, malformed or not UTF-8, or includes a computed name.
    """
    known = _DIGESTED.get((template, folders))
    if known is None or not _holds(known, folders):
        known = _DIGESTED[template, folders] = _digest(template, folders)
    return known


def remember(template: str, folders: tuple[Path, ...], digested: Digested) -> None:
    """Take a digest that was worked out before, in another process."""
    _DIGESTED[template, folders] = digested


def _holds(digested: Digested, folders: tuple[Path, ...]) -> bool:
    if not unchanged(digested.stamps):
        return False
    # A new file in an earlier folder would be found before the one that was digested.
    for path, _, _ in digested.stamps:
        for number, folder in enumerate(folders):
            if Path(path).is_relative_to(folder):
                name = Path(path).relative_to(folder)
                if any((earlier / name).is_file() for earlier in folders[:number]):
                    return False
                break
    return True


def _digest(template: str, folders: tuple[Path, ...]) -> Digested:
    jinja = environment(folders)
    assert jinja.loader is not None
    sources: dict[str, str] = {}
    files: list[Path] = []
    waiting = [template]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        file = template_path(name, folders)
        if file.is_file() and file.stat().st_size > LARGEST_TEMPLATE:
            raise FamilyError(f"{file}: a template may have {LARGEST_TEMPLATE} bytes")
        with _blaming(name, folders):
            sources[name], path, _ = jinja.loader.get_source(jinja, name)
            references = _references(sources[name], name, path)
        files.append(Path(str(path)))
        if _IS_CUDA.search(name):
            sources[name], headers = _with_headers(sources[name], files[-1], template, folders)
            files += headers
        for line, reference in references:
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
    text = json.dumps(sources, sort_keys=True)
    return Digested(hashlib.sha256(text.encode()).hexdigest()[:16], stamps_of(files))


def header_folders(template: str, folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Where headers are looked for that a template, or a partial of it, includes in quotes."""
    return (template_path(template, folders).parent, *folders)


def _with_headers(
    source: str, path: Path, template: str, folders: tuple[Path, ...]
) -> tuple[str, tuple[Path, ...]]:
    """A template's text with the headers that it includes, and their files."""
    places = header_folders(template, folders)
    try:
        found = with_headers(source, places)
    except (OSError, UnicodeDecodeError) as error:
        raise FamilyError(f"{path}: a header that it includes cannot be read: {error}") from error
    for line, name in found.missing:
        raise FamilyError(
            f"{path}:{line}: a header in quotes must be in {_listed(places)}, and {name!r} is not"
            ": CUDA's own are included by <...>"
        )
    return found.text, found.files


@functools.lru_cache(maxsize=512)
def _references(source: str, name: str, path: str | None) -> tuple[tuple[int, str | None], ...]:
    """Line and name of every template that one refers to; None for a computed name.

    Parsing is most of what it takes to read a family, and families have their partials in common.
    Of shipped templates, which are known to be well-formed, these statements alone are parsed.
    """
    from jinja2 import meta, nodes

    if Path(str(path)).is_relative_to(data_dir("templates")):
        source = _statements(source)
    tree = environment(()).parse(source, name, path)
    referring = (nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include)
    return tuple(
        (node.lineno, reference)
        for node in tree.find_all(referring)
        for reference in meta.find_referenced_templates(nodes.Template([node]))
    )


def _statements(source: str) -> str:
    """The statements of a template that refer to others, each on its line, and nothing else."""
    kept, end = "", 0
    for found in _REFERRING.finditer(source):
        kept += "\n" * source.count("\n", end, found.start()) + (found[1] or "")
        end = found.end() if found[1] else found.start()
    return kept


def template_exists(template: str, folders: tuple[Path, ...]) -> bool:
    """Return whether one of `folders` has the template."""
    return any((folder / template).is_file() for folder in folders)


def template_path(template: str, folders: tuple[Path, ...]) -> Path:
    """The file that a template is read from; its name alone where there is none."""
    found = (folder / template for folder in folders if (folder / template).is_file())
    return next(found, Path(template))


def _listed(folders: tuple[Path, ...]) -> str:
    return " or ".join(map(str, folders))


@contextmanager
def _blaming(template: str, folders: tuple[Path, ...]) -> Iterator[None]:
    """Turn whatever a template raises into a FamilyError that names file and line.

    A fork waits for it: Jinja, which is imported here first, has locks of its own.
    """
    with LOADING:
        from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError
    try:
        with LOADING:
            yield
    except TemplateSyntaxError as error:
        raise FamilyError(f"{error.filename}:{error.lineno}: {error.message}") from error
    except TemplateNotFound as error:
        raise FamilyError(
            f"template {error.name!r} must be in {_listed(folders)}, and is not"
        ) from error
    except UnicodeDecodeError as error:
        file = template_path(template, folders)
        raise FamilyError(f"{file}: a template must be UTF-8: {error}") from error
    except (TemplateError, *_FAULTS) as error:
        # Jinja gives its frames the template's file name and line.
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if any(Path(frame.filename).is_relative_to(folder) for folder in folders)
        ]
        where = (
            f"{frames[-1].filename}:{frames[-1].lineno}"
            if frames
            else str(template_path(template, folders))
        )
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise FamilyError(f"{where}: {kind}{error}") from error
