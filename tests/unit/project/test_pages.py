"""The documentation stays small, and what its pages name is there."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from build_site import LINK, ROOT, pages

PAGES = list(pages())
FRAMEWORKS = {"torch", "jax"}
FILE = re.compile(
    r"`((?:autotune|benchmarks|docs|examples|search_spaces|templates|tests)/[\w./-]+)`"
)


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def prose(page: Path) -> str:
    """The text of a page without blocks of code and comments."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"```.*?```|<!-- .*? -->", "", text, flags=re.DOTALL)


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_there_are_few_pages_and_few_words() -> None:
    assert len(PAGES) <= 26
    assert sum(map(words, PAGES)) <= 45_000


def test_every_page_is_linked_from_the_first() -> None:
    linked = {
        (ROOT / target).resolve() for target in LINK.findall((ROOT / "README.md").read_text())
    }
    assert {named(page) for page in PAGES if page not in linked} == {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    missing = [name for name in FILE.findall(prose(page)) if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_programs_of_a_page_import_is_there(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            package, _, name = str(getattr(node, "module", None)).partition(".")
            if not isinstance(node, ast.ImportFrom) or package != "autotune":
                continue
            if name in FRAMEWORKS and importlib.util.find_spec(name) is None:
                continue
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_are_wrapped(page: Path) -> None:
    lines = [line for line in prose(page).splitlines() if len(line) > 99]
    assert [line for line in lines if not line.startswith(("|", "    ", "`python", "["))] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_headings_of_a_page_differ(page: Path) -> None:
    headings = re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE)
    assert len(set(headings)) == len(headings)
