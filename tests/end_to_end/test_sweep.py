"""Sweeps for real on this machine's CPU: interrupted, gone on with, written and replayed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from shared_programs import SharedPrograms

from autotune import Gemm, Outcome, Searcher, TuningCache, sweep, tune
from autotune.cli import main
from autotune.core.errors import InputError
from autotune.core.paths import CacheLocations
from autotune.measuring.effort import Effort
from autotune.reporting import Finder
from autotune.reporting.spaces import funnel_of
from autotune.research import read_recorded, read_space, recorded_from_cache
from autotune.research.sweeps import LARGEST_SWEEP, SAMPLES, SweepResult, shuffled_rows
from autotune.search.reading import read_study

pytestmark = pytest.mark.slow

PROBLEM = Gemm(40, 24, 32, threads=1)
BRIEF = Effort(budget_s=0.02)
OPTIONS = ["--shape", "40x24x32", "--threads", "1", "--target", "cpu", "--family", "loops"]


def swept(result: SweepResult) -> list[str]:
    return [str(each.candidate) for each in result.measured]


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, shared_programs: SharedPrograms
) -> Iterator[Path]:
    """The sweeps of Python are of the same programs, which are compiled once."""
    with shared_programs.at(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


def brief_sweep(cache: Path, effort: Effort = BRIEF, **options: Any) -> SweepResult:
    return sweep(PROBLEM, target="cpu", families=["loops"], cache=cache, effort=effort, **options)


@pytest.fixture(scope="module")
def whole(cache: Path) -> SweepResult:
    return brief_sweep(cache)


def test_everything_valid_is_measured_once(whole: SweepResult) -> None:
    assert whole.complete
    assert len(whole.measured) == whole.wanted == whole.size > 4
    assert len(set(swept(whole))) == whole.size
    assert sum(whole.counts.values()) == whole.size
    # Nothing races: however slow, all are timed to the end.
    assert set(whole.counts) == {Outcome.OK}


def test_a_report_knows_where_and_how_it_was_swept(whole: SweepResult, cache: Path) -> None:
    study = Finder(CacheLocations.at(cache)).find(whole.study)
    assert [trial.configuration for trial in study.trials] == [
        each.candidate.configuration for each in whole.measured
    ]
    assert (study.samplers, study.problem, study.device) == ("exhaustive", PROBLEM, whole.device)
    run = study.runs[0]
    spent = {name for name, seconds in run["spent_s"].items() if seconds > 0}
    assert {"compiling", "trials"} <= spent
    assert sum(run["spent_s"].values()) <= run["seconds"] + 0.01
    assert all((trial.detail("trial_s") or 0) > 0 for trial in study.trials)
    assert run["toolchain"]["python"]
    # The space is built again from what was noted, and is the one that was swept.
    funnel = funnel_of(study)
    assert funnel.note == ""
    assert dict(funnel.stages)["valid on the device"] == whole.size


def test_a_sweep_knows_the_library_that_it_met(whole: SweepResult) -> None:
    library = whole.provenance["baseline"]
    assert library["name"].startswith("NumPy") or "BLAS" in library["name"]
    assert library["median_s"] > 0
    assert whole.provenance["budget_s"] == BRIEF.budget_s


def test_a_complete_sweep_comes_back_at_once(whole: SweepResult, cache: Path) -> None:
    again = sweep(PROBLEM, target="cpu", families=["loops"], cache=cache)
    assert again.measured == whole.measured
    stored = TuningCache(cache / "tuning.sqlite").measurements(study=whole.study)
    assert len(stored) == whole.size


def test_a_limit_is_the_beginning_of_the_whole(whole: SweepResult, cache: Path) -> None:
    order = swept(whole)
    for limit in (2, 4):  # the second call measures two more
        part = brief_sweep(cache, study="limited", limit=limit)
        assert swept(part) == order[:limit]
        assert part.complete


def test_a_sweep_may_race(whole: SweepResult, cache: Path) -> None:
    effort = replace(BRIEF, abandon_ratio=1e-3)  # everything is far behind the first success
    raced = brief_sweep(cache, effort, study="raced", racing=True)
    assert swept(raced) == swept(whole)
    assert raced.counts == {Outcome.OK: 1, Outcome.ABANDONED: raced.size - 1}


@pytest.mark.thorough
def test_a_sweep_without_racing_times_to_the_end_what_another_abandoned(
    whole: SweepResult, cache: Path
) -> None:
    effort = replace(BRIEF, abandon_ratio=1e-3)
    raced = brief_sweep(cache, effort, study="both", racing=True, limit=whole.size - 1)
    timed = brief_sweep(cache, study="both", limit=2)
    assert (timed.complete, timed.counts) == (True, {Outcome.OK: 2})
    timed = brief_sweep(cache, study="both")
    assert swept(timed) == swept(whole)
    assert (timed.complete, timed.counts) == (True, {Outcome.OK: whole.size})
    assert timed.measured[0] == raced.measured[0]
    # Once while it raced, and once more but for the one that won and the one that was left.
    store = TuningCache(cache / "tuning.sqlite")
    assert len(store.measurements(study="both")) == 2 * whole.size - 2
    again = brief_sweep(cache, effort, study="both", racing=True)
    assert again.measured == timed.measured
    assert len(store.measurements(study="both")) == 2 * whole.size - 2
    entries = recorded_from_cache(cache / "tuning.sqlite", study="both")
    assert entries.size == whole.size


def gone_on(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the same command says that is let run to its end, by which all has been measured."""
    assert main([*command, "--json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["complete"]
    return dict(document)


@pytest.mark.thorough
def test_a_killed_sweep_goes_on_where_it_was(
    whole: SweepResult, warm_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep.json"
    command = ["sweep", *OPTIONS, "--cache", str(warm_cache), "--output", str(output)]
    killed = subprocess.Popen(
        [sys.executable, "-m", "autotune", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    store = TuningCache(warm_cache / "tuning.sqlite")
    deadline = time.monotonic() + 120
    while len(store.measurements()) < 3:
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = store.measurements()
    if len(before) < whole.size:
        assert not output.exists()
    document = gone_on(command, capsys)
    assert document == json.loads(output.read_text())
    measured = [each["configuration"] for each in document["measurements"]]
    assert measured == [dict(each.candidate.configuration) for each in whole.measured]
    # What had been measured was not measured again.
    after = store.measurements()
    assert after[: len(before)] == before
    assert len(after) == whole.size


KILLED_BEFORE_IT_STORES = """
import os, signal, sys
from autotune import TuningCache
from autotune.cli import main

add = TuningCache.add_measurements


def killed(self, *given):
    if len(self.measurements()) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return add(self, *given)


TuningCache.add_measurements = killed
main(sys.argv[1:])
"""


@pytest.mark.parametrize("racing", [(), pytest.param(("--racing",), marks=pytest.mark.thorough)])
def test_what_a_study_was_told_and_the_cache_was_not_is_stored_by_the_next(
    whole: SweepResult,
    warm_cache: Path,
    racing: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["sweep", *OPTIONS, *racing, "--cache", str(warm_cache)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_IT_STORES, *command], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = TuningCache(warm_cache / "tuning.sqlite")
    before = store.measurements()
    assert len(before) == 2
    gone_on(command, capsys)
    after = store.measurements()
    assert after[:2] == before
    assert len(after) == whole.size
    assert len({each.candidate for each in after}) == whole.size


@pytest.mark.thorough
def test_an_interrupted_sweep_keeps_a_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "sweep", *OPTIONS, "--cache", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.readline()  # the title: the work has begun
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    if out:  # at least one was measured
        [document] = json.loads(out)
        assert len(document["measurements"]) <= document["wanted"]
        assert document["complete"] == (len(document["measurements"]) == document["wanted"])


def test_what_a_sweep_writes_can_be_replayed(
    whole: SweepResult, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = ["--cache", str(cache), "-q"]
    best_s = min(each.measurement.median_s or 1.0 for each in whole.measured)
    for name in ("sweep.json", "sweep.csv"):
        file = tmp_path / name
        assert main(["sweep", *OPTIONS, *environment, "-o", str(file)]) == 0
        assert f"--study {whole.study}" in capsys.readouterr().out
        recorded = read_recorded(file)
        assert (recorded.size, recorded.optimum, recorded.unit) == (whole.size, best_s, "s")
    from_cache = recorded_from_cache(cache / "tuning.sqlite", study=whole.study)
    assert (from_cache.size, from_cache.optimum) == (whole.size, best_s)
    arguments = ["--study", whole.study, "--sampler", "random", "--seeds", "1", "--json"]
    assert main(["replay", *arguments, *environment]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["optimum"] == best_s


def test_a_name_of_another_format_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.parquet"
    assert main(["sweep", *OPTIONS, "--cache", str(tmp_path), "-q", "-o", str(file)]) == 2
    assert "--output is JSON or CSV, got 'sweep.parquet'" in capsys.readouterr().err
    assert not file.exists()


def test_a_sweep_keeps_raw_samples_and_where_they_are_from(
    whole: SweepResult, cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.json"
    assert main(["sweep", *OPTIONS, "--cache", str(cache), "-q", "-o", str(file)]) == 0
    document = json.loads(file.read_text())
    for each in document["measurements"]:
        samples = each["samples_s"]
        assert 1 <= len(samples) <= SAMPLES
        assert min(samples) <= each["median_s"] <= max(samples)
        if len(samples) < SAMPLES:  # then these are all
            assert median(samples) == pytest.approx(each["median_s"], rel=1e-6)
        # Nothing is said of a compile that another test has paid for.
        assert each["seconds"] >= each["details"].get("compile_s", 1e-9) > 0
    provenance = document["provenance"]
    known = {"created", "version", "fingerprint", "limits", "toolchain", "state", "families"}
    assert known <= provenance.keys()
    assert 0 < provenance["budget_s"] < 1
    assert 0 < provenance["interval"] < 1
    # The space, without the family.
    space = read_space(file)
    stored = read_study(whole.study, None, CacheLocations.at(cache).studies)
    assert stored is not None
    assert space.digest == stored.space
    assert [str(each) for each in space] == sorted(swept(whole), key=list(map(str, space)).index)
    candidate = Searcher(space, "random", 0).ask()
    assert read_recorded(file).value(candidate) is not None
    assert read_recorded(file).noise > 0
    rough = tune(PROBLEM, target="cpu", families=["loops"], cache=cache, trials=2, effort=BRIEF)
    assert not any(each.measurement.samples for each in rough.trials)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "0"], "limit must be a whole number >= 1, got 0"),
        (["--seed", "-1"], "seed must be a whole number >= 0, got -1"),
        (["--shape", "8x8x8", "-o", "x"], "--output is for one shape, got 2"),
        (["--family", "nope"], "nope"),
        (["--limit", "1", "-o", "/no/where"], "cannot write /no/where"),
    ],
)
def test_bad_usage_is_one_line(
    whole: SweepResult,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(["sweep", *OPTIONS, "--cache", str(cache), "-q", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("size", [1, 2, 1000, LARGEST_SWEEP + 1, 2**70])
def test_rows_come_shuffled_and_once(size: int) -> None:
    def first(count: int, seed: int) -> list[int]:
        return [row for row, _ in zip(shuffled_rows(size, seed), range(count), strict=False)]

    rows = first(500, 0)
    assert len(set(rows)) == len(rows) == min(500, size)
    assert all(0 <= row < size for row in rows)
    assert first(20, 0) == rows[:20]
    if size >= 1000:
        assert first(20, 1) != rows[:20]
        assert 0.4 < sum(rows) / len(rows) / size < 0.6


def test_python_says_what_cannot_be_used() -> None:
    with pytest.raises(InputError, match="limit"):
        sweep(PROBLEM, limit=0)
