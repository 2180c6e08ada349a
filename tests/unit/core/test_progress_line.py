"""The live line: fits the terminal, keeps moving, and never says that nothing is left for long."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.configuration import Candidate, Configuration
from autotune.core.measurement import Outcome
from autotune.measuring.evaluator import Baseline
from autotune.tuning.progress import LOG_INTERVAL_S, Progress, ProgressLine, status

BEGIN = Progress(
    trial=0,
    trials=200,
    elapsed_s=0.1,
    timeout_s=60.0,
    best_s=None,
    baseline=None,
    flops=2 * 1024**3,
    counts={},
    phase="starting",
    left_s=59.9,
)
SEARCH = replace(
    BEGIN,
    trial=31,
    elapsed_s=30.0,
    best_s=2e-2,
    baseline=Baseline("NumPy 2.4.6 (OpenBLAS 0.3.31)", 2.5e-2, (2e-2, 3e-2), 2, {}),
    counts={Outcome.OK: 16, Outcome.ABANDONED: 15},
    phase="trials",
    left_s=30.0,
    best=Candidate("goto", Configuration({"sm": 1})),
)
FINALS = replace(SEARCH, phase="finals", step=3, steps=15, elapsed_s=56.0, left_s=2.5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_phase_is_named() -> None:
    assert "starting | 0 s, 60 s left" in status(BEGIN)
    compiling = replace(BEGIN, phase="compiling", step=2, steps=4)
    assert "compiling 2/4 |" in status(compiling)
    assert "trial 31/200, compiling 2/4" in status(replace(compiling, trial=31))
    assert status(SEARCH).endswith(
        "trial 31/200 | best 107.4 GFLOP/s (1.25x NumPy) goto | abandoned 15 ok 16 | "
        "30 s, 30 s left"
    )
    assert "finals: round 3/15 |" in status(FINALS)
    assert "finals: verifying" in status(replace(FINALS, step=0, steps=0))


def test_the_bar_fills() -> None:
    assert status(BEGIN).startswith("[............]")
    assert status(SEARCH).startswith("[######......]")
    assert status(FINALS, since_s=2.4).startswith("[############]")
    sweep = replace(SEARCH, timeout_s=math.inf, left_s=math.inf, trial=50)
    assert status(sweep).startswith("[###.........]")


@given(
    width=st.integers(1, 200),
    since_s=st.floats(0, 1e4),
    left_s=st.floats(0, math.inf),
    progress=st.sampled_from([BEGIN, SEARCH, FINALS]),
)
def test_a_line_fits_and_what_is_left_is_never_nothing(
    width: int, since_s: float, left_s: float, progress: Progress
) -> None:
    progress = replace(progress, left_s=left_s)
    assert len(status(progress, since_s, width)) <= width
    text = status(progress, since_s)
    assert "-" not in text.replace("goto", "")
    for seconds in re.findall(r"(\S+) s left", text):
        assert int(seconds) >= 1


def test_a_narrow_terminal_loses_the_least() -> None:
    text = status(SEARCH, width=59)
    assert text.startswith("trial 31/200 | 30 s, 30 s left | best 107.4 GFLOP/s")


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_the_line_is_rewritten_in_place(columns: int) -> None:
    terminal, clock = Terminal(), Clock()
    line = ProgressLine("title", terminal, clock, lambda: columns)
    for progress in (BEGIN, SEARCH, FINALS):
        line(progress)
    clock.now += 3
    line.tick()
    line.end()
    text = terminal.getvalue()
    assert text.startswith("title\n")
    assert text.endswith("\n")
    assert text.count("\n") == 2
    shown = text.removeprefix("title\n").removesuffix("\n").split("\r\x1b[K")[1:]
    assert max(map(len, shown)) < columns
    if columns == 200:
        assert "59 s" in shown[-1]  # the clock went on, though the run said nothing
        assert "left" not in shown[-1]


def test_a_log_has_a_line_now_and_then() -> None:
    log, clock = io.StringIO(), Clock()
    line = ProgressLine("title", log, clock)
    line(BEGIN)
    clock.now += 0.9 * LOG_INTERVAL_S
    line(SEARCH)
    clock.now += 0.2 * LOG_INTERVAL_S
    line(FINALS)
    line.end()
    assert log.getvalue().splitlines() == ["title", status(FINALS)]


def test_a_run_that_never_began_leaves_nothing() -> None:
    terminal = Terminal()
    ProgressLine("title", terminal).end()
    assert terminal.getvalue() == ""
