"""Tuning presets: lists of problems that one run tunes, and the division of its time among them.

Most of what tuning gains comes with the first trials, which are known-good points: a first round
visits every problem for those. What is then left goes where more is expected, judged by how far a
problem is behind the vendor library and by what the second half of its trials still brought.

Where the time is too short for two rounds worth the name there is one, and where it is too short
for all problems, those visited are the ones that have no record yet or the worst, of each element
type in turn; a survey before them then gets less than its share. A visit that has
found nothing valid when its time is over goes on until it has: those after it get less.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
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
from autotune.surveying.portfolios import OwnPlan, Range, SurveyPlan
from autotune.targets.registry import make_target

DTYPE_S = 240.0
"""Seconds for each element type, where users say which: 12 minutes for three."""

DEFAULT_SECONDS = 480.0
"""For a whole list, as for a preset."""

TRIALS = 600
"""The most configurations tried for one shape."""

FEW = 12
"""Shapes of a list that is tuned one by one alone, without a portfolio."""

SURVEYED = 64
"""Shapes of a longer one that its portfolio is made with."""

SURVEY_SHARE = 0.5
"""Of the time, what goes to that."""

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
    survey: SurveyPlan | OwnPlan | None = None
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
        if isinstance(survey, SurveyPlan):
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
    shape that takes nine tenths of a program must not leave nothing to the others. Where there
    are many, half of it goes to a portfolio for them all.

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
    products = [problem for problem in order if isinstance(problem, Gemm)]
    survey = OwnPlan({problem: shares[problem] for problem in products[:SURVEYED]}, SURVEY_SHARE)
    return TuningPreset(
        name="shapes",
        summary=f"the shapes of {path}",
        target=chosen,
        trials=TRIALS,
        problems=tuple(
            PresetProblem(problem, seconds * shares[problem] / whole) for problem in order
        ),
        survey=survey if len(products) > FEW else None,
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


MIN_VISIT_S = 6.0
"""A visit shorter than this is not begun: operands, compiling the first kernels and the finals
would leave no time for trials."""

LEAST_SURVEY = 1 / 3
"""Of the time, what a survey keeps however many problems wait: it is what serves all others."""

SECOND_SHARE = 0.5
"""Of the time, what is kept for the second round."""

LEAST_GAIN = 0.02
"""Least gain expected of a problem, however well it has gone: nobody knows the best kernel."""

UNKNOWN_GAIN = 1.0
"""Gain expected of a problem that has no kernel yet."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A problem's claim to time.

    Attributes:
        weight: seconds that the preset means for it.
        gain: logarithm of the speed that is expected to be gained.
        kind: its element type: a short run is to reach each.
    """

    weight: float
    gain: float
    kind: str = ""


def expected_gain(ratio: float | None, medians: Sequence[float]) -> float:
    """Logarithm of the speed that more time for a problem is expected to gain.

    Args:
        ratio: speed of its best kernel relative to the vendor library; None without either.
        medians: of its trials so far, in order, in seconds.
    """
    if not medians:
        return UNKNOWN_GAIN
    behind = 0.0 if ratio is None else max(0.0, -math.log(ratio))
    half = medians[: (len(medians) + 1) // 2]
    late = math.log(min(half) / min(medians))
    return max(LEAST_GAIN, behind + late)


def survey_s(left_s: float, share: float, problems: int) -> float:
    """Seconds for a survey: its share of what is left, unless first visits need the time."""
    if not problems:
        return left_s
    meant_s = share * left_s
    return min(meant_s, max(left_s - problems * MIN_VISIT_S, LEAST_SURVEY * left_s))


def in_turn(claims: Sequence[Claim]) -> list[int]:
    """The order of first visits: the most promising first, of equals each kind in turn."""
    seen: Counter[str] = Counter()
    ranks = []
    for claim in claims:
        ranks.append((-claim.gain, seen[claim.kind]))
        seen[claim.kind] += 1
    return sorted(range(len(claims)), key=ranks.__getitem__)


def second_round_s(left_s: float, weights: Sequence[float]) -> float:
    """Seconds that the first round leaves to the second; none where they are too few for both."""
    if not weights:
        return 0.0
    first_s = (1 - SECOND_SHARE) * left_s * min(weights) / sum(weights)
    return SECOND_SHARE * left_s if first_s >= MIN_VISIT_S else 0.0


def first_visit_s(left_s: float, weights: Sequence[float]) -> float | None:
    """Seconds for the next problem of the first round; None when there is no time for it.

    Weights are those of this problem and of all after it.
    """
    if left_s < MIN_VISIT_S:
        return None
    return max(MIN_VISIT_S, left_s * weights[0] / sum(weights))


def second_visits(left_s: float, claims: Sequence[Claim]) -> list[tuple[int, float]]:
    """Second visits, by position and with their seconds: the most promising first."""
    order = sorted(range(len(claims)), key=lambda position: -claims[position].gain)
    while order:
        shares = [claims[position].weight * claims[position].gain for position in order]
        seconds = [left_s * share / sum(shares) for share in shares]
        least = min(range(len(order)), key=seconds.__getitem__)
        if seconds[least] >= MIN_VISIT_S:
            return list(zip(order, seconds, strict=True))
        del order[least]
    return []
