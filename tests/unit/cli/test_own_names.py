"""Kernels of one's own on the command line: as ``module:function``, and by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from example_kernels import EXAMPLES

from autotune.cli import main

OBJECT = "transposition:transposition"


def test_commands_take_a_kernel_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "kernels"))

    def said(*words: object) -> str:
        assert main([*map(str, words)]) == 0
        return capsys.readouterr().out

    before = said("emit", OBJECT)  # of some shape, where none is given
    assert "def transposition_of_arrays" in before
    tuned = said("tune", OBJECT, "--shape", "60x70", "--trials", "2", "--timeout", "150", "--json")
    ((id_, study),) = ((each["id"], each["study"]) for each in json.loads(tuned))
    # The cache knows the kernel now.
    assert "transposition  (transposition on cpu" in said("families")
    assert "valid of" in said("space", "transposition", "--shape", "60x70")
    assert "tuned (transposition)" in said("bench", "transposition", "--shape", "60x70")
    for name in (OBJECT, "transposition", id_):
        assert study in said("report", name, "-o", tmp_path / "page.html", "--json")
        folder = tmp_path / f"exported-{len(list(tmp_path.iterdir()))}"
        assert json.loads(said("export", name, folder, "--json"))["record"] == id_
        assert "def transposition" in said("emit", "--record", name)
    assert id_ in said("cache", "show", "transposition")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:kernel", "nowhere:kernel cannot be found: No module named 'nowhere'"),
        ("transposition:operands", "must be a kernel of autotune.kernel, got function"),
    ],
)
def test_what_is_no_kernel_is_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "kernels"))
    assert main(["emit", name]) == 2
    assert message in capsys.readouterr().err
