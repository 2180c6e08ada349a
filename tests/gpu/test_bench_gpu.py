"""The ladder on a GPU: near kernels and far ones, cuBLAS, whole calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main


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
