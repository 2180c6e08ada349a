"""The ladder on a GPU: near kernels and far ones, cuBLAS, whole calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune import Gemm, tune
from autotune.cli import main
from autotune.measuring import Effort


def test_the_ladder_has_kernels_and_whole_calls(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["bench", "--ladder", "--target", "cuda", "--shape", "512x384x640", "--json"]
    arguments += ["--family", "volkov", "--family", "tiled", "--cache", str(tmp_path)]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    kernels = {row["kernel"]: row for row in rows}
    assert {"volkov (matmul7)", "volkov (matmul8)", "tiled (matmul6)"} <= kernels.keys()
    for row in rows:
        assert row["median_s"] is not None, row["reason"]
        assert row["host_cold_s"] > row["median_s"]
        assert row["host_warm_s"] > row["median_s"]
        assert row["host_context_s"] > 0
    if rows[0]["kernel"].startswith("cuBLAS"):
        assert all(row["ratio_to_vendor"] > 0 for row in rows)


def test_what_takes_long_is_held_without_a_pause(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    problem = Gemm(2048, 2048, 2048, "float32")
    effort = Effort(budget_s=0.1, finals_s=0.5, sustained_s=4.0)
    families = ["block"]
    result = tune(
        problem, target="cuda", families=families, trials=2, effort=effort, cache=tmp_path
    )
    held = result.best.sustained
    assert held is not None
    told = [held.kernel, *([] if held.baseline is None else [held.baseline])]
    for each in told:
        assert each.sm_clock_mhz is None or 100 < each.sm_clock_mhz < 4000
        if each.joules is not None and each.watts is not None:
            assert each.joules == pytest.approx(each.watts * each.median_s, rel=0.2)
    # Clocks are no higher than in short turns, and operands lie beyond the cache in both.
    assert 0.8 * result.best.median_s < held.kernel.median_s < 4 * result.best.median_s
    arguments = ["bench", "--shape", "2048x2048x2048", "--target", "cuda", "--json"]
    capsys.readouterr()
    assert main([*arguments, "--cache", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["sustained"] is not None for row in rows)
