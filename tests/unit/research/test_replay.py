"""Replays: what samplers find in recorded spaces, from Python and from the command line."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.cli import main
from autotune.core.errors import InputError, UnknownNameError
from autotune.measuring.sharing import WorkerPool
from autotune.research import Entry, RecordedSpace, replay, run_sampler, summarise

SAMPLERS = ["auto", "tpe", "random", "exhaustive", "optuna.samplers.RandomSampler"]


def bowl(name: str = "bowl") -> RecordedSpace:
    """Two parameters, a fifth of the configurations failing, and one smooth optimum."""
    entries = []
    for x in range(16):
        for y in (1, 2, 4, 8, 16):
            value = None if (x + y) % 5 == 0 else 1.0 + (x - 11) ** 2 / 20 + abs(y - 4) / 4
            entries.append(Entry({"x": x, "y": y}, value))
    return RecordedSpace.of(entries, name=name, unit="ms", device="Example GPU")


def families() -> RecordedSpace:
    """Two families with different parameters."""
    entries = [Entry({"x": x}, 1.0 + x, "one") for x in range(6)]
    entries += [Entry({"y": y, "z": z}, 0.5 + y * z, "two") for y in (1, 2) for z in (1, 3, 5)]
    return RecordedSpace.of(entries, name="families")


def replay_file(path: Path) -> Path:
    recorded = bowl(path.stem)
    columns = ["x", "y"]
    rows = [[configuration[name] for name in columns] for configuration in recorded.space]
    times = [None if value != value else value for value in recorded.values.tolist()]
    document = {"columns": columns, "configurations": rows, "times": times}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("make", [bowl, families])
def test_a_run_charges_every_configuration_once(make: Any, sampler: str) -> None:
    recorded = make()
    run = run_sampler(recorded, sampler, recorded.size + 10, seed=0)
    assert sorted(run.rows.tolist()) == list(range(recorded.size))
    assert run.cpu_s > 0
    short = run_sampler(recorded, sampler, 7, seed=0)
    np.testing.assert_array_equal(short.rows, run.rows[:7])


def test_a_replay_is_its_seeds_runs_whoever_makes_them() -> None:
    recorded = bowl()
    runs = [run_sampler(recorded, "tpe", 20, seed).rows for seed in range(3)]
    alone = summarise(recorded.values, runs, 20)
    for workers in (1, 2):
        summaries = dict(replay(recorded, ["tpe"], trials=20, seeds=3, workers=workers))
        assert summaries["tpe"].scores == alone.scores
        np.testing.assert_array_equal(summaries["tpe"].median, alone.median)


def test_workers_are_as_many_as_a_quota_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["autotune.research.replay"]  # the function has its name
    counts = []

    def pool(*arguments: Any, count: int, **options: Any) -> WorkerPool:
        counts.append(count)
        return WorkerPool(*arguments, count=count, **options)

    monkeypatch.setattr(module, "WorkerPool", pool)
    monkeypatch.setattr(module, "usable_processors", lambda: 1)
    list(replay(bowl(), ["random"], trials=3, seeds=4))
    assert counts == [1]


def test_a_model_beats_random_search_on_a_bowl() -> None:
    summaries = dict(replay(bowl(), ["tpe", "random"], trials=30, seeds=6, workers=1))
    assert summaries["tpe"].score > summaries["random"].score


def test_a_prior_of_another_device_saves_evaluations() -> None:
    recorded = bowl()
    elsewhere = RecordedSpace.of(
        [
            Entry(dict(configuration), 3 * value)
            for configuration, value in recorded.measurements()
        ],
        name="elsewhere",
    )
    [(_, without)] = replay(recorded, ["auto"], trials=30, seeds=3, workers=1)
    [(_, informed)] = replay(recorded, ["auto"], trials=30, seeds=3, workers=1, prior=[elsewhere])
    assert informed.score > without.score
    assert informed.n95 is not None
    assert without.n95 is None or informed.n95 < without.n95


def test_the_budget_is_at_most_the_space() -> None:
    [(_, summary)] = replay(families(), ["random"], trials=200, seeds=1)
    assert summary.budget == 12
    assert summary.median[-1] == 1.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"samplers": ["nope"]}, UnknownNameError, "no sampler 'nope'"),
        ({"trials": 0}, InputError, "trials must be a whole number >= 1, got 0"),
        ({"seeds": 0}, InputError, "seeds must be a whole number >= 1, got 0"),
        ({"workers": "x"}, InputError, "workers must be a whole number >= 1, got 'x'"),
        ({"workers": 0}, InputError, "workers must be a whole number >= 1, got 0"),
    ],
)
def test_what_cannot_be_used_is_said_before_any_work(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        replay(bowl(), **{"samplers": ["random"], **changes})


def test_json_and_csv_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(replay_file(tmp_path / name)) for name in ("a.json", "b.json")]
    curves = tmp_path / "curves.csv"
    arguments = ["replay", *files, "--sampler", "random", "--sampler", "auto", "--trials", "15"]
    arguments += ["--prior", files[1], "--seeds", "2", "--json", "--csv", str(curves)]
    arguments += ["--workers", "1"]
    assert main(arguments) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [(d["file"], d["sampler"]) for d in documents] == [
        (file, sampler) for file in files for sampler in ("random", "auto")
    ]
    recorded = bowl()
    for document in documents:
        assert (document["size"], document["failures"]) == (recorded.size, recorded.failures)
        assert (document["optimum"], document["trials"]) == (recorded.optimum, 15)
        assert document["prior"] == ([files[1]] if document["sampler"] == "auto" else [])
        assert document["score"] == pytest.approx(np.mean(document["scores"]))
        assert {"n95", "n99", "reach95", "reach99", "cpu_ms", "score_error"} <= document.keys()
        assert {len(curve) for curve in document["curves"].values()} == {15}
        assert all(0 <= value <= 1 for value in document["curves"]["median"])
    rows = list(csv.DictReader(curves.read_text().splitlines()))
    assert len(rows) == 4 * 15
    assert [float(row["median"]) for row in rows[:15]] == documents[0]["curves"]["median"]
    assert [row["evaluation"] for row in rows[:3]] == ["1", "2", "3"]


def test_the_table_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(replay_file(tmp_path / "a.json"))
    assert main(["replay", file, "--sampler", "random", "--trials", "30", "--seeds", "2"]) == 0
    captured = capsys.readouterr()
    assert "a: 80 configurations, 15 of them failing, optimum 1.05" in captured.out
    assert "after 25" in captured.out
    assert "score: mean ± standard error" in captured.out
    assert captured.err == f"a: random scores {captured.err.split()[-1]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a replay needs a recorded space: give files, or --study NAME"),
        (["missing.json"], "cannot read missing.json: No such file or directory"),
        (["a\nb.json"], r"cannot read a\nb.json: No such file or directory"),
        (["--study", "nobody"], "no measurements of study 'nobody'"),
        (["FILE", "--sampler", "nope"], "no sampler 'nope'"),
        (["FILE", "--trials", "0"], "trials must be a whole number >= 1"),
        (["FILE", "--prior", "nowhere.json"], "cannot read nowhere.json"),
        (["FILE", "--seeds", "1", "--sampler", "random", "--csv", "/no/where"], "cannot write"),
        (
            ["FILE", "--prior", "FILE", "--sampler", "random"],
            "--prior is for sampler auto, got --sampler random: leave it out, or add",
        ),
    ],
)
def test_bad_usage_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    file = str(replay_file(tmp_path / "a.json"))
    arguments = [file if each == "FILE" else each for each in arguments]
    assert main(["replay", "-q", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_space_that_tells_nothing_has_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [3.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    few = {"columns": ["x"], "configurations": [[x] for x in range(6)], "times": times}
    (tmp_path / "few.json").write_text(json.dumps(few))
    files = [str(tmp_path / "few.json"), str(replay_file(tmp_path / "many.json"))]
    arguments = ["replay", *files, "--sampler", "random", "--seeds", "2", "--trials", "20"]
    arguments += ["--workers", "1"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    [row] = [line.split() for line in out.splitlines() if line.startswith("few  ")]
    assert row[:3] == ["few", "random", "-"]
    assert "No score (-) where nothing is to be told apart" in out
    assert "over 1 space" in out
    assert "few: random scores -\n" in err
    assert main([*arguments, "--json", "-q"]) == 0
    untold, told = json.loads(capsys.readouterr().out)
    assert (untold["score"], untold["score_error"], untold["scores"]) == (None, None, [])
    assert isinstance(told["score"], float)
