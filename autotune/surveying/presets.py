"""Tuning presets: lists of problems that one run tunes."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
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
from autotune.runtime.shape_list import read_shapes
from autotune.surveying.portfolios import Range, SurveyPlan
from autotune.targets.registry import make_target

DTYPE_S = 240.0
"""Seconds for each element type, where users say which: 12 minutes for three."""

DEFAULT_SECONDS = 480.0
"""For a whole list, as for a preset."""

TRIALS = 600
"""The most configurations tried for one shape."""

_BALANCE = 16
"""Operations that processors do, more or less, while a byte comes from memory."""


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
    survey: SurveyPlan | None = None
    operation: str = GEMM.name
    grows: bool = False

    @property
    def seconds(self) -> float:
        """Seconds that the whole run may take."""
        return sum(member.seconds for member in self.problems)

    def of_dtypes(self, dtypes: Sequence[str]) -> TuningPreset:
        """The same shapes for other element types, each with `DTYPE_S` and a survey of its own.

        A type that the preset has no problems of takes those of its first one.

        Args:
            dtypes: their names, in the order in which they are tuned.

        Raises:
            UnknownNameError: there is no such type; the message lists those there are.
        """
        listed: dict[str, list[PresetProblem]] = {}
        for member in self.problems:
            listed.setdefault(member.problem.dtype, []).append(member)
        first = self.problems[0].problem.dtype
        problems: list[PresetProblem] = []
        for dtype in dict.fromkeys(dtypes):
            if dtype not in DTYPES:
                raise UnknownNameError(must_be("dtype", dtype, DTYPES))
            members = listed.get(dtype, listed[first])
            share = DTYPE_S / sum(member.seconds for member in members)
            for member in members:
                problem = GEMM.at(member.problem.shape, dtype=dtype)
                problems.append(PresetProblem(problem, round(member.seconds * share, 3)))
        survey = self.survey
        if survey is not None:
            survey = replace(survey, shares=dict.fromkeys(dtypes, 1.0))
        return replace(self, problems=tuple(problems), survey=survey)

    @property
    def digest(self) -> str:
        """Sixteen hex digits over what is tuned and with how much effort."""
        lines = [f"{member.problem.label} {member.seconds}" for member in self.problems]
        lines = [self.operation] if self.grows else [str(self.survey), *lines]
        text = "\n".join([self.name, str(self.trials), *lines])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def tuning_presets() -> dict[str, TuningPreset]:
    """The presets that come with the package, by name."""
    with resources.as_file(resources.files("autotune.surveying") / "presets.toml") as path:
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


def preset_of_shapes(
    path: Path,
    *,
    target: str | None = None,
    operation: str = "gemm",
    extra_families: Sequence[Path] = (),
    seconds: float = DEFAULT_SECONDS,
) -> TuningPreset:
    """The preset of a list of shapes, the costliest first.

    Time goes by the square root of what a shape costs the program: its weight times an estimate
    of one product's time. Twice the time for a search brings less than the first half did, and a
    shape that takes nine tenths of a program must not leave nothing to the others.

    Runs with the same limits go on where the last one ended, though weights have changed since or
    shapes have been added.

    Args:
        path: of the list (`autotune.runtime.shape_list`).
        target: whose shapes are tuned, with those of no target; None takes the only one that the
            list names, or else the best this machine has.
        operation: whose shapes are tuned.
        extra_families: folders of families of the user's own.
        seconds: for all of them, all in.

    Raises:
        InputError: the list cannot be read, has no such shapes, or names several targets.
    """
    shapes = read_shapes(path, operation, extra_families)
    named = sorted({shape.target for shape in shapes if shape.target})
    if target is None and len(named) > 1:
        raise InputError(
            f"{path} has shapes of targets {' and '.join(named)}: choose one with --target"
        )
    chosen = target or (named[0] if named else make_target(None).name)
    costs: defaultdict[Problem, float] = defaultdict(float)
    for shape in shapes:
        if shape.target in ("", chosen):
            # In operations: those that it does, and those that its bytes hold up.
            work = shape.problem.flops + _BALANCE * shape.problem.traffic
            costs[shape.problem] += shape.weight * work
    if not costs:
        raise InputError(
            f"{path} has shapes of target {' and '.join(named)} only, got --target {chosen}"
        )
    shares = {problem: math.sqrt(cost) for problem, cost in costs.items()}
    order = sorted(shares, key=lambda problem: -shares[problem])
    whole = sum(shares.values())
    return TuningPreset(
        name="shapes",
        summary=f"the shapes of {path}",
        target=chosen,
        trials=TRIALS,
        problems=tuple(
            PresetProblem(problem, seconds * shares[problem] / whole) for problem in order
        ),
        operation=operation,
        grows=True,
    )


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
    if not caps or not all(type(cap) is int and cap >= 0 for cap in caps):
        table.fail("threads", f"must be whole numbers, 0 for all threads, got {shown(caps)}")
    return tuple(cap or None for cap in caps)


def _bounds(table: Table, key: str) -> tuple[int, int]:
    bounds = table.items(key)
    if (
        len(bounds) != 2
        or not all(type(bound) is int for bound in bounds)
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
