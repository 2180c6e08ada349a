"""Tuning presets: lists of problems that one run tunes, as data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError, ProblemError, UnknownNameError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.core.toml_table import Table
from autotune.operations.problem import GEMM, Gemm, Problem
from autotune.surveying.portfolios import OwnPlan, SurveyPlan
from autotune.surveying.sampling import Range

DTYPE_S = 240.0
"""Seconds for each element type, where users say which: 12 minutes for three."""


@dataclass(frozen=True, slots=True)
class PresetProblem:
    """One problem of a preset.

    Attributes:
        problem: what is tuned.
        seconds: what it is meant to take, all in.
    """

    problem: Problem
    seconds: float


@dataclass(frozen=True, slots=True)
class TuningPreset:
    """Problems to be tuned in one run, each starting from what those before it learned.

    Attributes:
        name: what users call it.
        summary: one line for listings.
        target: where it runs unless told otherwise.
        trials: the most configurations tried for one problem.
        problems: in the order they are tuned.
        survey: what the device's portfolio and model are made with; None makes none.
        operation: what its problems are of.
        grows: whether it is the same preset when problems or their seconds have changed.
    """

    name: str
    summary: str
    target: str
    trials: int
    problems: tuple[PresetProblem, ...]
    survey: SurveyPlan | OwnPlan | None = None
    operation: str = GEMM.name
    grows: bool = False

    @property
    def seconds(self) -> float:
        """What the whole run may take."""
        return sum(each.seconds for each in self.problems)

    def of_dtypes(self, dtypes: Sequence[str]) -> TuningPreset:
        """The same shapes for other element types, each with `DTYPE_S` and a survey of its own.

        A type that the preset has no problems of takes those of its first one.

        Args:
            dtypes: their names, in the order in which they are tuned.

        Raises:
            UnknownNameError: there is no such type; the message lists those there are.
        """
        wanted = dict.fromkeys(dtypes)
        for dtype in wanted:
            if dtype not in DTYPES:
                raise UnknownNameError(must_be("dtype", dtype, DTYPES))
        problems = [each for dtype in wanted for each in self._of_dtype(dtype)]
        survey = self.survey
        if isinstance(survey, SurveyPlan):
            survey = replace(survey, shares=dict.fromkeys(wanted, 1.0))
        return replace(self, problems=tuple(problems), survey=survey)

    def _of_dtype(self, dtype: str) -> Iterator[PresetProblem]:
        first = self.problems[0].problem.dtype
        own = any(each.problem.dtype == dtype for each in self.problems)
        listed = [
            each for each in self.problems if each.problem.dtype == (dtype if own else first)
        ]
        share = DTYPE_S / sum(each.seconds for each in listed)
        for each in listed:
            problem = GEMM.at(each.problem.shape, dtype=dtype)
            yield PresetProblem(problem, round(each.seconds * share, 3))

    @property
    def digest(self) -> str:
        """Sixteen hex digits over what is tuned and with how much effort."""
        lines = [f"{each.problem.label} {each.seconds}" for each in self.problems]
        lines = [self.operation] if self.grows else [str(self.survey), *lines]
        text = "\n".join([self.name, str(self.trials), *lines])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def tuning_presets() -> dict[str, TuningPreset]:
    """The presets that come with the package, by name."""
    with resources.as_file(resources.files("autotune.tuning") / "presets.toml") as path:
        return read_presets(path)


def find_preset(name: str) -> TuningPreset:
    """The preset called `name`.

    Raises:
        UnknownNameError: there is none; the message lists those there are.
    """
    presets = tuning_presets()
    if name not in presets:
        raise UnknownNameError(must_be("preset", name, presets))
    return presets[name]


def read_presets(path: Path) -> dict[str, TuningPreset]:
    """The presets of a file.

    Raises:
        InputError: the file cannot be read or does not fit the format; the message names file
            and key.
    """
    top = Table.read(path, error=InputError)
    presets = {}
    for name in top:
        entry = top.table(name)
        presets[name] = TuningPreset(
            name=name,
            summary=entry.text("summary"),
            target=entry.text("target"),
            trials=entry.whole("trials"),
            problems=tuple(_problems(entry)),
            survey=_survey(entry.table("survey")) if "survey" in entry else None,
        )
        entry.close()
    return presets


def _survey(table: Table) -> SurveyPlan:
    shares = table.table("dtypes")
    for dtype in shares:
        if dtype not in DTYPES:
            shares.fail(dtype, f"must be one of {', '.join(DTYPES)}")
    plan = SurveyPlan(
        within=Range(_bounds(table, "outer"), _bounds(table, "reduction"), _bounds(table, "work")),
        shares={dtype: shares.whole(dtype) for dtype in shares},
        problems=table.whole("problems"),
        most=table.whole("most"),
        seed=table.whole("seed"),
        share=table.whole("percent") / 100,
        threads=_caps(table) if "threads" in table else (None,),
    )
    shares.close()
    if plan.most < plan.problems:
        table.fail("most", f"must be no less than problems, {plan.problems}, got {plan.most}")
    if not plan.share < 1:
        table.fail("percent", f"must be below 100, got {plan.share:.0%}")
    table.close()
    return plan


def _caps(table: Table) -> tuple[int | None, ...]:
    caps = table.items("threads")
    if not caps or not all(type(each) is int and each >= 0 for each in caps):
        table.fail("threads", f"must be whole numbers, 0 for all threads, got {shown(caps)}")
    return tuple(each or None for each in caps)


def _bounds(table: Table, key: str) -> tuple[int, int]:
    bounds = table.items(key)
    if (
        len(bounds) != 2
        or not all(type(each) is int for each in bounds)
        or not 1 <= bounds[0] <= bounds[1]
    ):
        table.fail(key, f"must be two whole numbers, the lower first, got {shown(bounds)}")
    return bounds[0], bounds[1]


def _problems(entry: Table) -> Iterator[PresetProblem]:
    tables = entry.tables("problems")
    if not tables:
        entry.fail("problems", "must be a list with at least one problem")
    seen: set[Gemm] = set()
    for table in tables:
        text = table.text("shape")
        try:
            m, n, k = GEMM.parse_shape(text)
        except ProblemError as error:
            table.fail("shape", f"is wrong: {error}")
        problem = Gemm(m, n, k, dtype=table.choice("dtype", DTYPES))
        if problem in seen:
            table.fail("shape", f"must not repeat {problem.label}")
        seen.add(problem)
        yield PresetProblem(problem, table.whole("seconds"))
        table.close()
