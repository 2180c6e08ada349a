"""Blocks of every rank lie between guard zones, and what one does wrong shows on all ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mpiexec import run_ranks

CHECK = Path(__file__).with_name("check_blocks.py")


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_a_rank_must_not_do_is_told_on_all(ranks: int) -> None:
    done = run_ranks(ranks, str(CHECK))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(alike for *_, alike in told.values())
    verdicts = {fault: (right, damaged) for fault, (right, damaged, *_) in told.items()}
    assert verdicts == {
        "none": (True, False),
        "wrong": (False, False),
        "input": (False, True),
        "before": (False, True),
        "after": (False, True),
    }
    assert f"modified B, an input, on rank {ranks - 1}" in told["input"][2]
    for fault in ("before", "after"):
        assert f"wrote outside C on rank {ranks - 1}" in told[fault][2]
