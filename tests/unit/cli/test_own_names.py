"""Kernels of one's own on the command line: as ``module:function``, and by name."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_kernels import EXAMPLES
from own_kernels import BRIEF

import autotune
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
    assert said("emit", f"{EXAMPLES / 'kernels' / 'transposition.py'}:transposition") == before
    assert "def transposition_of_arrays" in before
    tuned = said("tune", OBJECT, "--shape", "60x70", "--trials", "1", "--timeout", "150", "--json")
    ((id_, study),) = ((each["id"], each["study"]) for each in json.loads(tuned))
    # The cache knows the kernel now.
    assert "transposition  (transposition on cpu" in said("families")
    assert "valid of" in said("space", "transposition", "--shape", "60x70")
    assert "tuned (transposition)" in said("bench", "transposition", "--shape", "60x70")
    for name in (OBJECT, id_):
        assert study in said("report", name, "-o", tmp_path / "page.html", "--json")
        folder = tmp_path / f"exported-{len(list(tmp_path.iterdir()))}"
        assert json.loads(said("export", name, folder, "--json"))["record"] == id_
        assert "def transposition" in said("emit", "--record", name)
    assert id_ in said("cache", "show", "transposition")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:kernel", "nowhere:kernel cannot be found: No module named 'nowhere'"),
        ("nowhere.py:kernel", "nowhere.py:kernel cannot be found: [Errno 2] No such file"),
        ("transposition:operands", "must be a kernel of autotune.kernel, got function"),
    ],
)
def test_what_is_no_kernel_is_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "kernels"))
    assert main(["emit", name]) == 2
    assert message in capsys.readouterr().err


def product() -> Callable[..., None]:
    def doubled(x: Any, y: Any, step: Any) -> None:
        for first in range(0, x.shape[0], step):
            for i in range(first, min(first + step, x.shape[0])):
                y[i] = 2 * x[i]

    return doubled


def total() -> Callable[..., None]:
    def doubled(x: Any, y: Any, step: Any) -> None:
        for first in range(0, x.shape[0], step):
            for i in range(first, min(first + step, x.shape[0])):
                y[i] = x[i] + x[i]

    return doubled


def ones(N: int) -> dict[str, Any]:
    return {"x": np.ones(N)}


def halves(N: int) -> dict[str, Any]:
    return {"x": np.full(N, 0.5)}


def version(made: Callable[..., Callable[..., None]], inputs: Callable[..., Any] = ones) -> Any:
    """The kernel `doubled` with this body and these operands."""
    return autotune.kernel(
        operands={"x": "N"},
        out={"y": "N"},
        reference="2 * x",
        inputs=inputs,
        parameters={"step": [1, 2]},
        dtypes=["float64"],
        **BRIEF,
    )(made())


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command prints."""
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "edited", [(total, ones), pytest.param((product, halves), marks=pytest.mark.thorough)]
)
def test_records_and_studies_find_the_files_they_were_made_from(
    edited: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = version(product), version(*edited)
    tuned = {first: first.tune(N=24), second: second.tune(N=40)}
    old = tuned[first].best
    for made, result in tuned.items():
        record = result.best
        body = "2 * x[i]" if made is first or edited[0] is product else "x[i] + x[i]"
        folder = tmp_path / record.id
        printed(capsys, "export", record.id, folder, "--format", "python")
        assert any(body in each.read_text() for each in folder.glob("*.py"))
        assert main(["emit", "--record", record.id]) == 0
        shown = capsys.readouterr()
        assert body in shown.out
        assert "have changed" not in shown.out + shown.err
        for name in (record.id, result.study):
            report = printed(capsys, "report", name, "-o", tmp_path / "page.html", "--json")
            assert [each["problem"] for each in json.loads(report)["studies"]] == [record.problem]
    # By name it is the one that was used last, though its folder is there for longer.
    assert version(product).folder == first.folder
    assert "2 * x[i]" in printed(capsys, "emit", "doubled")
    shutil.rmtree(first.folder)
    assert main(["emit", "--record", old.id]) == 2
    error = capsys.readouterr().err
    assert f"record {old.id} must have its files in a folder doubled-*" in error
    assert error.count("\n") == 1
    assert main(["report", old.id, "-o", str(tmp_path / "page.html")]) == 0


def test_prune_removes_folders_that_nobody_uses(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (version(*each) for each in ((product,), (total,), (product, halves)))
    first.tune(N=24)
    old = time.time() - 10 * 86400
    for folder in (first.folder, second.folder):
        os.utime(folder, (old, old))
    assert third.folder.is_dir()
    for words in (("--days", "20"), (), ("--days", "5", "--dry-run")):
        assert "superseded record" in printed(capsys, "cache", "prune", *words)
        assert second.folder.is_dir()
    document = json.loads(printed(capsys, "cache", "prune", "--days", "5", "--json"))
    assert document["folders"] == [str(second.folder)]
    assert not second.folder.exists()
    assert first.folder.is_dir()  # which a record is of
    assert third.folder.is_dir()
    assert version(total).folder.is_dir()  # as it was


def test_a_folder_of_the_user_wins_over_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = version(product)
    copy = tmp_path / "doubled"
    shutil.copytree(first.folder, copy)
    (copy / "doubled.py.j2").write_text(
        (copy / "doubled.py.j2").read_text().replace("2 * x[i]", "x[i] * 2")
    )
    old = first.tune(N=24).best
    assert version(total).folder != first.folder
    assert "x[i] + x[i]" in printed(capsys, "emit", "doubled")
    assert "x[i] * 2" in printed(capsys, "emit", "doubled", "--families", copy)
    short = ("--shape", "40", "--trials", "1", "--timeout", "150", "--json")
    tuned = json.loads(printed(capsys, "tune", "doubled", *short, "--families", first.folder))
    assert "2 * x[i]" in printed(capsys, "emit", "--record", tuned[0]["id"])
    shown = printed(capsys, "emit", "--record", old.id, "--families", copy)
    assert "x[i] * 2" in shown
    monkeypatch.setenv("AUTOTUNE_FAMILIES", str(copy))
    assert "x[i] * 2" in printed(capsys, "emit", "doubled")
    assert "doubled  (doubled on cpu" in printed(capsys, "families")
