"""Comparisons for papers: what a folder of them holds, and the data sets that are shipped."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from autotune import Candidate, Gemm, Searcher, SearchSpace, SpaceUnion, datasets
from autotune.cli import main
from autotune.core.configuration import Value
from autotune.core.errors import InputError, UnknownNameError
from autotune.core.paths import CacheLocations, data_dir
from autotune.reporting import Finder
from autotune.reporting.spaces import funnel_of
from autotune.research import open_recording, read_space
from autotune.search.importance import interactions

LARGEST = 3 << 20
"""Bytes of all data sets."""

OF_A_GPU = {"registers", "occupancy", "shared_bytes", "spill_bytes", "sm_clock_mhz", "power_w"}
"""Details of what ran on one."""


def recording(path: Path, best: int, extra: int = 0) -> Path:
    """A bowl around `best`, with times in seconds of the evaluations, and an isolated row."""
    rows = []
    for x in range(24):
        for y in range(8):
            time = 1 + abs(x - best) / 8 + (x % 4) * y / 8
            if (x, y) == (20, extra):
                time = 0.5
            row = {"configuration": {"x": x, "y": y}, "outcome": "ok", "median_s": time}
            rows.append(row | {"interval_s": [time * 0.99, time * 1.01], "seconds": 1.0 + y})
    rows.append({"configuration": {"x": 99, "y": 0}, "outcome": "timeout"})
    rows[-1]["seconds"] = 9.0
    provenance = {"fingerprint": {"fields": {"llvm_cpu": "znver4"}}, "version": "0.1.0"}
    document = {"device": "Example CPU", "provenance": provenance, "measurements": rows}
    path.write_text(json.dumps(document))
    return path


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_folder_has_a_page_its_charts_and_its_tables(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vl_convert")
    files = [recording(tmp_path / "a.json", 3, 5), recording(tmp_path / "b.json", 9)]
    folder = tmp_path / "out" / "paper"
    samplers = ["--samplers", "random", "exhaustive", "--seeds", "3", "--workers", "1"]
    command = ["compare", *map(str, files), *samplers, "--out", str(folder), "--json", "-q"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert {path.name for path in folder.iterdir()} == set(document["files"])
    for chart in ("curves-a", "curves-b", "importance-chart", "portability"):
        assert (folder / f"{chart}.svg").read_text().startswith("<svg")
        assert (folder / f"{chart}.pdf").read_bytes().startswith(b"%PDF")
    page = (folder / "index.html").read_text()
    assert "Samplers in pairs" in page
    scores = {(row["space"], row["sampler"]): row for row in table(folder, "scores")}
    assert len(scores) == 4
    for told in document["scores"]:
        row = scores[told["name"], told["sampler"]]
        assert float(row["cut-off score"]) == pytest.approx(np.mean(told["scores"]))
        assert row["in seconds"]
    [pair] = table(folder, "pairs")
    differences = [
        float(scores[name, "random"]["cut-off score"])
        - float(scores[name, "exhaustive"]["cut-off score"])
        for name in "ab"
    ]
    assert float(pair["difference"]) == pytest.approx(np.mean(differences))
    assert float(pair["at least"]) <= float(pair["difference"]) <= float(pair["at most"])
    assert pair["p"] == ""  # of two spaces
    # The winner of a is (20, 5), which is slow in b; and the other way.
    of_a, of_b = table(folder, "portability")
    assert (float(of_a["a"]), float(of_b["b"])) == (1, 1)
    assert float(of_a["b"]) == pytest.approx(0.5 / (1 + 11 / 8))
    assert float(of_b["a"]) == pytest.approx(0.5 / (1 + 17 / 8))
    [first, _] = table(folder, "recordings")
    assert (first["configurations"], first["failing"]) == ("193", "1")
    assert float(first["noise"]) == pytest.approx(0.01)
    assert {row["space"] for row in table(folder, "isolated")} == {"a", "b"}
    curves = table(folder, "curves")
    assert {row["sampler"] for row in curves} == {"random", "exhaustive"}
    # Both have no space of their own: pruning is counted from what was tried.
    left = {(row["study"], row["stage"]): row["left"] for row in table(folder, "funnel")}
    assert (left["a", "tried"], left["a", "timed to the end"]) == ("193", "192")
    assert {row["outcome"] for row in table(folder, "reasons")} == {"timeout"}
    environment = {row["what"]: row["a"] for row in table(folder, "environment")}
    assert environment["device: llvm_cpu"] == "znver4"
    strongest, *_ = table(folder, "interactions")
    assert {strongest["parameter"], strongest["with"]} == {"x", "y"}


@pytest.mark.thorough
def test_recordings_of_one_name_are_told_apart(tmp_path: Path, own_cache: Path) -> None:
    pytest.importorskip("vl_convert")
    (tmp_path / "other").mkdir()
    files = [recording(tmp_path / "a.json", 3), recording(tmp_path / "other" / "a.json", 5)]
    samplers = ["--samplers", "random", "--seeds", "1", "--trials", "12", "--workers", "1"]
    folder = tmp_path / "out"
    assert main(["compare", *map(str, files), *samplers, "--out", str(folder), "-q"]) == 0
    assert [row["space"] for row in table(folder, "scores")] == ["a", "a (2)"]
    assert (folder / "curves-a-2-.svg").is_file()


def test_bad_usage_is_one_line(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vl_convert")
    (tmp_path / "other").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    files, folder = [recording(tmp_path / "a.json", 3)], tmp_path / "out"
    name = datasets.names()[0]
    for bad, message in (
        (["--out", str(files[0])], "cannot make the folder"),
        (["--out", str(folder), "--samplers", "nope"], "nope"),
        (["--out", str(folder), "--seeds", "0"], "seeds must be"),
        (["--out", str(folder), "--trials", "0"], "trials must be a whole number >= 1, got 0"),
        (
            [str(tmp_path / "other" / ".." / "a.json"), "--out", str(folder)],
            "a file must be given only once, got",
        ),
        (
            [name, str(datasets.path(name)), "--out", str(folder)],
            "a file must be given only once, got",
        ),
        ([str(tmp_path / "loop"), "--out", str(folder)], "Too many levels of symbolic links"),
    ):
        capsys.readouterr()
        assert main(["compare", str(files[0]), *bad, "-q"]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_an_interaction_is_what_a_sum_does_not_explain() -> None:
    rng = np.random.default_rng(0)
    points = [{"a": a, "b": b, "c": c, "one": 1} for a in range(4) for b in "xyz" for c in (1, 2)]
    points *= 3
    product = {(a, b): rng.normal() for a in range(4) for b in "xyz"}
    logs = np.array([product[p["a"], p["b"]] + p["c"] for p in points])
    found = {(each.one, each.other): each.share for each in interactions(points, np.exp(logs))}
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    # By hand: what is left of the cells' means once those of rows and columns are taken off.
    grid = np.array([[product[a, b] for b in "xyz"] for a in range(4)])
    alone = grid.mean(0) + grid.mean(1)[:, None] - grid.mean()
    expected = ((grid - alone) ** 2).mean() / logs.var()
    assert found["a", "b"] == pytest.approx(expected, rel=0.1)  # less what chance explains
    assert found["a", "c"] == found["b", "c"] == pytest.approx(0, abs=0.05)
    noise = interactions(points, np.exp(rng.normal(size=len(points))))
    assert max(each.share for each in noise) < 0.2
    assert interactions([{"a": 1}, {"a": 2}], [1.0, 2.0]) == []
    [whole] = interactions([{"a": a, "b": b} for a in (0, 1) for b in (0, 1)], [1, 2, 2, 1])
    assert whole.share == pytest.approx(1)


def test_data_sets_are_described_and_whole() -> None:
    folder = data_dir("datasets")
    assert json.loads((folder / "index.json").read_text())["licence"] == "CC-BY-4.0"
    known = datasets.described()
    assert {path.name for path in folder.iterdir()} == {
        "index.json",
        *(each.file for each in known.values()),
    }
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST
    assert len(known) >= 3


SWEPT = [name for name, each in datasets.described().items() if each.shapes == 1]


@pytest.mark.parametrize("name", SWEPT)
def test_a_data_set_has_all_that_a_study_of_it_needs(name: str, own_cache: Path) -> None:
    recorded = datasets.load(name)
    assert recorded.name == name
    assert recorded.seconds is not None
    assert 0 < recorded.noise < 0.2
    space = read_space(datasets.path(name))
    assert isinstance(space, SearchSpace | SpaceUnion)
    study = Finder(CacheLocations.at(own_cache)).find(str(datasets.path(name)))
    left = dict(funnel_of(study).stages)
    assert left["all combinations of values"] > left["valid on the device"] == space.size
    assert space.size >= left["tried"] == recorded.size >= 90
    assert left["timed to the end"] == recorded.size - recorded.failures
    with open_recording(datasets.path(name)) as recording:
        entries = list(recording.entries)
        known = {"created", "version", "fingerprint", "limits", "toolchain", "state", "families"}
        assert known <= recording.provenance.keys()
    on_gpu = recording.provenance["fingerprint"]["kind"] != "cpu"
    for entry in entries:
        assert entry.value is None or len(entry.samples) >= 5
        if on_gpu and entry.value is not None:
            assert entry.details.keys() >= OF_A_GPU
            assert entry.details["sm_clock_mhz"] > 100
    if on_gpu:
        assert any(entry.details.get("compile_s", 0) > 0 for entry in entries)
    assert Searcher(space, "random", 0).ask() in space
    assert all(recorded.space[row] in space for row in range(recorded.size))


@pytest.mark.parametrize("name", [name for name in datasets.names() if name not in SWEPT])
def test_a_survey_has_programs_by_shapes(name: str) -> None:
    recorded = datasets.load(name)
    points = [recorded.space[row] for row in range(recorded.size)]
    shapes: defaultdict[tuple[Value, ...], set[Candidate]] = defaultdict(set)
    for each in points:
        assert isinstance(each, Candidate)
        shape = {field: each.configuration[field] for field in ("m", "n", "k", "dtype", "layout")}
        assert Gemm(**shape).label
        shapes[tuple(shape.values())].add(each)
    assert len(shapes) == datasets.described()[name].shapes > 1
    assert len({each.family for each in points}) > 1


def test_a_data_set_that_was_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *others = datasets.names()
    known = ", ".join([name, *others])
    with pytest.raises(UnknownNameError, match=f"a data set must be one of {known}, got 'nope'"):
        datasets.load("nope")
    for path in data_dir("datasets").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr("autotune.datasets.data_dir", lambda _: tmp_path)
    with datasets.path(name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="its checksum differs"):
        datasets.load(name)
