"""Surveys, on a target that anybody could have written: it measures NumPy in this process."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune.core.configuration import Candidate, Configuration
from autotune.core.deadline import Deadline
from autotune.core.errors import InputError, OutOfTimeError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.families.gpu.planning import planner_of
from autotune.families.program_cache import ProgramCache
from autotune.model import Entry, program_of
from autotune.operations.problem import Gemm, gemm_from_key
from autotune.serving.predicting import Predictor
from autotune.store import MatchQuality, TuningCache
from autotune.surveying import preset_run
from autotune.surveying.pool import worth_knowing
from autotune.surveying.portfolios import (
    Range,
    Surveyed,
    SurveyPlan,
    SurveyVisit,
    draw_problems,
    survey_device,
)
from autotune.surveying.preset_run import PresetStatus, run_preset
from autotune.surveying.presets import PresetProblem, TuningPreset, read_presets
from autotune.surveying.queue import Until
from autotune.surveying.survey import Survey
from autotune.targets.families import load_families
from autotune.targets.registry import make_target, rescan
from autotune.tuning.context import DeviceContext
from autotune.tuning.settings import Run

sys.path.append(str(Path(__file__).parents[2] / "toy"))

from installed import install

SMALL = Range(outer=(1, 96), reduction=(1, 96), work=(100, 100_000))
RUN = Run(workers=1)
PLAN = SurveyPlan(SMALL, {"float32": 1}, problems=6, most=6, seed=3, share=0.5)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(install(folder)))
    monkeypatch.delitem(sys.modules, "toy_target", raising=False)
    rescan()
    yield
    monkeypatch.undo()
    rescan()


def place_in(folder: Path) -> DeviceContext:
    target = make_target("toy")
    cache = CacheLocations.at(folder).create()
    return DeviceContext(
        target,
        target.device(None),
        load_families(target="toy"),
        TuningCache(cache.database),
        ProgramCache(cache.programs),
    )


def never() -> bool:
    return False


def slow_beside(chosen: Sequence[Entry], place: DeviceContext) -> Entry:
    """A program that is none of these, at nine times the prices of the first."""
    family = place.families[chosen[0].family]
    space = family.space(Gemm(32, 32, 32), place.device.limits)
    others = (replace(chosen[0], configuration=space[row]) for row in range(space.size))
    other = next(each for each in others if each.key not in {one.key for one in chosen})
    return replace(other, prices=tuple(9 * price for price in other.prices), binary=None)


def test_problems_are_drawn_within_bounds_and_again() -> None:
    within = Range(outer=(1, 16384), reduction=(16, 16384), work=(1e6, 2e11))
    drawn = draw_problems(within, 120, 7, "float64", threads=2)
    assert drawn == draw_problems(within, 120, 7, "float64", threads=2)
    assert drawn[:40] == draw_problems(within, 40, 7, "float64", threads=2)
    assert len(set(drawn)) == 120
    for each in drawn:
        assert 1 <= min(each.m, each.k) <= max(each.m, each.k) <= 16385
        assert 16 <= each.n <= 16385
        assert each.m * each.n * each.k >= 1e6
    layouts = Counter(each.layout for each in drawn)
    assert layouts["nn"] > 60
    assert set(layouts) == {"nn", "nt", "tn", "tt"}
    assert 20 < sum(each.m % 2 == each.n % 2 == each.k % 2 == 1 for each in drawn) < 80
    assert sum(min(each.m, each.k) <= 16 for each in drawn) > 20
    assert max(max(e.m * e.n, e.n * e.k, e.m * e.k) for e in drawn) <= 2**25


@pytest.mark.parametrize("seed", range(5))
def test_few_rows_and_few_columns_are_drawn_alike(seed: int) -> None:
    within = Range(outer=(1, 16384), reduction=(16, 16384), work=(1e6, 2e11))
    drawn = draw_problems(within, 64, seed, "float32")
    for few in (1, 2, 4, 8, 16):
        assert any(each.m == few for each in drawn)
        assert any(each.k == few for each in drawn)
    beyond = 2**24  # elements that no level-2 cache holds
    assert any(each.n * each.k > beyond / 2 for each in drawn if each.m <= 16)
    assert any(each.m * each.n > beyond / 2 for each in drawn if each.k <= 16)


def test_every_second_problem_of_16_bits_is_a_layer() -> None:
    within = Range(outer=(1, 16384), reduction=(16, 16384), work=(1e6, 2e11))
    drawn = draw_problems(within, 64, 3, "bfloat16")
    assert drawn[:20] == draw_problems(within, 20, 3, "bfloat16")
    layers = [
        each
        for each in drawn
        if (each.m if each.layout == "tn" else each.n) % 128 == each.k % 128 == 0
    ]
    assert 22 <= len(layers) <= 40
    assert Counter(each.layout for each in layers)["nt"] >= 10
    assert {each.m for each in layers if each.layout == "nt"} <= {2**power for power in range(13)}
    small = Range(outer=(1, 64), reduction=(1, 64), work=(1, 2e5))
    assert len(draw_problems(small, 30, 3, "float16")) == 30


@pytest.mark.usefixtures("toy")
def test_a_program_that_there_is_not_is_no_beginning(tmp_path: Path) -> None:
    """Portfolios come from strangers, too: what is no program of a family is left out."""
    place = place_in(tmp_path / "cache")
    (made,) = survey_device(place, RUN, PLAN, Deadline(60), never, study="survey")
    good = made.portfolio.entries[0]
    none = replace(good, configuration=Configuration({**good.configuration, "panel": 7777}))
    other = replace(good, free=("panel",), calls=((7777,),))
    stranger = replace(made.portfolio, entries=(none, other, good))
    survey = Survey(place, RUN, contextlib.nullcontext(), [Gemm(32, 32, 32)], "another")  # type: ignore[arg-type]
    list(survey.learning.take(stranger))
    assert [
        each.configuration
        for each in survey.learning.at_prices_of_now(stranger.entries, timed=False)
    ]
    assert none not in [*survey.learning.at_prices_of_now(stranger.entries, timed=False)]
    predictor = Predictor([stranger], place.families, place.device)
    assert predictor.choose(Gemm(32, 32, 32)) is not None


@pytest.mark.usefixtures("toy")
def test_a_survey_stores_a_portfolio_that_serves_other_shapes(tmp_path: Path) -> None:
    place, visits = place_in(tmp_path / "cache"), list[SurveyVisit]()
    (made,) = survey_device(
        place,
        RUN,
        PLAN,
        Deadline(60),
        never,
        study="survey",
        watch=visits.append,
    )
    # Two of six problems are of layouts that the family does not read.
    assert len({each.problem for each in visits}) == 4
    assert [each.visit for each in visits] == list(range(1, len(visits) + 1))
    assert {(each.lot, each.lots) for each in visits} == {(1, 1)}
    left = [each.left_s for each in visits]
    assert left == sorted(left, reverse=True)
    assert place.store.portfolios("gemm", "toy") == [made.portfolio]
    assert 1 <= len(made.portfolio.entries) <= made.programs
    assert made.measurements >= 6
    stored = place.store.measurements(study="survey-float32")
    assert len(stored) >= made.measurements
    # No call is tried twice for a problem.
    tried = Counter((str(each.problem), each.candidate) for each in stored)
    assert set(tried.values()) == {1}

    problem = Gemm(77, 50, 33)
    kernel = autotune.load(problem, "toy", match="nearest", cache=tmp_path / "cache")
    assert kernel.match is MatchQuality.PREDICTED
    assert "predicted" in kernel.reason
    assert "NumPy's model" in kernel.reason
    assert kernel.candidate.configuration in [
        each.configuration for each in made.portfolio.entries
    ]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((77, 50), (50, 33)))
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
    with pytest.raises(autotune.NotTunedError):
        autotune.load(problem, "toy", cache=tmp_path / "cache")


@pytest.mark.usefixtures("toy")
def test_the_next_survey_keeps_what_the_one_before_chose(tmp_path: Path) -> None:
    place = place_in(tmp_path / "cache")
    (first,) = survey_device(place, RUN, PLAN, Deadline(60), never, study="one")
    # A program that may be good for shapes that the lot has not: there it is slow.
    chosen = first.portfolio.entries
    slow = slow_beside(chosen, place)
    place.store.put_portfolio(replace(first.portfolio, entries=(*chosen, slow)), ())
    (second,) = survey_device(place, RUN, PLAN, Deadline(60), never, study="two")
    found = {each.key: each for each in second.portfolio.entries}
    assert {each.key for each in (*chosen, slow)} == set(found)
    assert len(found) == len(second.portfolio.entries)
    assert found[slow.key].prices != slow.prices  # it was tried
    # One that has no time at all leaves the portfolio as it is.
    assert list(survey_device(place, RUN, PLAN, Deadline(0), never, study="three")) == []
    assert place.store.portfolios("gemm", "toy") == [second.portfolio]
    assert first.portfolio.fingerprint == second.portfolio.fingerprint


@pytest.mark.thorough
@pytest.mark.usefixtures("toy")
def test_what_served_before_a_first_survey_stays_where_it_was_timed(tmp_path: Path) -> None:
    """Programs of a device like it are kept at prices of this one, and at no others."""
    place = place_in(tmp_path / "cache")
    (first,) = survey_device(place, RUN, PLAN, Deadline(60), never, study="one")
    chosen = first.portfolio.entries
    dear = slow_beside(chosen, place)
    alike = replace(place.device.fingerprint, name="one like it")
    place = replace(place, store=TuningCache(tmp_path / "other.sqlite"))
    elsewhere = replace(first.portfolio, fingerprint=alike, entries=(*chosen, dear))
    place.store.put_portfolio(elsewhere, ())
    (second,) = survey_device(place, RUN, PLAN, Deadline(60), never, study="two")
    assert second.portfolio.fingerprint == place.device.fingerprint
    found = {each.key: each for each in second.portfolio.entries}
    assert {each.key for each in (*chosen, dear)} == set(found)
    assert found[dear.key].prices != dear.prices
    # Nothing but what its prices were there is known of one that was not timed here.
    survey = Survey(place, RUN, None, [Gemm(32, 32, 32)], "none")
    list(survey.learning.take(elsewhere))
    assert [*survey.learning.at_prices_of_now([dear], timed=True)] == []
    assert [*survey.learning.at_prices_of_now([dear], timed=False)] == [dear]


@pytest.mark.usefixtures("toy")
@pytest.mark.slow
def test_a_survey_goes_on_with_what_it_has_measured(tmp_path: Path) -> None:
    place, visits = place_in(tmp_path / "cache"), list[SurveyVisit]()

    def held(visits_wanted: int) -> Surveyed:
        until = len(visits) + visits_wanted
        (made,) = survey_device(
            place,
            RUN,
            PLAN,
            Deadline(60),
            lambda: len(visits) >= until,
            study="survey",
            watch=lambda *visit: visits.append(visit),
        )
        return made

    first, second = held(2), held(2)  # whose last visit tries nothing
    assert second.measurements > first.measurements
    stored = place.store.measurements(study="survey-float32")
    assert len(stored) >= second.measurements
    tried = Counter((str(each.problem), each.candidate) for each in stored)
    assert set(tried.values()) == {1}
    # What fits is known, as it was: prices are of all that was measured.
    whole = Survey(place, RUN, None, draw_problems(SMALL, 6, 3, "float32"), "survey-float32")
    list(whole.learning.recall("survey-float32"))
    whole.learning.book.learn()
    expected = {each.key: each.prices.tolist() for each in whole.learning.book.programs}
    for entry in second.portfolio.entries:
        assert list(entry.prices) == pytest.approx(expected[entry.key], rel=1e-9)


@pytest.mark.thorough
@pytest.mark.usefixtures("toy")
def test_time_that_is_left_is_for_more_problems(tmp_path: Path) -> None:
    """Drawn like the others, and visited after them."""
    place = place_in(tmp_path / "cache")
    for most in (6, 17):
        plan = replace(PLAN, most=most)
        (made,) = survey_device(place, RUN, plan, Deadline(60), never, study=f"of-{most}")
        drawn = draw_problems(SMALL, most, 3, "float32")
        expected = [each for each in drawn if each.layout == "nn"]
        found = place.store.measurements(study=f"of-{most}-float32")
        visited = list(dict.fromkeys(gemm_from_key(each.problem) for each in found))
        assert made.portfolio.shapes == len(expected)
        assert set(visited) == set(expected)
        assert set(visited[:4]) == set(expected[:4])


@pytest.mark.usefixtures("toy")
def test_what_failed_before_takes_no_prices_away(tmp_path: Path) -> None:
    place = place_in(tmp_path / "cache")
    (made,) = survey_device(place, RUN, PLAN, Deadline(60), never, study="one")
    problems = draw_problems(SMALL, 6, 3, "float32")
    entry = made.portfolio.entries[0]
    failed = Candidate(entry.family, entry.configuration), Measurement(Outcome.TIMEOUT)
    fingerprint = place.device.fingerprint
    place.store.add_measurements("two-float32", fingerprint, problems[0], "toy", [failed])
    survey = Survey(place, RUN, None, problems, "two-float32")
    list(survey.learning.recall("two-float32"))
    list(survey.learning.take(made.portfolio))
    known = {each.key: each.prices.tolist() for each in survey.learning.book.programs}
    assert known[entry.key] == list(entry.prices)


@pytest.mark.usefixtures("toy")
def test_who_asks_for_an_end_gets_what_there_is(tmp_path: Path) -> None:
    place, visits = place_in(tmp_path / "cache"), list[SurveyVisit]()
    found = list(
        survey_device(
            place,
            RUN,
            PLAN,
            Deadline(60),
            lambda: len(visits) >= 3,
            study="survey",
            watch=lambda *visit: visits.append(visit),
        )
    )
    assert len(visits) == 3
    assert [each.portfolio.shapes for each in found] == [2]


@pytest.mark.usefixtures("toy")
def test_a_preset_surveys_once(tmp_path: Path) -> None:
    problem = PresetProblem(Gemm(32, 32, 32), 20)
    preset = TuningPreset("tiny", "for tests", "toy", 4, (problem,), PLAN)
    surveyed = []
    for expected in (1, 1):
        (result,) = run_preset(
            preset, seconds=40, cache=tmp_path / "cache", surveyed=surveyed.append
        )
        assert len(surveyed) == expected
    assert result.status in (PresetStatus.TUNED, PresetStatus.KEPT)
    assert replace(preset, survey=None).digest != preset.digest


@pytest.mark.usefixtures("toy")
def test_a_survey_that_brought_nothing_is_held_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = PresetProblem(Gemm(32, 32, 32), 20)
    preset = TuningPreset("tiny", "for tests", "toy", 4, (problem,), PLAN)
    held = []
    monkeypatch.setattr(
        preset_run, "survey_device", lambda *_, **given: iter(held.append(given) or ())
    )
    for expected in (1, 2):
        list(run_preset(preset, seconds=40, cache=tmp_path / "cache"))
        assert len(held) == expected


FAULTS = {
    "percent = 50": ("percent = 100", "percent must be below 100"),
    "outer = [1, 96]": ("outer = [96, 1]", "outer must be two whole numbers, the lower first"),
    "dtypes = { float32 = 1 }": ("dtypes = { float7 = 1 }", r"dtypes\.float7 must be one of"),
    "most = 6": ("most = 5", "most must be no less than problems, 6, got 5"),
    "seed = 1": ("sed = 1", "seed is missing|sed is not a key|survey.seed"),
}


@pytest.mark.parametrize("old", FAULTS)
def test_faults_of_a_survey_name_file_and_key(tmp_path: Path, old: str) -> None:
    survey = (
        "survey = { outer = [1, 96], reduction = [1, 96], work = [100, 100000], problems = 6, "
        "most = 6, seed = 1, percent = 50, dtypes = { float32 = 1 } }\n"
    )
    text = (
        '[tiny]\nsummary = "x"\ntarget = "toy"\ntrials = 4\n'
        f'{survey}problems = [{{ shape = "8x8x8", dtype = "float32", seconds = 9 }}]\n'
    )
    (tmp_path / "presets.toml").write_text(text)
    assert read_presets(tmp_path / "presets.toml")["tiny"].survey is not None
    new, message = FAULTS[old]
    (tmp_path / "presets.toml").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        read_presets(tmp_path / "presets.toml")


class CompilingOnly:
    """A target of GPUs on a computer without: what is to be compiled is noted, and then it ends.

    Attributes:
        asked: problems, and what was to be compiled for them.
        tried: whether a candidate was to be measured.
    """

    compiles_ahead = True
    deadline: Deadline

    def __init__(self, target: Any) -> None:
        self._target = target
        self.asked: list[tuple[Gemm, Candidate]] = []
        self.tried = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @contextlib.contextmanager
    def evaluator(self, work: Any, beside: Any = None) -> Iterator[Any]:
        self.problem = work.problem
        yield self

    def prepare(self, candidates: list[Candidate]) -> None:
        self.asked += [(self.problem, each) for each in candidates]

    def is_ready(self, candidate: Candidate) -> bool:
        return (self.problem, candidate) in self.asked

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        self.tried = True
        return Measurement(Outcome.REJECTED, reason="this is no GPU")


def thin_kernels_on_an_h200(target: Any, folder: Path) -> DeviceContext:
    families = load_families(target="cuda", operation="gemm")
    cache = CacheLocations.at(folder / "cache").create()
    return DeviceContext(
        target,
        target.device(None, "h200"),
        {"skinny": families["skinny"]},
        TuningCache(cache.database),
        ProgramCache(cache.programs),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.cold
def test_every_program_for_few_rows_is_compiled_ahead_in_a_valid_call(
    dtype: str, tmp_path: Path
) -> None:
    target: Any = CompilingOnly(make_target("cuda"))
    shapes = [(1, 4096, 4096), (4096, 4096, 1), (8, 2048, 12288), (5000, 3000, 3)]
    problems = [Gemm(*shape, dtype=dtype) for shape in shapes]
    place = thin_kernels_on_an_h200(target, tmp_path)
    survey = Survey(place, RUN, target, problems, "ahead")
    known = worth_knowing(problems, target, place.device, place.families, RUN.seed)
    survey.hold(Until(Deadline(60), lambda: target.tried))
    ahead = [each for each in target.asked if each[0] not in problems]
    assert len(known) > 15
    skinny = place.families["skinny"]
    assert {program_of(skinny, each.configuration) for _, each in ahead} == {
        program_of(skinny, each.configuration) for each in known
    }
    for problem, each in ahead:
        planner = planner_of(skinny, each.configuration, dtype, place.device.limits)
        assert planner.valid(problem)


class SlowCompilers(CompilingOnly):
    """The same with compilers that take a while, and with times that were made up.

    Attributes:
        visited: problems in the order in which something was tried for them, and how much of it
            had been compiled for another one of the layout.
    """

    LOOKS = 2
    """How often somebody looks before a program has been compiled."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.visited: dict[Gemm, int] = {}
        self._looked: Counter[str] = Counter()

    def evaluator(self, work: Any, beside: Any = None) -> Any:
        return _Slow(self, work.problem)

    def ready(self, layout: str, candidate: Candidate) -> bool:
        self._looked[f"{layout} {candidate}"] += 1
        return self._looked[f"{layout} {candidate}"] > self.LOOKS


class _Slow(contextlib.AbstractContextManager["_Slow"]):
    compiles_ahead = True
    deadline: Deadline

    def __init__(self, compilers: SlowCompilers, problem: Gemm) -> None:
        self._compilers, self._problem = compilers, problem

    def prepare(self, candidates: list[Candidate]) -> None:
        self._compilers.asked += [(self._problem, each) for each in candidates]

    def is_ready(self, candidate: Candidate) -> bool:
        return self._compilers.ready(self._problem.layout, candidate)

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        compilers, problem = self._compilers, self._problem
        fixed = program_of(compilers.family, candidate.configuration)
        ahead = {
            program_of(compilers.family, each.configuration)
            for of, each in compilers.asked
            if of.layout == problem.layout and of is not problem
        }
        compilers.visited[problem] = compilers.visited.get(problem, 0) + (fixed in ahead)
        seconds = 1e-5 * (1 + sum(map(len, map(str, fixed.values()))) % 7)
        return Measurement(Outcome.OK, seconds, (seconds, seconds), 20, 0.1)

    def binary(self, candidate: Candidate) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""

    def __exit__(self, *raised: object) -> None:
        self.close()


@pytest.mark.cold
def test_other_layouts_are_compiled_for_while_the_plain_one_is_measured(tmp_path: Path) -> None:
    target: Any = SlowCompilers(make_target("cuda"))
    plain = [Gemm(1, 4096, 4096 + number) for number in range(4)]
    others = [Gemm(1, 4096, 2048, layout="nt"), Gemm(2, 4096, 2048, layout="tn")]
    place = thin_kernels_on_an_h200(target, tmp_path)
    target.family = place.families["skinny"]
    survey = Survey(place, RUN, target, [*others, *plain], "ahead")
    survey.hold(Until(Deadline(60), lambda: set(target.visited) >= {*plain, *others}))
    assert list(target.visited)[: len(plain)] == plain
    assert all(target.visited[each] for each in others)
    timed = [each for each in survey.learning.book.programs if each.timed]
    assert {each.key.layout for each in timed} == {"nn", "nt", "tn"}


class Overtaken(SlowCompilers):
    """The same, where time is over whenever something is to be compiled for further turns.

    Attributes:
        overtaken: whether that has happened.
    """

    overtaken = False

    def evaluator(self, work: Any, beside: Any = None) -> Any:
        return _Overtaken(self, work.problem)


class _Overtaken(_Slow):
    def prepare(self, candidates: list[Candidate]) -> None:
        super().prepare(candidates)
        compilers: Any = self._compilers
        if compilers.visited and self._problem not in compilers.visited:
            compilers.overtaken = True
            raise OutOfTimeError("the run is over: nothing more is asked of a worker")


@pytest.mark.cold
def test_time_that_is_over_while_compilers_are_asked_ends_a_survey_with_what_it_has(
    tmp_path: Path,
) -> None:
    target: Any = Overtaken(make_target("cuda"))
    problems = [Gemm(1, 4096, 4096 + number) for number in range(3)]
    place = thin_kernels_on_an_h200(target, tmp_path)
    target.family = place.families["skinny"]
    survey = Survey(place, RUN, target, [*problems, Gemm(1, 4096, 2048, layout="nt")], "ahead")
    survey.hold(Until(Deadline(60), lambda: target.overtaken))
    assert len([each for each in survey.learning.book.programs if each.timed]) > 5
