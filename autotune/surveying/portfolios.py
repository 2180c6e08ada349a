"""From a survey to a portfolio in the cache, for each dtype of a preset."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from autotune.core.checks import utc_now
from autotune.core.deadline import Deadline
from autotune.model import LARGEST, Portfolio, Sizes, build, is_modelled, with_calls
from autotune.operations.problem import Gemm
from autotune.store import BinaryRecord
from autotune.surveying.queue import Until
from autotune.surveying.sampling import Range, draw_problems
from autotune.surveying.survey import EFFORT, Survey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.families.gpu.launch import Binary
    from autotune.model import Entry, Key
    from autotune.surveying.survey import Watch as VisitWatch
    from autotune.tuning.context import DeviceContext
    from autotune.tuning.settings import Run


@dataclass(frozen=True, slots=True)
class Lot:
    """What one portfolio is made by: problems of one dtype and cap.

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
    """What a preset surveys a device with: problems drawn by lot.

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

    weights: ClassVar[Mapping[Gemm, float] | None] = None
    """What problems count for; None counts all the same."""

    def lots(self) -> Iterator[Lot]:
        """One for each dtype and cap."""
        for dtype, share in self.shares.items():
            for cap in self.threads:
                drawn = draw_problems(self.within, self.most, self.seed, dtype, cap)
                yield Lot(drawn[: self.problems], drawn[self.problems :], share)


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """The same with a program's own problems, in place of such as are drawn.

    Attributes:
        weights: the problems, and what each counts for.
        share: of the preset's time.
    """

    weights: Mapping[Gemm, float]
    share: float

    def lots(self) -> Iterator[Lot]:
        """One for each dtype and cap."""
        groups: defaultdict[tuple[str, int | None], list[Gemm]] = defaultdict(list)
        for each in self.weights:
            groups[each.dtype, each.threads].append(each)
        for group in groups.values():
            yield Lot(group, [], sum(self.weights[each] for each in group))


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What came of a survey.

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
    """Where a survey stands.

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


Watch: TypeAlias = Callable[[SurveyVisit], None]
"""Hears of each visit before it is made."""


def survey_device(
    context: DeviceContext,
    run: Run,
    plan: SurveyPlan | OwnPlan,
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
        watch: hears of each visit.

    Raises:
        CacheError: the cache cannot be read or written.
    """
    run, begun_s = replace(run, effort=EFFORT), deadline.elapsed_s
    lots = [lot for lot in (_served(context, each) for each in plan.lots()) if lot.problems]
    # Few threads first: what is good with them is a beginning for more, and compiled by then.
    lots.sort(key=lambda lot: lot.problems[0].threads or math.inf)
    made: dict[str, Portfolio] = {}
    for number, lot in enumerate(lots):
        left = sum(each.share for each in lots[number:])
        seconds = deadline.remaining_s * lot.share / left if left else 0.0
        if stopped() or not seconds:
            continue
        problems = lot.problems
        dtype, cap = problems[0].dtype, problems[0].threads
        # What a cap leaves of the device is what its families must be valid on.
        device = context.device if cap is None else context.target.device(problems[0])
        where = replace(context, device=device)
        name = f"{study}-{dtype}" if cap is None else f"{study}-{dtype}-{cap}-threads"
        own_time = Deadline(seconds)
        before = where.predictor(problems[0].operation).portfolio(problems[0])
        with where.evaluator(problems[0], run) as host:
            watcher = _lot_watch(watch, number + 1, len(lots))
            survey = Survey(where, run, host, problems, name, lot.further, watcher)
            learning = survey.learning
            survey.queue.add(learning.recall(name))
            for portfolio in (before, made.get(dtype)):
                if portfolio is not None:
                    survey.queue.add(learning.take(portfolio))
            survey.hold(Until(own_time, stopped))
            found = _stored(where, survey, problems, before, plan.weights, stopped)
        if found is not None:
            made[dtype] = found
            now_s = deadline.elapsed_s
            timed = [each for each in learning.book.programs if each.timed]
            count = sum(len(each.timed) for each in timed)
            programs = {each.key for each in timed} | {each.key for each in found.entries}
            yield Surveyed(found, len(programs), count, now_s - begun_s)
            begun_s = now_s


def _lot_watch(watch: Watch | None, lot: int, lots: int) -> VisitWatch | None:
    if watch is None:
        return None
    return lambda problem, visit, left_s: watch(SurveyVisit(problem, lot, lots, visit, left_s))


def _served(context: DeviceContext, lot: Lot) -> Lot:
    """Of a lot, what there is a program for that a survey can try."""

    def served(problems: Sequence[Gemm]) -> list[Gemm]:
        families = context.families.values()
        return [each for each in problems if any(is_modelled(of, each) for of in families)]

    return replace(lot, problems=served(lot.problems), further=served(lot.further))


def _stored(
    context: DeviceContext,
    survey: Survey,
    problems: Sequence[Gemm],
    before: Portfolio | None,
    own: Mapping[Gemm, float] | None,
    stopped: Callable[[], bool],
) -> Portfolio | None:
    """The portfolio, with the binaries that its programs need; None where nothing ran."""
    device, first = context.device, problems[0]
    weights = None if own is None else {Sizes.of(each): own[each] for each in problems}
    built = build(survey.learning.book, context.families, weights=weights)
    if not built.entries:
        return None
    entries = built.entries
    if before is not None:
        # Other shapes keep what served them: no lot has problems of every kind. What a program
        # took on another device is no price here, unless a program's own shapes are all there is.
        elsewhere = own is None and before.fingerprint != device.fingerprint
        entries = _joined(
            entries, survey.learning.at_prices_of_now(before.entries, timed=elsewhere)
        )
    survey.complete(entries, stopped)
    architecture = getattr(device.limits, "architecture", "")
    kept: dict[str, bytes] = {}
    binaries = {
        each.key: each
        for each in (before.entries if before and before.architecture == architecture else ())
    }
    entries = tuple(
        _with_binary(each, survey.learning.binaries, binaries, kept)
        for each in with_calls(entries, context.families, first, device.limits)
    )
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
        entries=entries,
        families=survey.learning.book.common,
        shapes=built.shapes,
        loss=built.loss,
        created=utc_now(),
    )
    context.store.put_portfolio(portfolio, kept.values())
    return portfolio


def _joined(chosen: Sequence[Entry], before: Iterable[Entry]) -> tuple[Entry, ...]:
    """What was chosen now, and what was there before as far as there is room."""
    now = {each.key for each in chosen}
    return (*chosen, *(each for each in before if each.key not in now))[:LARGEST]


def _with_binary(
    entry: Entry,
    binaries: Mapping[Key, Binary],
    before: Mapping[Key, Entry],
    kept: dict[str, bytes],
) -> Entry:
    """An entry that names its binary, which is added to those kept if it is new."""
    binary = binaries.get(entry.key)
    if binary is None:
        known = before.get(entry.key)
        if known is None:
            return entry
        return replace(entry, binary=known.binary, support=known.support)
    record = BinaryRecord.of(binary)
    kept[record.digest] = binary.content
    if record.support is not None:
        kept[record.support] = binary.support
    return replace(entry, binary=record.digest, support=record.support)
