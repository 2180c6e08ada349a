"""``autotune bench --accuracy all`` on the CPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.cli import main

if TYPE_CHECKING:
    from pathlib import Path

WHERE = ["bench", "--accuracy", "all", "--target", "cpu", "--shape", "96x80x64", "--threads", "1"]


@pytest.mark.thorough
def test_every_class_has_a_row_with_its_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    families = ["--family", "loops", "--family", "strassen"]
    assert main([*WHERE, *families, "--cache", str(tmp_path), "--json"]) == 0
    library, loops, strassen = json.loads(capsys.readouterr().out)
    assert library["kernel"].startswith("NumPy")
    assert library["error"] is None
    for row, name, accuracy in ((loops, "loops", "ieee"), (strassen, "strassen", "strassen")):
        assert (row["kernel"], row["problem"]["accuracy"]) == (name, accuracy)
        assert 0 < row["error"] < 1
    for row in (library, loops, strassen):
        assert 2.0**-26 < row["error_norm"] < 2.0**-18
        assert row["median_s"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ladder"], "--accuracy all has a kernel of each class: leave --ladder out"),
        (["--dtype", "float16"], "dtype must be one of float32, float64"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*WHERE, *options, "--cache", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
