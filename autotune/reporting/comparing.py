"""Samplers compared on recordings: one page, and its charts and tables as files for a paper."""

from __future__ import annotations

import csv
import io
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from autotune.core import arguments
from autotune.core.configuration import Candidate
from autotune.core.version import __version__
from autotune.core.writing import deliver
from autotune.reporting import facts, running, spaces
from autotune.reporting.charts import category, layer, quantity, tooltip
from autotune.reporting.finding import Finder
from autotune.reporting.layout import UNKNOWN, Cell, Figure, Page, Section, Spec, Table, cell
from autotune.reporting.page import bundle, drawn, render
from autotune.reporting.study import Study
from autotune.research import (
    RecordedSpace,
    Summary,
    expected_random_best,
    isolated,
    paired,
    read_recorded,
    replay,
)
from autotune.research.scoring import FIRST_SCORED, cut_off
from autotune.search.importance import interactions
from autotune.space import SpaceUnion

DRAWN = (".svg", ".pdf")
"""Kinds of files that every chart is written as."""

MOST_INTERACTIONS = 20
"""Pairs of parameters that are shown of a recording."""

_POINTS = 300

_Rows: TypeAlias = list[Sequence[Cell | str]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Samplers on recordings, which have different names.

    Attributes:
        recordings: the spaces.
        studies: the same files as reports read them.
        summaries: by the name of the recording and the sampler.
    """

    recordings: Sequence[RecordedSpace]
    studies: Sequence[Study]
    summaries: Mapping[tuple[str, str], Summary]

    @classmethod
    def of(
        cls,
        files: Sequence[Path],
        samplers: Sequence[str],
        finder: Finder,
        *,
        trials: int | None = None,
        seeds: int,
        workers: int | None = None,
        told: Callable[[str, str, Summary], None] = lambda name, sampler, summary: None,
    ) -> Comparison:
        """Search the recordings in files with each sampler.

        Args:
            files: the recordings; of those of one name, all but the first are numbered.
            samplers: as `autotune.research.replay` takes them, each once.
            finder: reads the files as reports do.
            trials: evaluations of a run; None goes to the cut-off of each space.
            seeds: runs of each sampler.
            workers: processes; None takes one per processor.
            told: called with the name of a recording, a sampler and what it came to.

        Raises:
            InputError: a file cannot be read or is given twice, or a number is less than 1.
            AutotuneError: as `autotune.research.replay`.
        """
        real = [os.path.realpath(path) for path in files]
        for path in real:  # the runs of one given twice would count twice as evidence
            arguments.must("a file", "given only once", path, real.count(path) == 1)
        names: dict[str, RecordedSpace] = {}
        for recorded in map(read_recorded, files):
            own = (recorded.name, *(f"{recorded.name} ({n})" for n in range(2, len(files) + 1)))
            name = next(each for each in own if each not in names)
            names[name] = replace(recorded, name=name)
        found = finder.find_all([str(path) for path in files])
        studies = [replace(study, name=name) for study, name in zip(found, names, strict=True)]
        replays = [
            replay(
                recorded,
                samplers,
                trials=max(cut_off(recorded.values), FIRST_SCORED) if trials is None else trials,
                seeds=seeds,
                workers=workers,
            )
            for recorded in names.values()
        ]
        summaries = {}
        for name, runs in zip(names, replays, strict=True):
            for sampler, summary in runs:
                summaries[name, sampler] = summary
                told(name, sampler, summary)
        return cls(list(names.values()), studies, summaries)

    @property
    def samplers(self) -> list[str]:
        """The samplers, in their order."""
        return list(dict.fromkeys(sampler for _, sampler in self.summaries))

    def page(self) -> Page:
        """All of it as a page."""
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        several = len(self.recordings)
        return Page(
            title=f"{len(self.samplers)} samplers on {several} recorded space"
            + ("s" if several > 1 else ""),
            subtitle=", ".join(dict.fromkeys(one.device for one in self.recordings if one.device)),
            sections=[
                self._scores(),
                self._curves(),
                spaces.importance(facts.importance_of(self.studies)),
                self._interactions(),
                self._portability(),
                self._recordings(),
                spaces.funnel({study.name: spaces.funnel_of(study) for study in self.studies}),
                running.failures(self.studies),
                _environment(self.studies),
            ],
            foot=f"Made by autotune {__version__} on {made}.",
        )

    def _scores(self) -> Section:
        """Both scores and the aggregate ones, and samplers in pairs."""
        numeric = (
            *("seeds", "cut-off score", "±", "fixed-budget score", "aggregate", "in seconds"),
            *("95% after", "99% after", "CPU ms"),
        )
        rows: _Rows = [
            (name, sampler, *_numbers(summary))
            for (name, sampler), summary in self.summaries.items()
        ]
        scores = Table("scores", "Scores", ("space", "sampler", *numeric), rows, numeric)
        told = [
            one.name
            for one in self.recordings
            if all(self.summaries[one.name, each].paper.telling for each in self.samplers)
        ]
        pairs: _Rows = []
        for one, other in combinations(self.samplers, 2) if told else ():
            first, second = (
                [self.summaries[name, each].paper.scores for name in told] for each in (one, other)
            )
            found = paired(first, second)
            numbers = (found.difference, found.low, found.high)
            wins = Cell(f"{found.ahead} of {len(told)}", found.ahead)
            pairs.append(
                (
                    one,
                    other,
                    *(cell(each, "+.3f") for each in numbers),
                    cell(found.p, ".2g"),
                    wins,
                )
            )
        compared = ("difference", "at least", "at most", "p", "spaces ahead")
        text = (
            "The cut-off score is the part of random search's regret that a run saves: the mean "
            "over evaluations from the tenth (or the middle, if it comes first) to the one where "
            "random search is expected to have gone 95% of the way from the median to the "
            "optimum. 0 is random search, 1 is within the recording's noise of it at once. The "
            "fixed-budget score goes to the end of the budget and knows no noise. Aggregate "
            "scores are those of the community's methodology, in evaluations and in seconds of "
            "evaluations: to as many average ones', for which runs of cheap ones go on.",
            "Pairs are of cut-off scores, over the same spaces and seeds. Intervals (95%) are of "
            "a paired bootstrap over both, too narrow where these are few, and none of a single "
            "run. p is of a sign-flip test over spaces, or over the seeds of a single one, and "
            "empty where there are fewer than six.",
        )
        header = ("sampler", "less sampler", *compared)
        in_pairs = Table("pairs", "Samplers in pairs", header, pairs, compared)
        return Section("scores-section", "Scores", text, (), (), [scores, in_pairs])

    def _curves(self) -> Section:
        """The fraction of the optimum's speed over the evaluations."""
        numeric = ("evaluation", "median", "10th percentile", "90th percentile", "random")
        rows: _Rows = []
        variants = []
        for one in self.recordings:
            of_space = {each: self.summaries[one.name, each] for each in self.samplers}
            budget = next(iter(of_space.values())).budget
            random = one.optimum / expected_random_best(one.values, budget)
            points = []
            for sampler, summary in of_space.items():
                curves = zip(summary.median, summary.low, summary.high, random, strict=True)
                for number, (middle, low, high, drawn_at_random) in enumerate(curves, 1):
                    if (number - 1) % max(1, budget // _POINTS) and number < budget:
                        continue
                    numbers = (number, middle, low, high, drawn_at_random)
                    rows.append(
                        (one.name, sampler, *(cell(float(each), ".4g") for each in numbers))
                    )
                    points.append(_point(sampler, number, middle, low, high))
            points += [
                _point("random search, expected", number, each, each, each)
                for number, each in enumerate(random, 1)
            ]
            variants.append((one.name, _curve(points)))
        figure = Figure(
            "curves",
            "Convergence",
            "The fraction of the optimum's speed that the best configuration so far has: medians "
            "over the seeds, with the 10th and 90th percentile as a band.",
            variants,
            Table("curves-table", "Convergence", ("space", "sampler", *numeric), rows, numeric),
            choice="Space",
        )
        return Section("curves-section", "Convergence", (), (), [figure])

    def _interactions(self) -> Section:
        """Pairs of parameters that matter together."""
        rows: _Rows = []
        for study in self.studies:
            for family in dict.fromkeys(trial.family for trial in study.ranked):
                own = [trial for trial in study.ranked if trial.family == family]
                of_family = f"{family}." if len({each.family for each in study.ranked}) > 1 else ""
                found = interactions(
                    [trial.configuration for trial in own], [trial.value or 1.0 for trial in own]
                )
                rows += [
                    (
                        study.name,
                        of_family + each.one,
                        of_family + each.other,
                        cell(each.share, ".2%"),
                    )
                    for each in found[:MOST_INTERACTIONS]
                ]
        header = ("study", "parameter", "with", "share")
        table = Table("interactions", "Interactions of two parameters", header, rows, ("share",))
        text = (
            "Of the variance of the times' logarithms, the share that two parameters explain "
            "together beyond the sum of what each explains alone (functional ANOVA), over all "
            "configurations that ran.",
        )
        return Section("interactions-section", "Interactions", text, (), (), [table])

    def _portability(self) -> Section:
        """The speed of each recording's fastest configuration on the others."""
        names = [one.name for one in self.recordings]
        rows: _Rows = []
        cells = []
        for there in self.recordings:
            found = [_carried(there, here) for here in self.recordings]
            rows.append((there.name, *(cell(each, ".3f") for each in found)))
            cells += [
                {"a": there.name, "b": name, "v": round(each, 3)}
                for name, each in zip(names, found, strict=True)
                if each is not None
            ]
        axes = {
            "y": category("a", sort=None, title="fastest of"),
            "x": category("b", sort=None, title="measured on", axis={"labelAngle": -30}),
        }
        shade = quantity("v", "fraction of the optimum", scale={"domain": [0, 1]})
        text = {"field": "v", "format": ".2f"}
        readable = {"condition": {"test": "datum.v > 0.5", "value": "white"}, "value": "black"}
        told = tooltip(a="fastest of", b="measured on", v="fraction of the optimum's speed")
        spec: Spec = {
            "data": {"values": cells},
            "encoding": axes,
            "layer": [
                {"mark": "rect", "encoding": {"color": shade, "tooltip": told}},
                {"mark": "text", "encoding": {"text": text, "color": readable}},
            ],
            "height": 40 + 36 * len(names),
        }
        figure = Figure(
            "portability",
            "Portability",
            "A row for the fastest configuration of each recording: the fraction of the optimum's "
            "speed that it has on the others. Empty where it was not recorded, or failed.",
            [("", spec)],
            Table("portability-table", "Portability", ("fastest of", *names), rows, names),
        )
        return Section("portability-section", "Portability", (), (), [figure])

    def _recordings(self) -> Section:
        """The recordings, and their isolated configurations."""
        numeric = ("configurations", "failing", "optimum", "noise", "cut-off")
        rows: _Rows = []
        lonely: _Rows = []
        for one in self.recordings:
            paper = self.summaries[one.name, self.samplers[0]].paper
            numbers = (one.size, one.failures, one.told(one.optimum), one.noise, paper.cut_off)
            texts = (",", ",", ".5g", ".2%", ",")
            cells = (cell(each, text) for each, text in zip(numbers, texts, strict=True))
            rows.append((one.name, one.format, one.device, one.unit, *cells))
            lonely += [
                (
                    one.name,
                    str(each.point),
                    cell(one.told(each.value), ".5g"),
                    cell(each.ahead, ".1%"),
                )
                for each in isolated(one)
            ]
        header = ("space", "format", "device", "unit", *numeric)
        tables = [Table("recordings", "Recordings", header, rows, numeric)]
        if lonely:
            columns = ("space", "configuration", "value", "ahead by")
            title = "Isolated configurations: far ahead of every neighbour"
            tables.append(Table("isolated", title, columns, lonely, columns[2:]))
        notes = [f"{one.name}: {one.note}." for one in self.recordings if one.note]
        text = (
            *notes,
            "A configuration is isolated if it is among the fastest hundredth and a tenth faster "
            "than every recorded one that differs in one parameter: a true optimum or a glitch, "
            "which only more measurements can tell. All of them count in the scores.",
        )
        return Section("recordings-section", "Recordings", text, (), (), tables)


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write the page as `index.html`, its charts as SVG and PDF and its tables as CSV.

    Raises:
        AutotuneError: a file cannot be written.
        MissingDependencyError: what draws the charts is not installed.
    """
    page = comparison.page()
    files = {"index.html": render(page, bundle()).encode("utf-8", "replace")}
    for section in page.sections:
        for figure in section.figures:
            for name, spec in figure.variants:
                stem = figure.id + (f"-{_file_name(name)}" if name else "")
                files |= {f"{stem}{kind}": drawn(spec, kind) for kind in DRAWN}
    for table in page.tables:
        files[f"{table.id.removesuffix('-table')}.csv"] = _csv(table).encode()
    for name, content in files.items():
        deliver(folder / name, content)
    return [folder / name for name in files]


def _csv(table: Table) -> str:
    """A table with numbers in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.header)
    for row in table.rows:
        cells = (each if isinstance(each, Cell) else Cell(each) for each in row)
        texts = (each.text if each.order is None else each.order for each in cells)
        writer.writerow(["" if each == UNKNOWN else each for each in texts])
    return out.getvalue()


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)


def _numbers(summary: Summary) -> Iterator[Cell]:
    paper = summary.paper
    error = summary.error_of(paper.scores)
    yield cell(len(summary.scores))
    yield cell(paper.score if paper.telling else None, ".3f")
    yield cell(error if paper.telling else None, ".3f")
    yield cell(summary.score if summary.telling else None, ".3f")
    yield cell(paper.aggregate, ".3f")
    yield cell(paper.aggregate_s, ".3f")
    for count in (summary.n95, summary.n99):
        yield Cell(f">{summary.budget}") if count is None else cell(count, "g")
    yield cell(summary.cpu_ms, ".2f")


def _point(sampler: str, number: int, middle: float, low: float, high: float) -> dict[str, Any]:
    numbers = {"x": number, "y": middle, "a": low, "b": high}
    return {"s": sampler} | {name: round(float(each), 4) for name, each in numbers.items()}


def _curve(points: Sequence[Mapping[str, Any]]) -> Spec:
    color = {"field": "s", "type": "nominal", "title": None, "sort": None}
    x = quantity("x", "evaluations", scale={"nice": False})
    y = quantity("y", "fraction of the optimum's speed", scale={"zero": False})
    told = tooltip(s="sampler", x="evaluations", y="median", a="10th", b="90th percentile")
    band = {"type": "area", "opacity": 0.15, "interpolate": "step-after"}
    line = {"type": "line", "strokeWidth": 2, "interpolate": "step-after"}
    spec = layer(points, line, x=x, y=y, color=color, tooltip=told)
    ends = {"y": {**y, "field": "a"}, "y2": {"field": "b"}}
    return {
        "data": spec["data"],
        "layer": [
            {"mark": band, "encoding": {"x": x, "color": color, **ends}},
            {"mark": line, "encoding": spec["encoding"]},
        ],
        "height": 320,
    }


def _carried(there: RecordedSpace, here: RecordedSpace) -> float | None:
    """The fraction of the optimum's speed here of the fastest configuration there."""
    best = there.space[int(np.nanargmin(there.values))]
    if isinstance(best, Candidate) != isinstance(here.space, SpaceUnion) or best not in here.space:
        return None
    value = here.value(best)
    return None if value is None else here.optimum / value


def _environment(studies: Sequence[Study]) -> Section:
    """The machine that compared, and those that measured."""
    section = running.environment(studies)
    packages = {name: version(name) for name in ("numpy", "optuna")}
    own = {"autotune": __version__, "Python": platform.python_version(), **packages}
    own |= {"platform": platform.platform(), "processor": platform.machine()}
    table = Table("compared-on", "Compared on", ("what", "is"), list(own.items()))
    return Section(section.id, section.title, (), (), (), [table, *section.tables])
