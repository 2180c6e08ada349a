"""How a run over many problems divides a short time, and what it says of it."""

from __future__ import annotations

import argparse
import io
from dataclasses import replace
from pathlib import Path

import pytest
from records import PORTFOLIO, record

from autotune import Gemm
from autotune.cli.terminal import drawn
from autotune.cli.tune_preset import _Display, _text, _use_lines
from autotune.store import BaselineRecord
from autotune.surveying.portfolios import Surveyed, SurveyVisit
from autotune.surveying.preset_run import PresetResult, PresetStatus
from autotune.surveying.preset_schedule import MIN_VISIT_S, Claim, in_turn, survey_s
from autotune.surveying.presets import find_preset

DISTURBED = "others kept 1.5 of 2 processors busy"


def tuned(size: int, ratio: float, dtype: str = "float32", noise: str = "") -> PresetResult:
    problem = Gemm(size, size, size, dtype)
    made = record(problem=problem, baseline=BaselineRecord("NumPy", 1.0, ratio), noise=noise)
    made = replace(made, interval_s=(made.median_s, made.median_s))
    return PresetResult(problem, "study", PresetStatus.TUNED, made)


def unreached(size: int, dtype: str = "float32") -> PresetResult:
    reason = "too little is left of the 120 s: run it again to go on"
    problem = Gemm(size, size, size, dtype)
    return PresetResult(problem, "study", PresetStatus.NOT_REACHED, reason=reason)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_survey_leaves_time_for_the_problems(name: str) -> None:
    preset = find_preset(name)
    assert preset.survey is not None
    share, count = preset.survey.share, len(preset.problems)
    assert survey_s(preset.seconds, share, count) == pytest.approx(share * preset.seconds)
    assert survey_s(120, share, count) == pytest.approx(40)
    assert survey_s(240, share, count) == pytest.approx(240 - count * MIN_VISIT_S)
    assert survey_s(120, share, 0) == 120


def test_element_types_take_turns_and_the_most_promising_go_first() -> None:
    kinds = [Claim(1, 1.0, "float32")] * 3 + [Claim(1, 1.0, "float64")] * 2
    assert in_turn(kinds) == [0, 3, 1, 4, 2]
    assert in_turn([Claim(1, 0.1, "float32"), *kinds]) == [4, 1, 5, 2, 3, 0]


def test_means_leave_out_what_is_noisy_and_say_over_how_many() -> None:
    text = _text(
        [
            tuned(64, 2.0),
            tuned(128, 0.5),
            tuned(256, 435.0, noise=DISTURBED),
            unreached(512),
            unreached(1024),
            tuned(64, 12.3, "float64", noise=DISTURBED),
        ]
    )
    *_, left, single, double = drawn(text, io.StringIO()).splitlines()
    assert left == ("2 of 6 not reached: too little is left of the 120 s: run it again to go on")
    assert single == (
        "float32: geometric mean 1.000x the vendor library, over 2 of 5; 1 noisy left out"
    )
    assert double == "float64: no mean: 1 of 1 measured, all noisy"
    assert text.count("not reached") == 1


def test_nothing_is_a_table_where_nothing_was_reached() -> None:
    assert _text([unreached(64)]).splitlines() == [
        "1 of 1 not reached: too little is left of the 120 s: run it again to go on"
    ]


def test_the_survey_speaks_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    display = _Display(find_preset("cpu"), quiet=False)
    problem = Gemm(1, 856, 1181, threads=1)
    display.visit(SurveyVisit(problem, 1, 4, 1, 6.2))
    display.visit(SurveyVisit(problem, 1, 4, 2, 5.2))
    made = replace(PORTFOLIO, threads=1, shapes=8, loss=0.0)
    display.surveyed(Surveyed(made, 39, 28, 21.3))
    display.surveyed(Surveyed(replace(made, threads=None), 39, 28, 21.3))
    display.show(unreached(64))
    first, kept, all_threads = capsys.readouterr().err.splitlines()
    assert first == "survey 1/4 (float32, 1 thread): measuring 1x856x1181, 6 s left"
    assert kept == (
        "survey: float32, 1 thread: kept 2 of 39 kernels (28 measurements on 8 shapes; on average "
        "0.0% slower than the best of all 39); 21 s"
    )
    assert all_threads.startswith("survey: float32, all threads: kept 2 of 39 kernels")
    assert display.portfolios == [made, replace(made, threads=None)]


def test_the_end_says_where_it_is_stored_and_how_to_use_it(tmp_path: Path) -> None:
    args = argparse.Namespace(cache=str(tmp_path), target=None, device=None, families=[])
    lines = _use_lines(args, find_preset("cpu"), [unreached(8), tuned(64, 2.0)], [PORTFOLIO])
    text = "\n".join(lines)
    assert "stored    1 record and 1 portfolio in" in text
    assert str(tmp_path) in text
    assert "load it   from autotune import Gemm, load" in text
    assert "m=64, n=64, k=64" in text
    assert _use_lines(args, find_preset("cpu"), [unreached(8)], []) == []
