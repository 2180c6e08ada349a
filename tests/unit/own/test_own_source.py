"""The text of a function: the one that runs, however its file looks, and wherever it stands."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest

import autotune
from autotune.core.errors import InputError
from autotune.own.function_text import at_margin, function_text, without_annotations

MODULE = """
import autotune

def scale(v):
    return v * 3.0

def triple(x):
    return scale(x)

@autotune.kernel(
    operands={{"x": "N"}}, out={{"y": "N"}}, reference=triple, parameters={{"u": [1]}},
    cache={cache!r}
)
def kernel(x, y, u):
    for i in range(x.shape[0]):
        y[i] = {call}(x[i])

def later(v):
    return v * 3.0
"""
OPTIONS: dict[str, Any] = {
    "operands": {"x": "N"},
    "out": {"y": "N"},
    "reference": "x",
    "parameters": {"u": [1]},
}


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Any]:
    """A module that is imported, and whose file is then edited."""
    names = []

    def make(call: str, before: str, after: str) -> ModuleType:
        path = tmp_path / f"edited_{call}.py"
        path.write_text(MODULE.format(cache=str(tmp_path), call=call))
        names.append(path.stem)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        path.write_text(path.read_text().replace(before, after))
        return module

    yield make
    for name in names:
        del sys.modules[name]


def texts(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.iterdir())


@pytest.mark.parametrize(("before", "after"), [("3.0", "5.0"), ("import autotune\n", "\n" * 9)])
def test_a_kernel_is_of_what_was_imported(edited: Any, before: str, after: str) -> None:
    module = edited("scale", before, after)
    emitted = module.kernel.emit()
    assert "return v * 3.0" in emitted
    assert "return v * 3.0" in texts(module.kernel.folder)
    assert "5.0" not in texts(module.kernel.folder)


@pytest.mark.parametrize(("before", "after"), [("3.0", "5.0"), ("import autotune\n", "\n" * 9)])
def test_text_that_no_longer_runs_is_refused(edited: Any, before: str, after: str) -> None:
    module = edited("later", before, after)  # defined below the kernel: read at the first use
    with pytest.raises(InputError, match=r"source of later .* is not what it was .* start"):
        module.kernel.emit()


def test_a_function_may_be_called_as_modules_are_inside_of_python() -> None:
    def top(x: Any, y: Any) -> None:
        last = np.sort(x)
        y[0] = last[-1]

    text = function_text(top)
    assert text.outside == ("np",)
    assert text.bound == {"last"}


def test_a_function_within_another_has_comments_and_texts_at_the_margin(tmp_path: Path) -> None:
    # fmt: off
    @autotune.kernel(**OPTIONS, cache=tmp_path)
    def nested(x, y, u):  # type: ignore[no-untyped-def]
        """First.

at the margin
        """
        for i in range(x.shape[0]):
    # switched off: y[i] = 0
            y[i] = (x[i]
  + 0)
    # fmt: on

    assert "# switched off" in nested.emit()
    assert '"""First.\n\nat the margin\n        """' in nested.emit()
    compile(nested.emit(), "", "exec")


def test_annotations_need_not_come_along(tmp_path: Path) -> None:
    @autotune.kernel(**OPTIONS, cache=tmp_path)
    def annotated(x: np.ndarray, y, u: int) -> Path:  # type: ignore
        n: Final = x.shape[0]
        whole: int = 1
        rest: Any  # noqa: F842
        for i in range(n):
            y[i] = whole * x[i]

    text = annotated.emit()
    assert "n = x.shape[0]" in text
    assert "whole: int = 1" in text
    assert not any(name in text for name in ("Final", "Path", "Any"))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "def f(a: A, b: int = 1) -> A[B]:\n    return a\n",
            "def f(a, b: int = 1):\n    return a\n",
        ),
        ("def f():\n    é: A = 1; x: B\n", "def f():\n    é = 1; pass\n"),
        ("def f(a: (A)):\n    return a\n", "def f(a: (A)):\n    return a\n"),
    ],
)
def test_annotations_are_cut_out(text: str, left: str) -> None:
    assert without_annotations(text) == left


def test_what_texts_hold_is_not_moved() -> None:
    lines = ["    def f():\n", '        return """a\n', '            b"""\n']
    assert at_margin(lines) == 'def f():\n    return """a\n            b"""\n'


def test_a_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(x):  # type: ignore[no-untyped-def]
        return x

    first = function_text(plain).text
    monkeypatch.setattr("inspect.findsource", None)
    assert function_text(plain).text == first
