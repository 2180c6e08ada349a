"""From problems drawn at random, by a survey, to a portfolio in the cache for each dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autotune.core.checks import utc_now
from autotune.core.deadline import Deadline
from autotune.core.dtypes import DTYPES
from autotune.model import LARGEST, Portfolio, build, is_modelled, with_calls
from autotune.operations.problem import Gemm
from autotune.store import BinaryRecord
from autotune.surveying.queue import Until
from autotune.surveying.survey import EFFORT, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.model import Entry
    from autotune.operations.problem import Gemm
    from autotune.tuning.context import DeviceContext
    from autotune.tuning.settings import Run

ODD_SHARE = 1 / 3
"""Of problems, those whose sizes are all odd: no row of theirs is aligned."""

_LAYOUTS = ("nn", "nn", "nn", "nt", "nn", "tn", "nn", "nn", "tt", "nn")
"""In turns: most products are of matrices as they are."""

_THIN = 4
"""Every so many problems one is thin: few rows of C and few columns in turns; lot draws few."""

_FEW = (1, 1, 2, 4, 8, 16)
"""Rows or columns of thin problems, in turns."""

_LONG = 128
"""Least other sizes of a thin problem: what short ones cost is mostly the call."""

_LARGE = 6
"""Every so many problems one is large in all sizes: there programs differ by what they take for
each step, and for nothing else."""

_LAYOUTS_OF_LAYERS = ("nt", "nt", "nn", "nt", "tn")
"""In turns: a linear layer, and its gradients."""

_LEAST_OF_LAYERS = 512
"""Inputs and outputs of a layer; both are multiples of `_STEP_OF_LAYERS`."""

_STEP_OF_LAYERS = 128

_MOST_TOKENS = 4096
"""Rows of a layer's product are a power of two up to it."""

_OF_LARGEST = 8
"""Divisor of the largest size, for the least of a large problem. Every second thin problem
is large in the other two: no cache of a GPU holds it, and memory sets its time."""

_ELEMENTS = 2**25
"""Of a matrix, at most: beyond all caches, and a trial is not mostly the making of operands."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of the problems that are drawn, logarithmically uniform in each size.

    Attributes:
        outer: least and largest rows and columns of C.
        reduction: least and largest reduction.
        work: least and largest number of products, M N K.
    """

    outer: tuple[int, int]
    reduction: tuple[int, int]
    work: tuple[float, float]

    def admits(self, m: int, n: int, k: int) -> bool:
        """A problem of these sizes has as much work as it should."""
        least, most = self.work
        return least <= m * n * k <= most


def draw_problems(
    within: Range, count: int, seed: int, dtype: str, threads: int | None = None
) -> list[Gemm]:
    """Distinct problems, the same for the same arguments; a third of them odd in all sizes.

    Of 16-bit types every second one is a linear layer of a language model, or a gradient of one.
    """
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, int, int, str], None] = {}
    layers = DTYPES[dtype].itemsize == 2
    for m, n, k in _shapes(within, rng):
        layout = _LAYOUTS[len(found) % len(_LAYOUTS)]
        if layers and len(found) % 2:
            layout = _LAYOUTS_OF_LAYERS[len(found) // 2 % len(_LAYOUTS_OF_LAYERS)]
            sizes = _layer(layout, within, rng)
        else:
            sizes = _varied(len(found), (m, n, k), within, rng)
        # Where no layer is so small, or all are there, problems as they were drawn are more.
        if _fits(sizes, within) and (*sizes, layout) not in found:
            found[*sizes, layout] = None
        elif layers and _fits((m, n, k), within):
            found[m, n, k, layout] = None
        if len(found) == count:
            break
    return [
        Gemm(m, n, k, dtype=dtype, layout=layout, threads=threads) for m, n, k, layout in found
    ]


_Sizes: TypeAlias = tuple[int, int, int]


def _fits(sizes: _Sizes, within: Range) -> bool:
    """True if a problem is within the range, and its operands are no larger than they may be."""
    m, n, k = sizes
    return min(sizes) > 0 and within.admits(m, n, k) and max(m * n, n * k, m * k) <= _ELEMENTS


def _varied(number: int, sizes: _Sizes, within: Range, rng: np.random.Generator) -> _Sizes:
    """Sizes as they were drawn, odd, or those of a thin or a large problem, by its number."""
    m, n, k = sizes
    if rng.random() < ODD_SHARE:
        m, n, k = m | 1, n | 1, k | 1
    thin, rest = divmod(number, _THIN)
    if not rest:
        turn, side = divmod(thin, 2)
        least = (_LONG, within.outer[1] // _OF_LARGEST)[turn % 2]
        long, n = (_at_least(least, bounds, rng) for bounds in (within.outer, within.reduction))
        few = _FEW[turn % len(_FEW)]
        m, k = (long, few) if side else (few, long)
    elif number % _LARGE == 1:
        bounds = within.outer, within.reduction, within.outer
        m, n, k = (_at_least(high // _OF_LARGEST, (low, high), rng) for low, high in bounds)
    return m, n, k


def _layer(layout: str, within: Range, rng: np.random.Generator) -> _Sizes:
    """Rows, reduction and columns of a layer's product; tokens are the reduction of layout tn."""
    most = min(_MOST_TOKENS, within.outer[1]).bit_length()
    tokens = 1 << int(rng.integers(0, most))
    bounds = within.outer, within.reduction
    sizes = (_at_least(_LEAST_OF_LAYERS, each, rng) for each in bounds)
    outputs, inputs = (size - size % _STEP_OF_LAYERS for size in sizes)
    return (outputs, tokens, inputs) if layout == "tn" else (tokens, inputs, outputs)


def _shapes(within: Range, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """Rows, reduction and columns within the range, for ever."""
    while True:
        m, k = _log_uniform(within.outer, rng, 2).tolist()
        [n] = _log_uniform(within.reduction, rng, 1).tolist()
        if within.admits(m, n, k):
            yield m, n, k


def _at_least(least: int, bounds: tuple[int, int], rng: np.random.Generator) -> int:
    """A size within the bounds, from the least on if they have that."""
    low, high = bounds
    return int(_log_uniform((max(low, min(least, high)), high), rng, 1)[0])


def _log_uniform(
    bounds: tuple[int, int], rng: np.random.Generator, count: int
) -> NDArray[np.int64]:
    low, high = np.log(bounds[0]), np.log(bounds[1] + 1)
    return np.minimum(np.exp(rng.uniform(low, high, count)).astype(np.int64), bounds[1])


@dataclass(frozen=True, slots=True)
class Lot:
    """Problems of one dtype and cap on threads, for which one portfolio is made.

    Attributes:
        problems: that are visited.
        further: others, for the time that these leave.
        share: of the survey's time.
    """

    problems: list[Gemm]
    further: list[Gemm]
    share: float


@dataclass(frozen=True, slots=True)
class SurveyPlan:
    """A preset's survey of problems drawn at random.

    Attributes:
        within: problems that are drawn.
        shares: of the survey's time, by dtype.
        problems: how many are drawn for each dtype.
        most: how many where there is time: once nothing is left to be tried on those.
        seed: of the lot.
        share: of the preset's time.
        threads: caps on CPU threads, each with a portfolio of its own and an equal part of the
            time; None is no cap.
    """

    within: Range
    shares: Mapping[str, float]
    problems: int
    most: int
    seed: int
    share: float
    threads: tuple[int | None, ...] = (None,)

    def lots(self) -> Iterator[Lot]:
        """One lot for each dtype and cap."""
        for dtype, share in self.shares.items():
            for cap in self.threads:
                drawn = draw_problems(self.within, self.most, self.seed, dtype, cap)
                yield Lot(drawn[: self.problems], drawn[self.problems :], share)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Result of a lot.

    Attributes:
        portfolio: what was stored.
        programs: that it was chosen from: tried now, or kept from before.
        measurements: that prices were fitted to.
        seconds: that it took.
    """

    portfolio: Portfolio
    programs: int
    measurements: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SurveyVisit:
    """Progress of a survey: a visit that begins.

    Attributes:
        problem: that is visited.
        lot: the number of its lot, from 1.
        lots: how many there are.
        visit: its number in the lot, from 1.
        left_s: seconds that are left to the lot.
    """

    problem: Gemm
    lot: int
    lots: int
    visit: int
    left_s: float


Watch: TypeAlias = "Callable[[SurveyVisit], None]"
"""A callback of each visit before it is made."""


def survey_device(
    context: DeviceContext,
    run: Run,
    plan: SurveyPlan,
    deadline: Deadline,
    stopped: Callable[[], bool],
    *,
    study: str,
    watch: Watch | None = None,
) -> Iterator[Surveyed]:
    """Survey a device for each dtype and cap on threads in turn, and store a portfolio of each.

    Args:
        context: the device, and the families.
        run: settings: workers, and the seed of operands and lots.
        plan: problems, and their share of the time.
        deadline: until when.
        stopped: whether somebody wants an end.
        study: what measurements are stored under; those of an earlier survey under the same name
            are learned from, so that it must have been of the same families.
        watch: called before each visit.

    Raises:
        CacheError: the cache cannot be read or written.
    """
    run, begun_s = replace(run, effort=EFFORT), deadline.elapsed_s
    lots = [lot for lot in (_served(context, lot) for lot in plan.lots()) if lot.problems]
    # Few threads first: what is good with them is a beginning for more, and compiled by then.
    lots.sort(key=lambda lot: lot.problems[0].threads or math.inf)
    made: dict[str, Portfolio] = {}
    for number, lot in enumerate(lots, 1):
        left = sum(other.share for other in lots[number - 1 :])
        seconds = deadline.remaining_s * lot.share / left if left else 0.0
        if stopped() or not seconds:
            continue
        until, first = Until(Deadline(seconds), stopped), lot.problems[0]
        # What a cap leaves of the device is what its families must be valid on.
        device = context.device if first.threads is None else context.target.device(first)
        where = replace(context, device=device)
        cap = "" if first.threads is None else f"-{first.threads}-threads"
        name = f"{study}-{first.dtype}{cap}"
        before = where.predictor(first.operation).portfolio(first)

        def watch_lot(problem: Gemm, visit: int, left_s: float, lot: int = number) -> None:
            if watch is not None:
                watch(SurveyVisit(problem, lot, len(lots), visit, left_s))

        with where.evaluator(first, run) as host:
            survey = Survey(where, run, host, lot.problems, name, lot.further, watch_lot)
            survey.queue.add(survey.learning.recall(name))
            for portfolio in (before, made.get(first.dtype)):
                if portfolio is not None:
                    survey.queue.add(survey.learning.take(portfolio))
            survey.hold(until)
            found = _store(where, survey, lot.problems, before, stopped)
        if found is not None:
            made[first.dtype] = found
            now_s = deadline.elapsed_s
            timed = [program for program in survey.learning.book.programs if program.timed]
            programs = {program.key for program in timed} | {entry.key for entry in found.entries}
            count = sum(len(program.timed) for program in timed)
            yield Surveyed(found, len(programs), count, now_s - begun_s)
            begun_s = now_s


def _served(context: DeviceContext, lot: Lot) -> Lot:
    """The problems of a lot for which there is a program that a survey can try."""

    def served(problems: Sequence[Gemm]) -> list[Gemm]:
        families = context.families.values()
        return [
            problem for problem in problems if any(is_modelled(of, problem) for of in families)
        ]

    return replace(lot, problems=served(lot.problems), further=served(lot.further))


def _store(
    context: DeviceContext,
    survey: Survey,
    problems: Sequence[Gemm],
    before: Portfolio | None,
    stopped: Callable[[], bool],
) -> Portfolio | None:
    """Store the portfolio, with the binaries that its programs need; None where nothing ran."""
    device, first, learning = context.device, problems[0], survey.learning
    built = build(learning.book, context.families)
    if not built.entries:
        return None
    entries = built.entries
    if before is not None:
        # Other shapes keep what served them: no lot has problems of every kind. What a program
        # took on another device is no price here.
        elsewhere = before.fingerprint != device.fingerprint
        chosen = {entry.key for entry in entries}
        earlier = learning.at_prices_of_now(before.entries, timed=elsewhere)
        kept = (entry for entry in earlier if entry.key not in chosen)
        entries = (*entries, *kept)[:LARGEST]
    survey.complete(entries, stopped)
    architecture = getattr(device.limits, "architecture", "")
    same = before is not None and before.architecture == architecture
    known = {entry.key: entry for entry in before.entries} if same and before else {}
    binaries: dict[str, bytes] = {}

    def with_binary(entry: Entry) -> Entry:
        """Name an entry's binary, which is stored if it is new."""
        if (binary := learning.binaries.get(entry.key)) is None:
            old = known.get(entry.key, entry)
            return replace(entry, binary=old.binary, support=old.support)
        record = BinaryRecord.of(binary)
        binaries[record.digest] = binary.content
        if record.support is not None:
            binaries[record.support] = binary.support
        return replace(entry, binary=record.digest, support=record.support)

    called = with_calls(entries, context.families, first, device.limits)
    portfolio = Portfolio(
        operation=first.operation,
        target=context.target.name,
        fingerprint=device.fingerprint,
        dtype=first.dtype,
        out_dtype=first.result_dtype,
        accuracy=first.accuracy,
        threads=first.threads,
        architecture=architecture,
        toolchain=device.toolchain,
        entries=tuple(map(with_binary, called)),
        families=learning.book.common,
        shapes=built.shapes,
        loss=built.loss,
        created=utc_now(),
    )
    context.store.put_portfolio(portfolio, binaries.values())
    return portfolio
