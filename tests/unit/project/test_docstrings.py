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
            # Those of modules, classes and functions, and what stands below a constant.
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
                if text.startswith(tuple(f"{word} " for word in CLAUSES)):
                    faults.append(f"{path.relative_to(PACKAGE)}: {text.splitlines()[0]}")
    assert faults == []
