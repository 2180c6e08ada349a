"""Reports: what the page says, that it is sound HTML, and that nothing a study says gets out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from records import record
from report_studies import PROBLEM, failing_study, gpu_study, recorded_study

from autotune.core.configuration import Candidate, Configuration
from autotune.core.measurement import Outcome
from autotune.core.statistics import half_width_text
from autotune.reporting import charts, facts, roofline, winning
from autotune.reporting.explore import MOST_EXPLORED
from autotune.reporting.layout import Measure, duration_text, time_text
from autotune.reporting.page import page_of, render
from autotune.reporting.running import environment
from autotune.reporting.spaces import funnel_of
from autotune.reporting.study import FAILED, Study, Trial

LARGEST = 3_000_000
"""Bytes that a page may have beside Vega, whatever the studies have."""

VOID = {"meta", "link", "br"}
SECTIONS = [
    "overview", "winner", "progress", "importance", "parallel", "heat", "funnel", "time",
    "failures", "roofline", "resources", "environment",
]  # fmt: skip
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "<!-- <script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u2028\u2029\u202e\x1b[2J",
    "\ud800",
    "__proto__",
]


class Parsed(HTMLParser):
    """A page: its elements, which must close in order, its ids, references, headings, scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.inside: dict[str, list[tuple[str, ...]]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        assert len(found) == len(attributes), tag
        self.elements.append((tag, found))
        self.inside.setdefault(tag, []).append(tuple(self.open))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [str(each["id"]) for _, each in self.elements if "id" in each]


def rendered(*studies: Study) -> str:
    return render(page_of(studies), "/* Vega */")


def data_of(parsed: Parsed) -> Any:
    [text] = [each for each in parsed.text["script"] if each.startswith("{")]
    return json.loads(text)


CASES = {
    "one": [gpu_study()],
    "several": [gpu_study("a", 60, 1), gpu_study("b", 90, 2), recorded_study()],
    "only failures": [failing_study()],
    "one trial": [gpu_study(count=1, seed=3)],
    "no trials": [gpu_study(count=0)],
    "a recording": [recorded_study()],
}


@pytest.mark.parametrize("studies", CASES.values(), ids=CASES.keys())
def test_a_page_is_sound(studies: list[Study]) -> None:
    parsed = Parsed(rendered(*studies))
    assert len(parsed.ids) == len(set(parsed.ids))
    referred = [str(each["href"])[1:] for each in parsed.all("a")]
    referred += [str(each[key]) for _, each in parsed.elements for key in each
                 if key in ("aria-labelledby", "aria-describedby", "for")]  # fmt: skip
    assert set(referred) <= set(parsed.ids)
    assert [each["id"] for each in parsed.all("section")] == SECTIONS
    assert [str(each["href"])[1:] for each in parsed.all("a")][1:] == SECTIONS

    levels = [int(tag[1]) for tag, _ in parsed.elements if tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(parsed.all(landmark)) == 1


@pytest.mark.parametrize("studies", CASES.values(), ids=CASES.keys())
def test_every_chart_has_its_table_and_its_specification(studies: list[Study]) -> None:
    page = page_of(studies)
    parsed = Parsed(render(page, ""))
    figures = [figure for section in page.sections for figure in section.figures]
    assert sum("figure" in inside for inside in parsed.inside["table"]) == len(figures)
    assert all("caption" in parsed.inside for _ in figures)
    data = data_of(parsed)
    assert set(data["figures"]) == {figure.id for figure in figures}
    for section in page.sections:
        assert section.text or section.figures or section.tables or section.cards, section.id
        for table in [*section.tables, *(figure.table for figure in section.figures)]:
            assert set(table.numeric) <= set(table.header)
            assert all(len(row) == len(table.header) for row in table.rows)
    # Columns are sorted by buttons.
    assert all(inside[-1] == "th" for inside in parsed.inside["button"] if "table" in inside)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_study_says_stays_text(text: str) -> None:
    study = gpu_study(count=40, seed=4)
    first = replace(
        study.trials[0],
        family=text,
        configuration={text: text, "x": 1},
        outcome=Outcome.OK,
        value=1e-9,
        interval=None,
        reason=text,
        details={text: text, "registers": 32},
    )
    failed = replace(first, number=99, outcome=FAILED, value=None)
    run = {**study.runs[0], "sampler": text, "toolchain": {text: text}, "spent_s": {text: text}}
    hostile = replace(
        study, name=text, trials=[first, *study.trials[1:], failed], device=text, runs=(run,),
        source=text, families=(text,),
    )  # fmt: skip
    plain, other = Parsed(rendered(study, gpu_study("b"))), rendered(hostile, gpu_study("b"))
    parsed = Parsed(other)
    assert len(parsed.all("script")) == len(plain.all("script")) == 3
    assert parsed.all("img") == []
    assert not any(key.startswith("on") for _, each in parsed.elements for key in each)
    assert data_of(parsed)["explored"]["subjects"]
    assert "\x1b" not in other
    assert "49" not in parsed.text["h1"][0]
    other.encode("utf-8", "replace")
    # No name of a study is part of an expression, which Vega would run.
    assert all(text not in each for each in expressions(data_of(parsed)["figures"]))


def expressions(spec: Any) -> list[str]:
    """What Vega-Lite takes for an expression, or for the name of a field."""
    if isinstance(spec, list):
        return [each for part in spec for each in expressions(part)]
    if not isinstance(spec, dict):
        return []
    keys = ("field", "test", "expr", "calculate", "filter")
    own = [str(value) for key, value in spec.items() if key in keys]
    return own + [each for key, part in spec.items() if key != "values"
                  for each in expressions(part)]  # fmt: skip


def test_the_page_asks_for_nothing() -> None:
    page = rendered(gpu_study())
    parsed = Parsed(page)
    policies = [each["content"] for each in parsed.all("meta") if "http-equiv" in each]
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none';")
    for _, attributes in parsed.elements:
        for key in ("src", "href", "action", "data"):
            assert str(attributes.get(key, "#")).startswith(("#", "data:"))
    assert "http://" not in page
    assert "https://" not in page


def test_a_large_study_makes_a_page_of_bounded_size() -> None:
    study = gpu_study(count=20_000)
    page = rendered(study)
    assert len(page) < LARGEST
    ok = len(study.ranked)
    assert f"{MOST_EXPLORED:,} trials are here, of {ok:,}" in page
    timed = [trial for trial in study.trials if trial.value is not None]
    assert len(timed) < 20_000
    assert f"1,500 of {len(timed):,} timed trials" in page
    data = data_of(Parsed(page))
    shown = {row[0] for each in data["explored"]["subjects"] for row in each["rows"]}
    assert len(shown) == MOST_EXPLORED
    assert {trial.number for trial in study.ranked[:100]} <= shown
    # Lines of the best so far are of all trials.
    [points, lines] = data["figures"]["progress-chart"][0]["layer"]
    best = max(row["y"] for row in lines["data"]["values"])
    assert best == Measure.of([study]).at(study, study.ranked[0].value or 0.0)
    assert len(points["data"]["values"]) == 1500


def test_the_words_are_those_of_the_numbers() -> None:
    study = gpu_study(count=300)
    page = rendered(study)
    best = study.ranked[0]
    assert str(best) in page
    assert time_text(best.value or 0.0) in page
    assert "waiting for compilers" in page
    assert "expected &#39;;&#39; in line 12" in page
    assert "1980 MHz = 66,908 GFLOP/s" in page  # 132 x 128 x 2 x 1.98 GHz
    assert "Example GPU" in page


def winning_study(rank: int = 3, **changes: Any) -> Study:
    """A study whose record's winner is not the fastest of its search, and slower in the finals."""
    study = gpu_study()
    drawn = study.ranked[rank]
    winner = replace(drawn, configuration={**drawn.configuration, "order": "stored"})
    seconds = 1.1 * (winner.value or 0.0)
    kept = record(
        candidate=Candidate(winner.family, Configuration(winner.configuration)),
        median_s=seconds,
        interval_s=(seconds, seconds),
        **changes,
    )
    trials = [winner if each is drawn else each for each in study.trials]
    return replace(study, trials=trials, record=kept)


def test_the_stored_winner_is_marked_in_every_chart_of_trials() -> None:
    """With the number of the search and that of the finals, told apart by their shapes."""
    for rank in (3, 40):
        study = winning_study(rank)
        measure, winner = Measure.of([study]), study.ranked[rank]
        assert study.stored is winner
        assert study.record is not None
        numbers = [measure.at(study, each) for each in (winner.value, study.record.median_s)]
        drawn = [
            charts.progress([study], measure, by_time=False),
            charts.contenders(study, measure),
            charts.resource([study], measure, "registers"),
            roofline.chart([study]),
        ]
        for spec in drawn:
            [layer] = [each for each in spec["layer"] if each["mark"].get("style") == "stored"]
            rows = layer["data"]["values"]
            assert [row["k"] for row in rows] == [charts.SEARCH, charts.FINALS]
            assert [row["y"] for row in rows] == pytest.approx(numbers, rel=1e-3)
        contenders = [row["n"] for row in drawn[1]["data"]["values"]]
        assert any(each.endswith(f"#{winner.number}") for each in contenders)
        subjects = page_of([study]).explored["subjects"]
        marked = [each for each in subjects if each["stored"] == winner.number]
        assert [each["name"] for each in marked] == [winner.family]
        assert any(row[0] == winner.number for row in marked[0]["rows"])
    other = gpu_study(record=record(candidate=Candidate("block", Configuration({"sm": 7}))))
    assert other.stored is None
    assert "stored winner, in the finals" not in rendered(other)


def test_a_card_tells_the_finals_from_the_search_and_noise_from_none() -> None:
    study = winning_study()
    [card] = winning.overview([study]).cards
    lines = dict(card.lines)
    assert card.unit == "GFLOP/s in the finals"
    assert lines["finals"].endswith("less than ±0.1%, in turns with others")
    assert time_text(study.ranked[3].value or 0.0) in lines["search"]
    assert card.badge == ""
    [card] = winning.overview([winning_study(noise="others kept 3 of 4 processors busy")]).cards
    assert (card.badge, dict(card.lines)["noisy"]) == (
        "noisy",
        "others kept 3 of 4 processors busy",
    )
    [card] = winning.overview([gpu_study()]).cards
    assert (card.badge, card.unit) == ("", "GFLOP/s")
    loose = Trial(1, "f", {"x": 1}, Outcome.OK, 1e-3, (0.5e-3, 1.5e-3))
    [card] = winning.overview([Study("loose", [loose])]).cards
    assert (card.badge, dict(card.lines)["noisy"]) == (
        "noisy",
        "the median is uncertain by ±50.0%",
    )
    assert "±0.0" not in rendered(study, winning_study())


def test_the_heat_map_opens_with_what_matters_most() -> None:
    """In the made-up studies speed follows `sm` and `tx`, and `order` does nothing."""
    study = gpu_study(count=300)
    for subject in page_of([study]).explored["subjects"]:
        names = [each["name"] for each in subject["parameters"]]
        assert {names[place] for place in subject["first"]} == {"sm", "tx"}
    [single] = page_of([recorded_study()]).explored["subjects"]
    assert single["first"] == [0, 1]


def test_columns_that_are_equal_in_all_studies_are_left_out() -> None:
    alike = [gpu_study("a", 60, 1), gpu_study("b", 90, 2)]
    [table] = winning.overview(alike).tables
    assert tuple(table.header[:3]) == ("study", "trials", "OK")
    assert all(len(row) == len(table.header) for row in table.rows)
    [table] = winning.overview([*alike, recorded_study()]).tables
    assert tuple(table.header[:4]) == ("study", "problem", "device", "sampler")


def test_a_record_says_which_version_where_no_run_does() -> None:
    found = record(version="0.0.9")
    for runs, version in (
        ((), "0.0.9"),
        (({"seed": 1},), "0.0.9"),
        (({"version": "0.2"},), "0.2"),
    ):
        [table] = environment([gpu_study(runs=runs, record=found)]).tables
        assert ["autotune", version] in [list(row) for row in table.rows]


class TestFacts:
    def test_the_best_so_far_never_gets_worse(self) -> None:
        study = gpu_study()
        bests = [best for _, best in facts.best_so_far(study) if best is not None]
        assert bests == sorted(bests, reverse=True)
        assert bests[-1] == study.ranked[0].value
        assert [each.value for each in facts.improvements(study)] == sorted(
            set(bests), reverse=True
        )

    def test_ties_are_the_intervals_that_reach_the_fastest_ones(self) -> None:
        trials = [
            Trial(1, "f", {"x": 1}, Outcome.OK, 1.0, (0.9, 1.1)),
            Trial(2, "f", {"x": 2}, Outcome.OK, 1.1, (1.05, 1.2)),
            Trial(3, "f", {"x": 3}, Outcome.OK, 1.2, (1.15, 1.3)),
            Trial(4, "f", {"x": 4}, Outcome.OK, 1.05, None),
        ]
        assert facts.ties(Study("s", trials)) == {2}

    def test_failures_that_differ_in_numbers_are_one_row(self) -> None:
        [row] = facts.failures(failing_study(12))
        assert (row.count, row.reason) == (12, "line 1")
        assert sum(each.count for each in facts.failures(gpu_study(count=400))) == sum(
            not trial.ok for trial in gpu_study(count=400).trials
        )

    def test_wall_time_adds_up(self) -> None:
        study = gpu_study()
        assert sum(facts.spent(study).values()) == pytest.approx(63.0)
        twice = replace(study, runs=study.runs * 2)
        assert sum(facts.spent(twice).values()) == pytest.approx(126.0)
        alone = facts.spent(replace(study, runs=()))
        assert alone == {
            "verifying and timing": pytest.approx(
                sum(trial.detail("trial_s") or 0.0 for trial in study.trials)
            )
        }

    def test_a_sample_keeps_the_fastest_and_the_order(self) -> None:
        trials = gpu_study(count=500).trials
        chosen = facts.sample(trials, 100)
        assert len(chosen) == 100
        numbers = [trial.number for trial in chosen]
        assert numbers == sorted(numbers)
        timed = sorted((t for t in trials if t.value is not None), key=lambda t: t.value or 0.0)
        assert {trial.number for trial in timed[:25]} <= set(numbers)

    def test_trials_to_near_the_best(self) -> None:
        values = [2.0, None, 1.04, 1.0]
        trials = [
            Trial(n, "f", {"x": n}, Outcome.OK if value else Outcome.TIMEOUT, value)
            for n, value in enumerate(values, 1)
        ]
        assert facts.trials_to_near(Study("s", trials)) == 3
        assert facts.trials_to_near(failing_study()) is None

    def test_a_compile_that_trials_share_counts_once(self) -> None:
        """Parameters passed at the call make several trials of one program."""
        trials = [
            Trial(number, "f", {"x": number}, Outcome.OK, 1.0, details=details)
            for number, details in enumerate(
                (
                    *[{"compile_s": 2.0, "program": "f_1", "trial_s": 0.5}] * 4,
                    {"compile_s": 3.0, "program": "f_2", "trial_s": 0.5},
                    {"compile_s": 2.5, "program": "f_1"},  # anew, in another run
                    {"trial_s": 0.5},  # kept
                ),
                1,
            )
        ]
        [row] = facts.family_times(Study("s", trials))
        assert (row.compile_s, row.trial_s) == (7.5, 3.0)
        before = [replace(each, details={"compile_s": 2.0}) for each in trials[:3]]
        [row] = facts.family_times(Study("s", before))  # that did not say of which program
        assert (row.compile_s, row.trial_s) == (6.0, None)


def abandoned(trials: Sequence[Trial]) -> list[Trial]:
    """Those that are OK, as if something else had been faster."""
    return [replace(trial, outcome=Outcome.ABANDONED) for trial in trials if trial.ok]


class TestRoofline:
    def test_no_roof_is_made_up(self) -> None:
        study = gpu_study(runs=())
        [only] = roofline.roofs([study])
        assert only.name.startswith("fastest measured")
        rate = study.rate(study.ranked[0].value or 1.0)
        assert only.gflops == pytest.approx(rate)

    def test_the_slanted_roof_needs_two_problems(self) -> None:
        thin = replace(PROBLEM, n=16)
        studies = [gpu_study("a"), gpu_study("b", problem=thin)]
        slanted = [roof for roof in roofline.roofs(studies) if roof.gbytes is not None]
        assert len(slanted) == 1
        for study in studies:
            at = roofline.intensity(study)
            assert at == pytest.approx(study.problem.flops / study.problem.traffic)
            rate = study.rate(study.ranked[0].value or 1.0)
            assert slanted[0].at(at) >= rate * (1 - 1e-9)

    def test_points_at_one_intensity_have_no_slanted_roof(self) -> None:
        """It would pass through the fastest one."""
        thin = replace(PROBLEM, n=16)
        unranked = gpu_study("b", problem=thin, trials=abandoned(gpu_study().trials))
        for studies in ([gpu_study("a"), unranked], [gpu_study("a"), gpu_study("c", seed=2)]):
            assert all(roof.gbytes is None for roof in roofline.roofs(studies))

    def test_sweeps_without_an_ok_trial_are_drawn(self) -> None:
        problems = (PROBLEM, replace(PROBLEM, n=16))
        studies = [
            gpu_study(f"study {each.n}", problem=each, trials=abandoned(gpu_study().trials))
            for each in problems
        ]
        assert all(roof.gbytes is None for roof in roofline.roofs(studies))
        assert "Every measured trial, and the roofs that are known" in rendered(*studies)

    def test_a_recording_has_no_roofline(self) -> None:
        assert roofline.intensity(recorded_study()) is None


def test_the_funnel_only_narrows() -> None:
    found = funnel_of(gpu_study(count=200))
    counts = [count for stage, count in found.stages if stage != "tried"]
    assert counts == sorted(counts, reverse=True)
    assert found.stages[-1] == ("timed to the end", len(gpu_study(count=200).ranked))


def test_texts_of_amounts() -> None:
    assert half_width_text(0.0) == half_width_text(0.0004) == "less than ±0.1%"
    assert half_width_text(0.0041) == "±0.4%"
    assert half_width_text(1) == "±100.0%"
    assert half_width_text(47.44) == "more than ±100%"
    assert [time_text(s) for s in (2.5, 2.5e-3, 2.5e-6, 2.5e-9)] == [
        "2.5 s", "2.5 ms", "2.5 µs", "2.5 ns",
    ]  # fmt: skip
    assert [duration_text(s) for s in (2.0, 125, 3660)] == ["2.0 s", "2 min 5 s", "1 h 1 min"]


def test_the_front_of_time_and_energy_is_on_the_page_where_joules_were_observed() -> None:
    """A trial between two others in time and below none of them in energy is beaten."""
    measured = [(1.0, 9.0), (2.0, 4.0), (3.0, 5.0), (4.0, 1.0), (5.0, None)]
    trials = [
        Trial(
            number,
            "tiled",
            {"x": number},
            Outcome.OK,
            seconds,
            details={} if joules is None else {"joules": joules},
        )
        for number, (seconds, joules) in enumerate(measured, start=1)
    ]
    study = Study("thrifty", trials, target="cpu", problem=PROBLEM)
    known, front = facts.fronts(study)
    assert [trial.number for trial in known] == [1, 2, 3, 4]
    assert [trial.number for trial in front] == [1, 2, 4]
    page = page_of([study])
    figures = {each.id: each for section in page.sections for each in section.figures}
    told = [row[0] for row in figures["front-chart"].table.rows]
    assert len(told) == 3
    others = [each.id for part in page_of([gpu_study()]).sections for each in part.figures]
    assert "front-chart" not in others
