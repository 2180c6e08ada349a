"""Tuning presets: what the shipped ones hold, files that do not fit, runs and what they say."""

from __future__ import annotations

import argparse
import io
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from records import PORTFOLIO, record

from autotune import Gemm, load, tune
from autotune.cli.presets import _Display, _preset_text, _use_lines
from autotune.cli.terminal import drawn
from autotune.core.errors import InputError, UnknownNameError
from autotune.measuring.effort import Effort
from autotune.operations.problem import GEMM
from autotune.store import BaselineRecord, TuningCache
from autotune.surveying import preset_run
from autotune.surveying.portfolios import Surveyed, SurveyPlan, SurveyVisit
from autotune.surveying.preset_run import PresetResult, PresetStatus, run_preset
from autotune.surveying.presets import (
    DTYPE_S,
    TuningPreset,
    find_preset,
    read_presets,
    tuning_presets,
)
from autotune.surveying.visits import (
    FIRST_SHARE,
    MIN_VISIT_S,
    Claim,
    expected_gain,
    first_visit_s,
    in_turn,
    second_round_s,
    second_visits,
    survey_s,
)
from autotune.tuning.progress import Progress

SQUARES = [f"{size}x{size}x{size}" for size in (128, 256, 512, 1000, 1024, 2048, 4096, 8192)]
OTHERS = ["2047x2051x2049", "16x4096x4096", "4096x4096x128", "64x65536x64"]

TINY = """
[tiny]
summary = "for tests"
target = "cpu"
trials = 3
problems = [
    { shape = "24x24x24", dtype = "float32", seconds = 30 },
    { shape = "16x40x8", dtype = "float64", seconds = 30 },
]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "presets.toml"
    path.write_text(text)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> TuningPreset:
    return read_presets(write(tmp_path, TINY))["tiny"]


def test_the_gpu_preset_covers_square_odd_and_skinny_products() -> None:
    preset = find_preset("gpu")
    wanted = {
        Gemm(*GEMM.parse_shape(shape), dtype=dtype)
        for shape in SQUARES + OTHERS
        for dtype in ("float32", "float64")
    }
    assert {each.problem for each in preset.problems} == wanted
    assert preset.target == "cuda"
    assert preset.seconds <= 8 * 60


def test_the_cpu_preset_covers_square_odd_skinny_and_long_products() -> None:
    preset = find_preset("cpu")
    shapes: dict[str, set[tuple[int, ...]]] = {"float32": set(), "float64": set()}
    for each in preset.problems:
        shapes[each.problem.dtype].add(each.problem.shape)
    assert shapes["float32"] == shapes["float64"]
    for kind in (
        {(size, size, size) for size in (64, 256, 512, 1000, 1024, 2048)},
        {(511, 513, 509), (1, 4096, 4096), (4096, 4096, 1), (16, 4096, 4096)},
        {(64, 16384, 64), (2048, 16, 2048)},
    ):
        assert kind <= shapes["float32"]
    assert preset.target == "cpu"
    assert preset.seconds <= 8 * 60
    # Time for two rounds.
    assert second_round_s(preset.seconds, len(preset.problems)) > 0


def test_a_preset_is_for_the_element_types_that_one_names() -> None:
    preset, wanted = find_preset("gpu"), ["bfloat16", "float32", "float64"]
    made = preset.of_dtypes(wanted)
    shapes = {each.problem.shape for each in preset.problems}
    for dtype in wanted:
        own = [each for each in made.problems if each.problem.dtype == dtype]
        assert {each.problem.shape for each in own} == shapes
        assert sum(each.seconds for each in own) == pytest.approx(DTYPE_S, abs=0.1)
    assert {each.problem.accuracy for each in made.problems} == {"native", "ieee"}
    assert made.seconds <= 12 * 60 + 1
    assert isinstance(made.survey, SurveyPlan)
    assert list(made.survey.shares) == wanted
    assert made.digest != preset.digest
    with pytest.raises(UnknownNameError, match="float16, bfloat16, got 'float8'"):
        preset.of_dtypes(["float32", "float8"])


def test_presets_have_different_digests_which_say_all_that_counts(tmp_path: Path) -> None:
    digests = {preset.digest for preset in tuning_presets().values()}
    for old, new in (("", ""), ("trials = 3", "trials = 4"), ("24x24", "24x25"), ("30 }", "31 }")):
        digests.add(read_presets(write(tmp_path, TINY.replace(old, new)))["tiny"].digest)
    assert len(digests) == len(tuning_presets()) + 4


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"cpu, gpu, got 'gpus'; did you mean 'gpu'\?"):
        find_preset("gpus")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("24x24x24", "24x24", r"tiny.problems\[1\].shape is wrong"),
        ("24x24x24", "0x24x24", r"tiny.problems\[1\].shape is wrong"),
        ('"float32"', '"int8"', r"tiny.problems\[1\].dtype must be one of"),
        ("seconds = 30", "seconds = 0", r"tiny.problems\[1\].seconds must be a whole number >= 1"),
        ("trials = 3", "trials = 0", r"tiny.trials must be a whole number >= 1"),
        ("trials = 3", "tries = 3", r"tiny.trials is missing"),
        ('summary = "for tests"', "", r"tiny.summary is missing"),
        ("[tiny]", "[tiny]\nsize = 3", r"tiny.size is not a key"),
        ("[tiny]", "tiny = 3", r"tiny must be a table"),
        ('16x40x8", dtype = "float64"', '24x24x24", dtype = "float32"', r"must not repeat"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = TINY.replace(old, new)
    if new.startswith("tiny ="):
        text = new
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        read_presets(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_problems_a_file_is_refused(tmp_path: Path) -> None:
    text = TINY[: TINY.index("problems")] + "problems = []\n"
    with pytest.raises(InputError, match="at least one problem"):
        read_presets(write(tmp_path, text))


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is interested in how fast the winners are."""
    monkeypatch.setattr(preset_run, "EFFORT", Effort(budget_s=0.01, finals_s=0.05))


def run(preset: TuningPreset, cache: Path, **options: object) -> list[PresetResult]:
    return list(run_preset(preset, cache=cache, families=["loops"], workers=1, **options))


def statuses(results: list[PresetResult]) -> list[PresetStatus]:
    return [result.status for result in results]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("undisturbed")
def test_an_interrupted_run_goes_on_and_what_is_finished_is_kept(
    tiny: TuningPreset, warm_cache: Path
) -> None:
    sent: list[Progress] = []

    def interrupt_after_one(problem: Gemm, seconds: float) -> Callable[[Progress], None]:
        def progress(state: Progress) -> None:
            if state.trial == 1 and not sent:
                sent.append(state)
                os.kill(os.getpid(), signal.SIGINT)

        return progress

    store = TuningCache(warm_cache / "tuning.sqlite")
    interrupted = run(tiny, warm_cache, watch=interrupt_after_one)
    assert statuses(interrupted) == [PresetStatus.TUNED, PresetStatus.NOT_REACHED]
    assert interrupted[0].result.interrupted
    assert "run it again" in interrupted[1].reason

    finished = run(tiny, warm_cache)
    assert statuses(finished) == [PresetStatus.TUNED] * 2
    by_study = {result.study: result for result in finished}
    tuned, untuned = (by_study[result.study] for result in interrupted)
    assert load(Gemm(24, 24, 24), "cpu", cache=warm_cache).record == tuned.record
    # The study went on: nothing was measured twice.
    tried = [row.candidate for row in store.measurements(study=tuned.study)]
    assert len(tried) == len(set(tried)) == 1 + 3

    kept = run(tiny, warm_cache)
    assert statuses(kept) == [PresetStatus.KEPT] * 2
    assert [result.record for result in kept] == [tuned.record, untuned.record]

    store.delete([untuned.record.id])
    assert statuses(run(tiny, warm_cache)) == [PresetStatus.KEPT, PresetStatus.TUNED]


@pytest.mark.slow
@pytest.mark.usefixtures("undisturbed")
def test_only_records_of_this_preset_and_effort_are_kept(
    tiny: TuningPreset, warm_cache: Path
) -> None:
    one = replace(tiny, problems=tiny.problems[:1])
    tune(Gemm(24, 24, 24), target="cpu", families=["loops"], trials=1, cache=warm_cache, workers=1)
    for trials in (2, 1):
        assert statuses(run(one, warm_cache, trials=trials)) == [PresetStatus.TUNED]
        assert statuses(run(one, warm_cache, trials=trials)) == [PresetStatus.KEPT]


@pytest.mark.slow
@pytest.mark.usefixtures("undisturbed")
def test_a_problem_that_nothing_computes_leaves_the_others(
    tiny: TuningPreset, warm_cache: Path
) -> None:
    able, unable = tiny.problems[0], Gemm(24, 24, 24, dtype="float16")
    problems = (replace(able, problem=unable), able)
    failed, tuned = run(replace(tiny, problems=problems), warm_cache)
    assert (failed.status, failed.problem) == (PresetStatus.FAILED, unable)
    assert "float16" in failed.reason
    assert tuned.status is PresetStatus.TUNED


def test_no_search_is_begun_without_time_for_it(tiny: TuningPreset, tmp_path: Path) -> None:
    results = run(tiny, tmp_path / "cache", seconds=0.5)
    assert statuses(results) == [PresetStatus.NOT_REACHED] * 2
    assert all("left of the 0.5 s" in result.reason for result in results)
    with pytest.raises(InputError, match="more than 0 seconds, got 0"):
        run(tiny, tmp_path / "cache", seconds=0)


def test_all_problems_are_visited_in_a_third_of_the_time() -> None:
    weights = [60.0, 45.0, 75.0, 30.0]
    kept_s = second_round_s(210.0, len(weights))
    assert kept_s == pytest.approx(210 * (1 - FIRST_SHARE))
    left_s = 210.0
    seconds = []
    for number in range(len(weights)):
        visit_s = first_visit_s(left_s, kept_s, weights[number:])
        assert visit_s is not None
        seconds.append(visit_s)
        left_s -= visit_s
    assert sum(seconds) == pytest.approx(70)
    spare_s = [each - MIN_VISIT_S for each in seconds]
    assert [each / sum(spare_s) for each in spare_s] == pytest.approx([w / 210 for w in weights])
    # What a problem takes too much, the second round loses and no other problem.
    assert first_visit_s(kept_s - 10, kept_s, [30.0]) == MIN_VISIT_S


def test_a_round_that_reaches_all_goes_before_a_second_one() -> None:
    weights = [60.0, 45.0, 75.0, 30.0]
    least_s = len(weights) * MIN_VISIT_S
    assert second_round_s(1.5 * least_s, len(weights)) == pytest.approx(0.5 * least_s)
    assert second_round_s(least_s, len(weights)) == 0
    assert first_visit_s(least_s, 0.0, weights) == MIN_VISIT_S
    assert first_visit_s(2 * least_s, 0.0, weights) > MIN_VISIT_S
    assert first_visit_s(0.9 * MIN_VISIT_S, 0.0, weights) is None


def test_layers_of_a_weight_follow_each_other() -> None:
    def claim(m: int, n: int, dtype: str = "bfloat16", gain: float = 1.0) -> Claim:
        return Claim.of(Gemm(m, n, 64, dtype, layout="nt"), 1.0, gain)

    claims = [claim(1, 32), claim(1, 48), claim(9, 32), claim(9, 32, "float16"), claim(9, 48)]
    assert in_turn(claims) == [0, 2, 3, 1, 4]
    # One that has a record waits for those that have none.
    assert in_turn([claim(5, 32, gain=0.1), *claims])[-1] == 0


def test_time_goes_where_most_is_expected() -> None:
    missing = expected_gain(None, ())
    behind = expected_gain(0.5, [2.0, 1.0, 1.0, 1.0])
    improving = expected_gain(1.2, [2.0, 2.0, 1.6, 1.5])
    settled = expected_gain(1.2, [1.0, 2.0, 1.5, 1.0])
    unknown_library = expected_gain(None, [1.0])
    assert missing > behind > improving > settled == unknown_library > 0
    # However much few trials have gained, what is behind goes first.
    assert expected_gain(0.9, [1.0]) > expected_gain(1.9, [9.0, 1.0])
    claims = [Claim(50.0, settled), Claim(50.0, behind), Claim(50.0, improving)]
    order, seconds = zip(*second_visits(300.0, claims), strict=True)
    assert order[:2] == (1, 2)
    assert list(seconds) == sorted(seconds, reverse=True)
    # The least promising goes without rather than that all get too little.
    [(first, all_s)] = second_visits(MIN_VISIT_S * 1.2, claims)
    assert (first, all_s) == (1, MIN_VISIT_S * 1.2)
    assert second_visits(0.5 * MIN_VISIT_S, claims) == second_visits(100.0, []) == []


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
    short_s = 1.2 * count * MIN_VISIT_S
    assert survey_s(short_s, share, count) == pytest.approx(short_s / 3)
    assert survey_s(2 * short_s, share, count) <= 2 * short_s - count * MIN_VISIT_S
    assert survey_s(120, share, 0) == 120


def test_element_types_take_turns_and_the_most_promising_go_first() -> None:
    kinds = [Claim(1, 1.0, "float32")] * 3 + [Claim(1, 1.0, "float64")] * 2
    assert in_turn(kinds) == [0, 3, 1, 4, 2]
    assert in_turn([Claim(1, 0.1, "float32"), *kinds]) == [4, 1, 5, 2, 3, 0]


def test_means_leave_out_what_is_noisy_and_say_over_how_many() -> None:
    text = _preset_text(
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
        "float32: geometric mean 1.000x the vendor library, least 0.500x, over 2 of 5; 1 noisy "
        "left out"
    )
    assert double == "float64: no mean: 1 of 1 measured, all noisy"
    assert text.count("not reached") == 1


def test_nothing_is_a_table_where_nothing_was_reached() -> None:
    assert _preset_text([unreached(64)]).splitlines() == [
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
