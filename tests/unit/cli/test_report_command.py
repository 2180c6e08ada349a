"""`autotune report`: studies are found by name, by record and in files, and pages are written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from records import FINGERPRINT, record

from autotune.cli import main
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import MissingDependencyError, UnknownNameError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.operations.problem import Gemm
from autotune.reporting import Finder
from autotune.reporting import page as pages
from autotune.reporting.study import UNFINISHED
from autotune.search import Searcher, Subject, open_study
from autotune.search.goals import Direction
from autotune.space import SearchSpace, SpaceUnion
from autotune.store import TuningCache

PROBLEM = Gemm(64, 64, 64)
UNION = SpaceUnion(
    {
        "blocked": SearchSpace({"sm": [32, 64, 128], "order": ["ikj", "kij"]}),
        "loops": SearchSpace({"order": ["ijk"]}),
    }
)
SUBJECT = Subject("gemm", PROBLEM.key(), "cpu", FINGERPRINT.name, FINGERPRINT.digest)
WINNER = Candidate("blocked", Configuration({"sm": 64, "order": "ikj"}))


def measurement(candidate: Candidate) -> Measurement:
    if candidate.family == "loops":
        return Measurement(Outcome.COMPILE_FAILED, reason="no such loop")
    seconds = 1e-3 if candidate == WINNER else 2e-3
    details: dict[str, float | int | str] = {"compile_s": 0.5}
    return Measurement(Outcome.OK, seconds, (0.9 * seconds, 1.1 * seconds), 9, 0.1, "", details)


@pytest.fixture
def place(own_cache: Path) -> CacheLocations:
    return CacheLocations.at(own_cache).create()


def made(place: CacheLocations, name: str, storage: str | None = None) -> None:
    """A study of every candidate, as tuning makes one, with a proposal that it gave up."""
    with open_study(UNION, storage, name, place.studies, "exhaustive", subject=SUBJECT) as study:
        study.note_run({"sampler": "exhaustive", "seed": 0, "limits": {"max_threads": 2}})
        for _ in range(UNION.size):
            proposal = study.ask()
            assert proposal is not None
            if proposal.candidate.family == "loops":
                study.release(proposal)
                proposal = study.ask()
                assert proposal is not None
            study.tell(proposal, measurement(proposal.candidate))
        study.note_run({"seconds": 3.5, "spent_s": {"trials": 2.0}})


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without Vega, which need not be installed here."""
    monkeypatch.setattr(pages, "bundle", lambda: "/* Vega */")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(["report", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autotune: error: ")
    assert err.count("\n") == 1
    return err


def test_a_study_in_a_journal_is_read_as_it_was_made(place: CacheLocations) -> None:
    made(place, "mine")
    study = Finder(place).find("mine")
    assert study.counts == {"ok": 6, "compile_failed": 1}  # and not what was given up
    assert [trial.number for trial in study.trials] == list(range(1, 8))
    assert study.ranked[0].configuration == WINNER.configuration
    assert study.ranked[0].interval == measurement(WINNER).interval_s
    assert study.ranked[0].detail("compile_s") == 0.5
    assert study.problem == PROBLEM
    assert (study.target, study.device) == ("cpu", FINGERPRINT.name)
    assert (study.samplers, study.seconds) == ("exhaustive", 3.5)
    assert study.families == ("blocked", "loops")
    assert study.space == UNION.digest
    [failed] = [trial for trial in study.trials if not trial.ok]
    assert failed.reason == "no such loop"
    assert study.record is None
    assert all(trial.ended_s is not None and trial.ended_s >= 0 for trial in study.trials)


def test_a_study_in_a_database_is_read_too(place: CacheLocations, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    made(place, "mine", url)
    study = Finder(place, url).find("mine")
    assert study.counts == {"ok": 6, "compile_failed": 1}
    with pytest.raises(UnknownNameError, match="did you mean 'mine'"):
        Finder(place, url).find("mime")
    assert list(place.studies.iterdir()) == []  # no journal is made by looking


@pytest.mark.usefixtures("charts")
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_what_a_searcher_was_told_is_reported(
    kind: str, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = str(tmp_path / "mine") if kind == "journal" else f"sqlite:///{tmp_path}/mine.db"
    searcher = Searcher(SearchSpace({"x": [5, 1, 2, 4, 3]}), "exhaustive", storage=storage)
    for value in (5.0, 1.0, None, 4.0):
        searcher.tell(searcher.ask() or {}, value)
    searcher.ask()
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", "search", "--storage", storage, "--json", *page]) == 0
    [study] = json.loads(capsys.readouterr().out)["studies"]
    assert study["counts"] == {"ok": 3, "failed": 1, "unfinished": 1}
    assert study["unit"] == ""
    assert study["best"] == {
        "family": "",
        "configuration": {"x": 1},
        "value": 1.0,
        "interval": None,
    }
    assert "did you mean 'search'" in refused(capsys, "serch", "--storage", storage)
    searcher.close()


@pytest.mark.parametrize(
    ("objectives", "told"),
    [
        ({"": "maximize"}, 1.0),
        ({"a": "minimize", "b": "minimize"}, {"a": 1.0, "b": 1.0}),
        ({"": "minimize"}, -1.0),
    ],
)
def test_what_a_page_does_not_show_of_a_searcher_is_refused(
    objectives: dict[str, Direction],
    told: object,
    tmp_path: Path,
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    searcher = Searcher(SearchSpace({"x": [1]}), storage=tmp_path, objectives=objectives)
    searcher.tell({"x": 1}, told)
    searcher.close()
    found = refused(capsys, "search", "--storage", str(tmp_path))
    assert "a report is of one positive value that is to be small, and study 'search'" in found


def test_a_trial_that_never_ended_is_unfinished(place: CacheLocations) -> None:
    with open_study(UNION, None, "mine", place.studies, "exhaustive") as study:
        study.ask()
        found = Finder(place).find("mine")
    assert [trial.outcome for trial in found.trials] == [UNFINISHED]
    assert found.problem is None


def test_the_record_of_a_study_is_the_one_its_run_noted(place: CacheLocations) -> None:
    cache = TuningCache(place.database)
    ours, newer = record(candidate=WINNER), record(candidate=WINNER, median_s=2e-3)
    cache.add(ours, newer)
    made(place, "mine")
    assert Finder(place).find("mine").record is None
    with open_study(UNION, None, "mine", place.studies, subject=SUBJECT) as study:
        study.note_run({"record": ours.id})
    assert Finder(place).find("mine").record == ours


def test_a_study_is_found_by_its_record(place: CacheLocations) -> None:
    cache = TuningCache(place.database)
    rows = [(WINNER, measurement(WINNER))]
    cache.add_measurements("first", FINGERPRINT, PROBLEM, "cpu", rows)
    cache.add_measurements("second", FINGERPRINT, PROBLEM, "cpu", rows)
    late = record(candidate=WINNER, created="2099-01-01T00:00:00Z")
    early = record(candidate=WINNER, created="1999-01-01T00:00:00Z")
    cache.add(late, early)
    found = Finder(place).find(late.id[:8])
    assert found.name == "second"
    assert found.record == late
    assert found.source == "measurements in the cache"
    with pytest.raises(UnknownNameError, match="has no study"):
        Finder(place).find(early.id)


def test_a_sweeps_file_says_all_that_its_study_does(place: CacheLocations, tmp_path: Path) -> None:
    rows = [
        {"family": "blocked", "configuration": {"sm": 64}, "outcome": "ok", "median_s": 1e-3,
         "interval_s": [0.9e-3, 1.1e-3], "repeats": 9, "reason": ""},
        {"family": "blocked", "configuration": {"sm": 32}, "outcome": "wrong_result",
         "median_s": None, "interval_s": None, "repeats": 0, "reason": "far off"},
    ]  # fmt: skip
    file = tmp_path / "sweep.json"
    head = {"problem": PROBLEM.key(), "target": "cpu", "device": "Some CPU", "study": "swept"}
    file.write_text(json.dumps([{**head, "measurements": rows}]))
    study = Finder(place).find(str(file))
    assert (study.name, study.device, study.problem) == ("swept", "Some CPU", PROBLEM)
    assert study.counts == {"ok": 1, "wrong_result": 1}
    assert study.trials[1].reason == "far off"
    assert study.trials[0].interval == (0.9e-3, 1.1e-3)
    assert study.trials[0].repeats == 9


def test_other_tuners_files_keep_their_units(place: CacheLocations, tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    file.write_text(
        json.dumps(
            {"columns": ["x"], "configurations": [[1], [2]], "times": [3.0, None],
             "objective": "time (ms)", "device": "Some GPU"}
        )
    )  # fmt: skip
    study = Finder(place).find(str(file))
    assert study.unit == "s"
    assert study.ranked[0].value == 3e-3
    assert study.counts == {"ok": 1, "failed": 1}
    file.write_text(json.dumps({"columns": ["x"], "configurations": [[1]], "times": [3.0]}))
    study = Finder(place).find(str(file))
    assert (study.unit, study.ranked[0].value) == ("", 3.0)


@pytest.mark.usefixtures("charts")
def test_pages_are_written(
    place: CacheLocations,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made(place, "mine")
    made(place, "other one")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "mine", "--json"]) == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert document["output"] == str(tmp_path / "mine.html")
    assert document["bytes"] == (tmp_path / "mine.html").stat().st_size
    [study] = document["studies"]
    assert study["problem"] == PROBLEM.key()
    assert study["best"]["configuration"] == dict(WINNER.configuration)
    assert study["importance"] == []  # of so few trials nothing is known
    assert "blocked: sm=64 order=ikj" in (tmp_path / "mine.html").read_text()

    assert main(["report", "mine", "other one", "mine"]) == 0
    assert "report.html" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "2 studies compared" in page
    assert main(["report", "other one", "-o", "there.html"]) == 0
    assert (tmp_path / "there.html").exists()

    cells = [[x, y] for x in range(6) for y in range(6)]
    replay = {"columns": ["x", "y"], "configurations": cells, "times": [1 + x for x, _ in cells]}
    (tmp_path / "cells.json").write_text(json.dumps(replay))
    capsys.readouterr()
    assert main(["report", "cells.json", "--json"]) == 0
    [study] = json.loads(capsys.readouterr().out)["studies"]
    first, second = study["importance"]
    assert (first["name"], second["name"]) == ("x", "y")
    assert first["low"] <= first["share"] <= first["high"]
    assert first["share"] > 0.9
    assert first["share"] + second["share"] == pytest.approx(1)


@pytest.mark.usefixtures("charts")
def test_what_cannot_be_done_is_said_in_one_line(
    place: CacheLocations, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(place, "mine")
    TuningCache(place.database).add_measurements(
        "mine", FINGERPRINT, PROBLEM, "cpu", [(WINNER, measurement(WINNER))]
    )
    assert "did you mean 'mine'?" in refused(capsys, "mime")
    assert "tune or sweep first" in refused(capsys, "mine", "--cache", str(tmp_path / "empty"))
    assert "cannot write" in refused(capsys, "mine", "-o", str(tmp_path / "no" / "where.html"))
    assert ".svg or .png" in refused(capsys, "mine", "--picture", "x.gif")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert "expected a JSON object" in refused(capsys, str(bad))


def test_without_vega_the_package_is_named(
    place: CacheLocations, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(place, "mine")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    pages.bundle.cache_clear()
    with pytest.raises(MissingDependencyError):
        pages.bundle()
    assert "pip install '.[report]'" in refused(capsys, "mine", code=1)


def test_pictures_are_drawn(place: CacheLocations, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    from report_studies import gpu_study, recorded_study

    from autotune.reporting import write_picture

    write_picture(tmp_path / "a.svg", [gpu_study(count=60), recorded_study()])
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg")
    for named in ("gpu, recorded", "1024x1024x1024-float32", "Example GPU"):
        assert named in drawn
    assert "Parameter importance" in drawn
    write_picture(tmp_path / "a.png", [gpu_study(count=10)])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_bundle_stays_within_its_script() -> None:
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    pages.bundle.cache_clear()
    script = pages.bundle()
    assert "vegaEmbed" in script
    assert "</script" not in script


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ("sqlite:///nope.db", "there is no file nope.db"),
        ("sqlite:///empty.db", "holds no studies"),
        ("sqlite:///text.db", "cannot open storage"),
        ("foo", "'foo' is not a storage URL"),
        ("nonsense://x", "cannot open storage nonsense://x"),
    ],
)
@pytest.mark.parametrize("given", ["mine", "sweep.json"])
def test_a_storage_is_read_and_never_made(
    place: CacheLocations,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    storage: str,
    told: str,
    given: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made(place, "mine")  # in a journal, which is not what was asked for
    (tmp_path / "sweep.json").write_text('{"measurements": []}')
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database\n" * 100)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert told in refused(capsys, given, "--storage", storage)
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before


def test_every_study_has_a_page_of_its_own(
    place: CacheLocations, charts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ünï", "ïnü", "plain", "plain-"):
        made(place, name)
        assert main(["report", name]) == 0
    pages = {path.name for path in tmp_path.glob("*.html")}
    assert len(pages) == 4
    assert "plain.html" in pages
