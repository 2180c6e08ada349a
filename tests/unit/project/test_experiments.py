"""Experiments and results pages: contenders are configurations, and pages say what was printed."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import environment
import experiment_plots
import numpy as np
import pages
import pytest
import search_efficiency
from pages import Results, Run, faults, read_runs

from autotune.core.statistics import median_interval

ROOT = Path(__file__).parents[3]

CHECK = """
import experiments
from autotune.targets.families import load_families
from autotune.core.limits import CpuLimits

limits = CpuLimits(4, 512, 32, 49152, 1048576, 33554432, 64)
for name, parts in experiments.EXPERIMENTS.items():
    for part in parts:
        own = [experiments.TRIANGULAR]
        families = load_families(target="cpu", operation=part.operation, extra=own)
        for size in part.sizes:
            problem, lines = experiments._problem(part, size), {}
            for contender in part.contenders(size, limits):
                configuration = experiments.configuration_of(contender, families)
                space = families[contender.family].space(problem, limits)
                lines.setdefault(contender.line, []).append(configuration in space)
            assert any(next(iter(lines.values()))), (name, size, "what others are compared with")
            print(name, size, *(sum(valid) for valid in lines.values()))
"""


def run(*arguments: str) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_line_has_valid_contenders() -> None:
    counts = {
        (name, size): list(map(int, valid))
        for name, size, *valid in map(str.split, run("-c", CHECK).splitlines())
    }
    assert counts["loop-orders", "512"] == [6]
    assert counts["unrolling", "512"] == [5, 4, 4, 4]  # 16 steps are only for dot products
    assert counts["blocking", "1024"] == [7, 7]
    assert counts["schedules", "768"] == counts["schedules", "1024"]
    # Of chunks 0, 1, 4, 16 and 64, only a static schedule takes 0.
    assert counts["schedules", "1024"] == [1, 5, 4, 4, 5, 4, 4]
    assert counts["strassen", "256"] == [1, 1, 0, 0, 0]
    assert counts["strassen", "2048"] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", experiment_plots.EXPERIMENTS)
def test_a_picture_has_every_value_of_its_table(tmp_path: Path, name: str) -> None:
    printed = (ROOT / "docs" / "results" / "data" / f"{name}.txt").read_text(encoding="utf-8")
    rows = [row for part in experiment_plots.read(printed) for row in part]
    assert len(rows) == len(re.findall(r"^\| \d", printed, re.MULTILINE))
    experiment_plots.draw(tmp_path / "drawn.svg", name, printed)
    drawn = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert re.search(r"2026-11-\d\d, commit [0-9a-f]{7}", drawn)
    assert "AMD EPYC" in drawn
    if name in ("loop-orders", "blocking"):
        assert all(f">{row.gflops:.1f}</" in drawn for row in rows)


@pytest.mark.thorough
def test_an_experiment_prints_a_table_and_draws_it(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    printed = run(
        str(ROOT / "benchmarks" / "experiments.py"),
        *("loop-orders", "--sizes", "24", "--seconds", "0.1", "--plot", str(plot)),
    )
    rows = [line for line in printed.splitlines() if line.startswith("| 24 |")]
    assert [row.split(" | ")[2] for row in rows] == ["ijk", "ikj", "jik", "jki", "kij", "kji"]
    assert "- processor: " in printed
    assert "loop order, outermost first" in plot.read_text(encoding="utf-8")


NOTHING = "<!-- printed: one -->\nRun `one` was not taken yet.\n<!-- end -->"
PAGE = f"# A page\n\n{NOTHING}\n\nAnd more.\n"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "one.png").write_bytes(b"picture")
    return Results(tmp_path, [ONE])


ONE = Run("one", "page.md", "script.py --fast", ("one.png",))


def test_kept_runs_of_another_commit_or_other_data_are_not_taken(tmp_path: Path) -> None:
    path, kept = tmp_path / "runs", search_efficiency.Kept([1, 2], 0.5)
    key = search_efficiency.Key("c0ffee1", "0123456789ab", "gemm", "auto", 200, 0)
    search_efficiency.Runs(path).add(key, kept)
    old = {"space": "gemm", "sampler": "auto", "budget": 200, "seed": 1}  # says neither
    with path.open("a") as file:
        print(json.dumps({"key": old, "run": {"rows": [3], "cpu_s": 0.1}}), file=file)
    runs = search_efficiency.Runs(path)
    assert runs.get(key) == kept
    for change in ({"commit": "c0ffee2"}, {"data": "ba9876543210"}, {"seed": 1}):
        assert runs.get(replace(key, **change)) is None


def test_runs_that_crashed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"columns": ["x"], "configurations": [[x] for x in range(30)]}
    path = tmp_path / "bowl.json"
    path.write_text(json.dumps({**times, "times": [1.0 + (x - 7) ** 2 for x in range(30)]}))
    for samplers, told in (
        ("random", "all 2"),
        ("random nosuch", "0 of 2 of nosuch on bowl, "),
    ):
        command = f"search_efficiency --data {tmp_path} --seeds 2 --budget 9 --workers 1"
        monkeypatch.setattr("sys.argv", [*command.split(), "--samplers", *samplers.split()])
        search_efficiency.main()
        assert f"- runs that ended: {told}" in capsys.readouterr().out


def test_a_mean_over_sizes_is_as_sure_as_its_rounds_are() -> None:
    """Its interval is narrower than the mean of the sizes' own, which are not off together."""
    peers = pytest.importorskip("mpi_peers")
    rng = np.random.default_rng(0)
    sizes = [list(rng.lognormal(np.log(ratio), 0.1, 40)) for ratio in (1.5, 1.2, 1.0)]
    mean, low, high = peers.mean_of_medians(sizes)
    medians, lows, highs = zip(
        *((median(own), *median_interval(own)) for own in sizes), strict=True
    )
    assert mean == pytest.approx(math.prod(medians) ** (1 / 3))
    assert math.prod(lows) ** (1 / 3) < low < mean < high < math.prod(highs) ** (1 / 3)
    same = peers.mean_of_medians([[2.0] * 9, [0.5] * 9])
    assert same == pytest.approx((1.0, 1.0, 1.0))


def test_pages_and_data_of_the_project_agree() -> None:
    assert list(faults(Results(pages.ROOT / "docs" / "results", read_runs()))) == []


@pytest.mark.parametrize("script", sorted({run.command.split()[0] for run in read_runs()}))
def test_benchmarks_of_pages_find_what_they_import(script: str) -> None:
    try:
        importlib.import_module(Path(script).stem)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "autotune":
            raise
        pytest.skip(f"{error.name} is not installed")


def test_what_was_printed_is_put_into_its_page(results: Results) -> None:
    results.keep(ONE, "| a | b |\n")
    page = results.folder / "page.md"
    results.build()
    assert "<!-- printed: one -->\n| a | b |\n<!-- end -->\n\nAnd more." in page.read_text()
    assert list(faults(results)) == []
    results.keep(ONE, "| c |\n")
    assert list(faults(results)) == ["page.md is not what was printed: build it"]
    results.build()
    assert list(faults(results)) == []


def test_a_page_shows_the_tables_that_are_chosen(results: Results) -> None:
    run = Run("one", "page.md", "script.py", (), ("time",), ("note",), ("fast",))
    chosen = Results(results.folder, [run])
    page = results.folder / "page.md"
    page.write_text("<!-- tables: one -->\n<!-- end -->\n")
    rows = "| name | time | note |\n|---|---|---|\n| fast | 1 | x |\n| slow | 2 | y |"
    printed = (
        f"- date: 2026-11-23, commit 0a1b2c3\n\n## 512\n\n- quiet\n\n{rows}\n\n| other |\n|---|\n"
    )
    chosen.keep(run, printed)
    chosen.build()
    shown = page.read_text()
    assert (
        "`python script.py`, 2026-11-23 at 0a1b2c3, [all that was printed](data/one.txt)" in shown
    )
    assert "**512**\n\n| name | time |\n" in shown
    assert "| fast | 1 |\n" in shown
    for left_out in ("slow", "note", "other"):
        assert left_out not in shown
    assert list(faults(chosen)) == []


def test_a_row_sums_up_every_table_by_kind(results: Results) -> None:
    run = Run("every-shape-one", "page.md", "script.py", ())
    chosen = Results(results.folder, [run])
    page = results.folder / "page.md"
    page.write_text("<!-- rows: every-shape-one -->\n<!-- end -->\n")
    head = "| kind | shapes | geometric mean | quartiles | least |\n|---|---|---|---|---|\n"
    rows = (
        "| skinny | 2 | **0.90** | 1, 1, 1 | 0.80 |\n| **all** | 3 | **1.20** | 1, 2, 3 | 0.80 |"
    )
    table = head + rows
    printed = (
        "- date: 2026-11-23, commit 0a1b2c3\n- float32, seed 3, shapes 0 to 2\n\n"
        f"### By kind\n\n{table}\n\nUntuned, of the tuned kernel's speed:\n\n{table}\n"
    )
    chosen.keep(run, printed)
    chosen.build()
    name, taken = "[one](data/every-shape-one.txt)", "2026-11-23 at 0a1b2c3"
    for row in (
        f"| {name} | float32 | served | 3 | 1.20 | 1, 2, 3 | 0.80 | skinny 0.90 | {taken} |",
        f"| {name} | float32 | served, of tuned | 3 | 1.20 | 1, 2, 3 | 0.80 |  | {taken} |",
    ):
        assert row in page.read_text()
    assert list(faults(chosen)) == []


def test_what_was_changed_is_found(results: Results) -> None:
    results.keep(ONE, "| a |\n")
    results.build()
    (results.folder / "one.png").write_bytes(b"another")
    assert list(faults(results)) == ["one.png is not what was kept: take one again"]
    (results.folder / "one.png").write_bytes(b"picture")
    results.printed(ONE.name).write_text("| b |\n")
    assert "data/one.txt is not what was kept: take one again" in list(faults(results))


def test_a_run_without_a_place_is_found(results: Results) -> None:
    other = Results(results.folder, [Run("two", "page.md", "script.py", ())])
    assert list(faults(other)) == ["page.md has no line <!-- printed: two -->"]


def test_what_was_written_by_hand_stays_until_its_run_is_kept(results: Results) -> None:
    page = results.folder / "page.md"
    page.write_text(f"{PAGE}\n<!-- by hand until: one -->\n| old |\n<!-- end -->\n\nThe end.\n")
    results.build()
    assert "| old |" in page.read_text()
    assert list(faults(results)) == []
    results.keep(ONE, "| new |\n")
    assert list(faults(results)) == ["page.md is not what was printed: build it"]
    results.build()
    assert "| new |" in page.read_text()
    assert page.read_text().endswith("And more.\n\nThe end.\n")


def test_the_list_of_runs_says_what_was_taken(results: Results) -> None:
    (results.folder / "README.md").write_text("<!-- runs -->\n<!-- end -->\n")
    (results.folder / "other.md").write_text("# By hand\n")
    assert list(faults(results)) == ["README.md is not what was printed: build it"]
    results.build()
    listed = (results.folder / "README.md").read_text()
    assert "| [page](page.md) | `one` | not yet |" in listed
    assert "| [other](other.md) | none: written by hand | |" in listed
    assert "[README]" not in listed
    results.keep(ONE, "- date: 2026-11-23, commit 0a1b2c3\n- GPU: fast\n")
    results.build()
    listed = (results.folder / "README.md").read_text()
    assert "| [page](page.md) | `one` | 2026-11-23 at 0a1b2c3 |" in listed


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    root = tmp_path / "checkout"
    root.mkdir()
    somebody = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    first = (*somebody, "commit", "-q", "--allow-empty", "-m", "First")
    for command in (("init", "-q"), first):
        subprocess.run(["git", *command], cwd=root, check=True)
    monkeypatch.setattr(pages, "ROOT", root)
    return root


def test_a_checkout_with_changes_is_refused(results: Results, checkout: Path) -> None:
    (checkout / "new.py").write_text("")
    with pytest.raises(SystemExit, match=r"must be a clean commit, got changes:\n.*new\.py"):
        pages.take(results, ONE)


def test_a_run_is_taken_with_the_variables_of_the_environment(
    results: Results, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = pages.git("rev-parse", "--short", "HEAD").stdout.strip()
    script = f"import sys; print('- date: today, commit {commit}', sys.argv[1:])"
    echo = Run("one", "page.md", f"-c {shlex.quote(script)} $PLACE", ())
    monkeypatch.delenv("PLACE", raising=False)
    with pytest.raises(SystemExit, match="one needs a variable of the environment"):
        pages.take(results, echo)
    monkeypatch.setenv("PLACE", "/somewhere/else")
    pages.take(results, echo)
    kept = results.printed("one").read_text()
    shown = f"    python {echo.command}\n\n- date: today, commit {commit} ['/somewhere/else']\n"
    assert kept == shown
    assert "$PLACE" in kept


def test_what_changed_while_it_was_measured_is_not_kept(
    results: Results, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "print('- date: today, commit 0a1b2c3-dirty')"
    with pytest.raises(SystemExit, match="got 0a1b2c3-dirty: did files change while it ran"):
        pages.take(results, Run("one", "page.md", f"-c {shlex.quote(script)}", ()))
    assert "0a1b2c3-dirty" in capsys.readouterr().out
    assert not results.data.exists()


def test_what_was_printed_elsewhere_is_kept(results: Results, checkout: Path) -> None:
    commit = pages.git("rev-parse", "--short", "HEAD").stdout.strip()
    text, picture = checkout / "text", checkout / "one.png"
    text.write_text(f"{ONE.shown}\n\n- date: 2026-11-23, commit {commit}\n\n| a |\n")
    picture.write_bytes(b"picture of another machine")
    pages.keep(results, ONE, text, [picture])
    results.build()
    assert list(faults(results)) == []
    assert (results.folder / "one.png").read_bytes() == picture.read_bytes()
    assert f"one -->\n{text.read_text()}<!-- end" in (results.folder / "page.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- date: 2026-11-23, commit {commit}\n", "must begin with the command of one"),
        ("    python script.py\n\n- date: 2026-11-23, commit {commit}\n", "must begin"),
        (f"{ONE.shown}\n\n| a |\n", "must name a commit: set AUTOTUNE_COMMIT"),
        (f"{ONE.shown}\n\n- date: 2026-11-23, commit unknown\n", "got unknown"),
        (f"{ONE.shown}\n\n- date: 2026-11-23, commit HEAD\n", "got HEAD"),
        (f"{ONE.shown}\n\n- date: 2026-11-23, commit {{commit}}-dirty\n", "got .*-dirty"),
        (f"{ONE.shown}\n\n- date: 2026-11-23, commit {{commit}}\n", "the files of one are one"),
    ],
)
def test_what_is_not_known_to_be_a_run_is_refused(
    results: Results, checkout: Path, text: str, message: str
) -> None:
    commit = pages.git("rev-parse", "--short", "HEAD").stdout.strip()
    printed = checkout / "text"
    printed.write_text(text.format(commit=commit))
    with pytest.raises(SystemExit, match=message):
        pages.keep(results, ONE, printed, [])
    assert not results.data.exists()


def test_a_commit_is_named_by_the_environment_where_there_is_no_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(environment.COMMIT, "0a1b2c3")
    assert environment.taken().endswith(", commit 0a1b2c3")
    assert pages.TAKEN.search(environment.describe())
