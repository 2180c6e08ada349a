"""Optuna's private parts are used in one module, which knows the releases it was tried with."""

from __future__ import annotations

import ast
from pathlib import Path

import optuna

import autotune
from autotune.search import internals

PRIVATE = {"_storage", "_trial_id", "_study_id", "_cached_frozen_trial", "_latest_trial"}


def test_the_installed_release_is_one_that_was_tried() -> None:
    release = ".".join(optuna.__version__.split(".")[:2])
    assert release in internals.TESTED, (
        f"Optuna {release} is new: run the tests of search, look at what internals.py uses, "
        "and add the release to TESTED"
    )


def test_nobody_else_uses_them() -> None:
    """What an object of ours calls by such a name (`self._storage`) is its own."""
    package = Path(autotune.__file__).parent
    for path in package.rglob("*.py"):
        if path == package / "search" / "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{path}:{node.lineno} uses {node.attr}"
