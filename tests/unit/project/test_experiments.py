"""The experiments: every contender is a configuration of its family, and one is run whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import experiment_plots
import pytest

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
