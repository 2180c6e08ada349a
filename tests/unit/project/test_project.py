"""The whole project: imports, docstrings, private parts of others, and pages."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from build_site import LINK, ROOT, pages

import autotune
from autotune.cli import _COMMANDS, _parser
from autotune.core.paths import data_dir
from autotune.runtime import emitted
from autotune.search import internals

PACKAGE = Path(autotune.__file__).parent
HEAVY = (
    "optuna",
    "jinja2",
    "numba",
    "cuda",
    "mpi4py",
    "pycuda",
    "numpy",
    "importlib.metadata",
    "torch",
    "jax",
)
FRAMEWORKS = {"autotune.jax": "jax", "autotune.torch": "torch"}
FACES = sorted(
    ".".join(("autotune", *path.parent.relative_to(PACKAGE).parts))
    for path in PACKAGE.rglob("__init__.py")
    if "_data" not in path.parts
)


@pytest.fixture(scope="module")
def parsed() -> dict[Path, list[ast.AST]]:
    """All nodes of every file."""
    return {
        path: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        for path in PACKAGE.rglob("*.py")
    }


def test_importing_autotune_is_light() -> None:
    script = f"import autotune, sys; print(*(set({HEAVY!r}) & sys.modules.keys()))"
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split() == []


def test_packages_say_what_they_are_for_and_have_what_they_name() -> None:
    """Each where no other one is imported: in a child by fork."""
    able = [each for each in FACES if importlib.util.find_spec(FRAMEWORKS.get(each, "sys"))]
    assert len(able) >= len(FACES) - len(FRAMEWORKS)
    script = """
import importlib, os, sys
import numpy  # what nearly all of them import
for package in sys.argv[1:]:
    if os.fork() == 0:
        face = importlib.import_module(package)
        assert face.__doc__, package
        assert all(hasattr(face, name) for name in getattr(face, "__all__", ())), package
        os._exit(0)
    assert os.wait()[1] == 0, package
"""
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", script, *able]
    subprocess.run(command, env={"PYTHONPATH": path}, check=True)


@pytest.mark.parametrize(("package", "library"), FRAMEWORKS.items())
def test_a_framework_that_is_missing_is_said(package: str, library: str) -> None:
    script = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from autotune import AutotuneError\n"
        f"try: import {package}\n"
        "except (AutotuneError, ImportError) as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{package} needs" in said.stdout


def test_imports_are_absolute(parsed: dict[Path, list[ast.AST]]) -> None:
    for path, nodes in parsed.items():
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}"


def test_emitted_programs_import_one_module_of_the_engine() -> None:
    named = set()
    for template in data_dir("templates").rglob("*.j2"):
        text = template.read_text(encoding="utf-8")
        named |= set(re.findall(r"\b(?:from|import) (autotune[\w.]*)(?: import (\w+))?", text))
        assert "import_module" not in text, template
        assert "__import__" not in text, template
    assert {module for module, _ in named} == {"autotune.runtime.emitted"}
    assert all(hasattr(emitted, name) for _, name in named)


CLAUSES = ("What", "Whether", "How", "Which", "Whoever")


def test_docstrings_begin_with_no_relative_clause(parsed: dict[Path, list[ast.AST]]) -> None:
    faults = []
    for path, nodes in parsed.items():
        for node in nodes:
            # Those of modules, classes and functions, and what stands below a constant.
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
                if text.startswith(tuple(f"{word} " for word in CLAUSES)):
                    faults.append(f"{path.relative_to(PACKAGE)}: {text.splitlines()[0]}")
    assert faults == []


PAGES = list(pages())
WITH_FRAMEWORKS = {"torch", "jax"}
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
            if name in WITH_FRAMEWORKS and importlib.util.find_spec(name) is None:
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


PRIVATE = {"_storage", "_trial_id", "_study_id", "_cached_frozen_trial", "_latest_trial"}


def test_the_installed_release_is_one_that_was_tried() -> None:
    release = ".".join(optuna.__version__.split(".")[:2])
    assert release in internals.TESTED, (
        f"Optuna {release} is new: run the tests of search, look at what internals.py uses, "
        "and add the release to TESTED"
    )


def test_nobody_else_uses_them(parsed: dict[Path, list[ast.AST]]) -> None:
    """What an object of ours calls by such a name (`self._storage`) is its own."""
    for path, nodes in parsed.items():
        if path == PACKAGE / "search" / "internals.py":
            continue
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{path}:{node.lineno} uses {node.attr}"


PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
TOLD = {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", PAGE)} - {"--help"}


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options(each)
        yield from action.option_strings


def of_command(name: str) -> set[str]:
    [commands] = [
        action
        for action in _parser(name)._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return {*options(commands.choices[name])} - {"-h", "--help"}


@pytest.mark.parametrize("name", _COMMANDS)
def test_options_are_on_the_page(name: str) -> None:
    assert re.search(rf"^\| \[`{name}`\]", PAGE, re.MULTILINE)
    assert of_command(name) <= TOLD


def test_there_are_no_others() -> None:
    known = {option for name in _COMMANDS for option in of_command(name)}
    assert known >= TOLD
    assert set(re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)) == set(_COMMANDS)
