"""Docstrings begin with a noun or a verb."""

from __future__ import annotations

import ast
from pathlib import Path

import autotune

PACKAGE = Path(autotune.__file__).parent
CLAUSES = ("What", "Whether", "How", "Which", "Whoever")


def test_docstrings_begin_with_no_relative_clause() -> None:
    faults = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if text.startswith(tuple(f"{word} " for word in CLAUSES)):
                    faults.append(f"{path.relative_to(PACKAGE)}: {text.splitlines()[0]}")
    assert faults == []
