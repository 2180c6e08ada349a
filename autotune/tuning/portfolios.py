"""From a survey to a portfolio in the cache, for each dtype of a preset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.core.deadline import Deadline
from autotune.model import Portfolio, build, with_calls
from autotune.store import BinaryRecord, record_sources
from autotune.store.checks import utc_now
from autotune.targets.predicting import predictor_of
from autotune.tuning.sampling import Range, draw_problems
from autotune.tuning.survey import Survey, is_tried, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.families.launch import Binary
    from autotune.model import Entry, Key
    from autotune.operations.problem import Gemm
    from autotune.tuning.survey import Place, Watch


@dataclass(frozen=True, slots=True)
class SurveyPlan:
    """What a preset surveys a device with.

    Attributes:
        within: problems that are drawn.
        shares: of the survey's time, by dtype.
        problems: how many are drawn for each dtype.
        seed: of the lot.
        share: of the preset's time.
        threads: caps on CPU threads, each with a portfolio of its own and an equal part of the
            time; None is no cap.
    """

    within: Range
    shares: Mapping[str, float]
    problems: int
    seed: int
    share: float
    threads: tuple[int | None, ...] = (None,)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What came of a survey.

    Attributes:
        portfolio: what was stored.
        programs: that were tried.
        measurements: that prices were fitted to.
        seconds: that it took.
    """

    portfolio: Portfolio
    programs: int
    measurements: int
    seconds: float


def survey_device(
    place: Place,
    plan: SurveyPlan,
    deadline: Deadline,
    stopped: Callable[[], bool],
    *,
    study: str,
    own: Mapping[Gemm, float] | None = None,
    watch: Watch | None = None,
) -> Iterator[Surveyed]:
    """Survey a device for each dtype and cap on threads in turn, and store a portfolio of each.

    Args:
        place: where.
        plan: with what.
        deadline: until when.
        stopped: whether somebody wants an end.
        study: what measurements are stored under.
        own: a program's own problems with their weights, in place of what the plan draws.
        watch: hears of each visit.

    Raises:
        CacheError: the cache cannot be read or written.
    """
    begun_s = deadline.elapsed_s
    caps = plan.threads if own is None else tuple(dict.fromkeys(each.threads for each in own))
    left = {(dtype, cap): share for dtype, share in plan.shares.items() for cap in caps}
    for (dtype, cap), share in tuple(left.items()):
        if own is None:
            problems = draw_problems(plan.within, plan.problems, plan.seed, dtype, cap)
        else:
            problems = [each for each in own if (each.dtype, each.threads) == (dtype, cap)]
        problems = [each for each in problems if _is_served(place, each)]
        seconds = deadline.remaining_s * share / sum(left.values())
        del left[dtype, cap]
        if not problems or stopped() or not seconds:
            continue
        # What a cap leaves of the device is what its families must be valid on.
        where = place if cap is None else replace(place, device=place.target.device(problems[0]))
        name = f"{study}-{dtype}" if cap is None else f"{study}-{dtype}-{cap}-threads"
        own_time = Deadline(seconds)
        with where.evaluator(problems[0]) as host:
            survey = Survey(where, host, problems, name)
            survey.take(_known(where, problems[0]))
            survey.hold(own_time, stopped, watch)
        found = _stored(place, survey, problems, own)
        if found is not None:
            now_s = deadline.elapsed_s
            timed = [each for each in survey.book.programs if each.timed]
            count = sum(len(each.timed) for each in timed)
            yield Surveyed(found, len(timed), count, now_s - begun_s)
            begun_s = now_s


def _is_served(place: Place, problem: Gemm) -> bool:
    """Whether there is a program for a problem that a survey can try."""
    return any(is_tried(each, problem) for each in place.families.values())


def _known(place: Place, problem: Gemm) -> Portfolio | None:
    """The portfolio that serves such problems now, of this device or of one like it."""
    sources = record_sources(place.store.path, place.device.fingerprint.kind)
    operation, target = problem.operation, place.target.name
    predictor = predictor_of(sources, operation, target, place.families, place.device)
    return predictor.portfolio(problem)


def _stored(
    place: Place, survey: Survey, problems: Sequence[Gemm], own: Mapping[Gemm, float] | None
) -> Portfolio | None:
    """The portfolio, with the binaries that its programs need; None where nothing ran."""
    weights = None if own is None else {sizes_of(each): own[each] for each in problems}
    built = build(survey.book, place.families, weights=weights)
    if not built.entries:
        return None
    device, first = place.device, problems[0]
    kept: dict[str, bytes] = {}
    found = with_calls(built.entries, place.families, first, device.limits)
    entries = tuple(_with_binary(each, survey.binaries, kept) for each in found)
    architecture = getattr(device.limits, "architecture", "") if kept else ""
    portfolio = Portfolio(
        operation=first.operation,
        target=place.target.name,
        fingerprint=device.fingerprint,
        dtype=first.dtype,
        out_dtype=first.result_dtype,
        accuracy=first.accuracy,
        threads=first.threads,
        architecture=architecture,
        toolchain=device.toolchain,
        entries=entries,
        families=survey.book.common,
        shapes=built.shapes,
        loss=built.loss,
        created=utc_now(),
    )
    place.store.put_portfolio(portfolio, kept.values())
    return portfolio


def _with_binary(entry: Entry, binaries: Mapping[Key, Binary], kept: dict[str, bytes]) -> Entry:
    """An entry that names its binary, which is added to those kept."""
    binary = binaries.get(entry.key)
    if binary is None:
        return entry
    record = BinaryRecord.of(binary)
    kept[record.digest] = binary.content
    if record.support is not None:
        kept[record.support] = binary.support
    return replace(entry, binary=record.digest, support=record.support)
