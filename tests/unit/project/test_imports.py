"""What import-linter cannot say of imports: when they happen, and what templates may name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune.core.paths import data_dir
from autotune.runtime import emitted

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


@pytest.mark.parametrize("package", FACES)
def test_a_package_says_what_it_is_for_and_has_what_it_names(package: str) -> None:
    if package in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[package])
    script = (
        f"import {package} as face; assert face.__doc__; "
        "assert all(hasattr(face, name) for name in getattr(face, '__all__', ()))"
    )
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": path}, check=True)


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


def test_imports_are_absolute() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
