"""The example of a transformer block in an accuracy class, run as users run it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.9")

EXAMPLE = Path(__file__).parents[3] / "examples" / "accuracy" / "transformer_block.py"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_errors_of_all_ways_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "--device cpu --tokens 24 --width 64 --heads 4 --seconds 0.1"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *said.split()])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == "24 tokens of 64 on cpu"
    assert head.split() == ["products", "ms", "speed", "error"]
    errors = {row.split()[0]: float(row.split()[-1]) for row in rows}
    assert list(errors) == ["float32", "fp32-normwise", "TF32", "tf32"]
    assert 0 < errors["float32"] < 1e-6
    assert 0 < errors["fp32-normwise"] < 1e-6
    assert 0 < errors["tf32"] < 1e-2
