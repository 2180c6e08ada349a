"""Additions of the site's copies of pages to the pages of the repository.

A name of the API gets a page of its own: on one page of all of them nobody finds a name. Headings
that a page has several times say what they are of: they come from benchmarks, which print the same
parts for each run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

API = Path("docs") / "api.md"
_NAME = re.compile(r"^::: (\S+)\n((?:    .*\n)*)\n?", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}) (.+?) *$")
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def told_apart(text: str) -> str:
    """A page whose repeated headings name the section that they are in."""
    lines = text.split("\n")
    found = list(_headings(lines))
    count = Counter(title for _, _, title in found)
    within: dict[int, str] = {}  # the last heading of each level that the page has once
    named: Counter[str | tuple[str, str]] = Counter()
    for at, level, title in found:
        if count[title] == 1:
            within = {each: name for each, name in within.items() if each < level}
            within[level] = title
            continue
        near = max((each for each in within if 1 < each <= level), default=0)
        if near or title in named:
            kept = "" if title in named else f" {{#{_slug(title)}}}"  # links lead to the first one
            name = (title, within.get(near, "again"))
            named[name] += 1
            number = f", {named[name]}" if named[name] > 1 else ""
            lines[at] = f"{'#' * level} {title} ({name[1]}{number}){kept}"
        named[title] += 1
    return "\n".join(lines)


def write_api(folder: Path, source: Path) -> list[str]:
    """Give each name of the API a page of its own, and the API's page a list of them.

    Args:
        folder: the copy of the pages.
        source: where the package is.

    Returns:
        Lines for the navigation: the sections of the API's page with their names.
    """
    import griffe  # late: of the documentation's tools, which tests of pages do without

    package = griffe.load("autotune", search_paths=[source], resolve_aliases=True)
    page = folder / API
    text, navigation = page.read_text(encoding="utf-8"), []
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        title = _SECTION.match(section)
        entries = []
        for found in _NAME.finditer(section):
            name = found[1].removeprefix("autotune.")
            file = f"{_file(name)}.md"
            place = page.with_suffix("") / file
            place.parent.mkdir(exist_ok=True)
            place.write_text(found[0], encoding="utf-8")
            docstring = package[name].docstring
            says = docstring.value.partition("\n")[0] if docstring else ""
            text = text.replace(found[0], f"- [`{found[1]}`](api/{file}): {says}\n")
            entries.append(f'{{ "{name.rpartition(".")[2]}" = "docs/api/{file}" }}')
        if title and entries:
            navigation.append(f'{{ "{title[1]}" = [{", ".join(entries)}] }},')
    page.write_text(text, encoding="utf-8")
    return navigation


def _headings(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Line, level and title of each heading outside of code."""
    fenced = False
    for at, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (found := _HEADING.match(line)):
            yield at, len(found[1]), found[2]


def _slug(title: str) -> str:
    """The anchor that Markdown makes of a title."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


def _file(name: str) -> str:
    """A name's file; `kernel` and `Kernel` would be one where case does not count."""
    last = name.rpartition(".")[2]
    return last if last.islower() else f"{last}-class"
