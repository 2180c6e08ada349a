"""Tuning: from a problem to a verified, stored winner."""

from __future__ import annotations

import functools
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autotune import __version__, runtime
from autotune.configuration import Candidate
from autotune.deadline import Deadline
from autotune.errors import InputError, SpaceError, TuningFailedError
from autotune.evaluators.base import Baseline, Effort, Evaluator, Finals
from autotune.hybrid_target import HybridTarget
from autotune.interrupt import Interrupt
from autotune.measurement import Measurement, Outcome
from autotune.pace import Pace
from autotune.progress import Progress, Watcher
from autotune.store import BaselineRecord, BinaryRecord, EffortRecord, TuningRecord, neighbours
from autotune.trial_run import TrialRun
from autotune.trials import TrialResult, Workplace

if TYPE_CHECKING:
    from autotune.problem import Gemm
    from autotune.runtime import Kernel
    from autotune.search import TuningStudy
    from autotune.space import SearchSpace
    from autotune.targets import Target

__all__ = ["Progress", "TrialResult", "TuneResult", "tune"]

FINALISTS = 5
"""How many of the best candidates are measured again, interleaved."""

CONTENDER_RATIO = 1.10
"""A finalist is at most this much slower than the best, or its interval overlaps."""


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run found.

    Attributes:
        problem: what was tuned.
        target: where it runs.
        study: name of the Optuna study; pass it again to go on.
        best: the stored record of the winner.
        trials: every trial of this run, in order.
        spaces: the families' search spaces, as pruned for this device and problem.
        baseline: the vendor library, measured interleaved with the finalists.
        seconds: wall time of the whole run.
        interrupted: whether Ctrl-C, or another request to stop, ended it early.
        device: which GPU was asked for; None for the first.
        cache: where the record was stored; None for the default place.
        extra_families: folders with families of the user's own that took part.
    """

    problem: Gemm
    target: str
    study: str
    best: TuningRecord
    trials: tuple[TrialResult, ...]
    spaces: Mapping[str, SearchSpace]
    baseline: Baseline | None
    seconds: float
    interrupted: bool
    device: int | str | None = field(default=None, repr=False)
    cache: Path | None = field(default=None, repr=False)
    extra_families: tuple[Path, ...] = field(default=(), repr=False)

    @property
    def counts(self) -> dict[Outcome, int]:
        """Trials of this run by outcome."""
        return dict(Counter(trial.measurement.outcome for trial in self.trials))

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The winner as a callable."""
        target: str | Target = self.target
        if target == "hybrid":  # also says where operands are, and how many GPUs there are
            fields = self.best.fingerprint.fields
            target = HybridTarget(int(fields["gpus"]), str(fields["operands"]))
        return runtime.load(
            self.problem,
            target,
            match="stale",
            device=self.device,
            cache=self.cache,
            extra_families=self.extra_families,
        )


def tune(
    problem: Gemm,
    *,
    target: str | Target | None = None,
    device: int | str | None = None,
    families: Sequence[str] = (),
    extra_families: Sequence[Path] = (),
    trials: int = 200,
    timeout: float = 60.0,
    sampler: str = "auto",
    seed: int = 0,
    cache: str | Path | None = None,
    storage: str | None = None,
    study: str | None = None,
    workers: int | None = None,
    effort: Effort | None = None,
    progress: Watcher | None = None,
) -> TuneResult:
    """Search the families' spaces for the fastest kernel of a problem and store the winner.

    The search ends after `trials` trials, or when only the time for the finals is left of
    `timeout` seconds, or with Ctrl-C; then the best candidates are measured again, interleaved
    with the vendor library, and the winner is stored.

    SIGTERM and SIGHUP end it as Ctrl-C does, and are delivered again once the winner is stored.

    Args:
        problem: what to tune.
        target: where to run; None takes the best this machine has.
        device: which GPU, by number or (part of) its name; None takes the first.
        families: names of the families to search; empty takes all that can serve the problem.
        extra_families: folders with families of the user's own.
        trials: the most trials to make, all families together.
        timeout: seconds for everything, from starting worker processes to storing the winner. A
            trial or a compile that would take longer than what is left is cut off; finals that
            there is no time for leave the winner as the search measured it.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        seed: seeds the sampler and the operands.
        cache: folder or database of the user's cache; None takes the default place.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        study: name of the study; an existing one is continued. None starts a new one.
        workers: compile workers; None uses every core.
        effort: how long and how exactly to measure; None takes the default.
        progress: called whenever something has moved.

    Raises:
        TuningFailedError: no candidate compiled, ran and was right.
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    deadline = Deadline(timeout)
    if trials < 1:
        raise InputError(f"trials must be at least 1, got {trials}")
    if not timeout > 0:
        raise InputError(f"timeout must be more than 0 seconds, got {timeout}")
    work = Workplace.of(
        problem,
        target=target,
        device=device,
        families=families,
        extra_families=extra_families,
        cache=cache,
    )
    with Interrupt(deadline) as interrupt:
        result = tune_at(
            work,
            study or _study_name(problem, work.target.name),
            deadline,
            interrupt,
            trials=trials,
            sampler=sampler,
            seed=seed,
            storage=storage,
            workers=workers,
            effort=effort,
            progress=progress,
        )
    return replace(
        result,
        device=device,
        cache=None if cache is None else Path(cache),
        extra_families=tuple(extra_families),
    )


def tune_at(
    work: Workplace,
    study: str,
    deadline: Deadline,
    interrupt: Interrupt,
    *,
    trials: int,
    sampler: str,
    seed: int,
    storage: str | None,
    workers: int | None,
    effort: Effort | None,
    progress: Watcher | None,
    beside: Evaluator | None = None,
    pace: Pace | None = None,
) -> TuneResult:
    """What `tune` does once it is known where; runs over several problems begin here.

    Args:
        work: the problem, and where it is tuned.
        study: the study's name.
        deadline: until when it may take.
        interrupt: whoever asks for an end; entered by the caller.
        trials: as for `tune`.
        sampler: as for `tune`.
        seed: as for `tune`.
        storage: as for `tune`.
        workers: as for `tune`.
        effort: as for `tune`.
        progress: as for `tune`.
        beside: an evaluator whose processes may be used, see `Target.evaluator`.
        pace: what the steps of earlier runs like this one have taken.

    Raises:
        TuningFailedError: no candidate compiled, ran and was right.
        CacheError: the cache cannot be written.
    """
    if progress is not None:
        progress(
            Progress(
                trial=0,
                trials=trials,
                elapsed_s=deadline.elapsed_s,
                timeout_s=deadline.limit_s,
                best_s=None,
                baseline=None,
                flops=work.problem.flops,
                counts={},
                phase="starting",
                left_s=deadline.expected_s,
            )
        )
    with work.open(
        study,
        storage=storage,
        sampler=sampler,
        seed=seed,
        workers=workers,
        effort=effort,
        beside=beside,
    ) as (opened, evaluator):
        opened.enqueue(_known_good(work))
        run = TrialRun(
            work,
            opened,
            evaluator,
            trials=trials,
            deadline=deadline,
            interrupt=interrupt,
            finalists=FINALISTS,
            pace=pace,
            progress=progress,
        )
        run.search(rungs=_rungs(work))
        spent = EffortRecord(len(run.results), run.seconds, sampler, seed)
        record, finals = _finish(work, opened, evaluator, run, spent)
    runtime.forget()
    return TuneResult(
        problem=work.problem,
        target=work.target.name,
        study=study,
        best=record,
        trials=tuple(run.results),
        spaces=work.union.spaces,
        baseline=finals.baseline,
        seconds=deadline.elapsed_s,
        interrupted=interrupt.requested,
    )


def _finish(
    work: Workplace,
    study: TuningStudy[Candidate],
    evaluator: Evaluator,
    run: TrialRun,
    effort: EffortRecord,
) -> tuple[TuningRecord, Finals]:
    """Measure the finalists interleaved and store the winner."""
    chosen = finalists(study.measured())
    if not chosen:
        raise TuningFailedError(_nothing_valid(work.problem, run.results))
    finals = run.finals(chosen)
    ranked = [
        (measurement.median_s, position)
        for position, measurement in enumerate(finals.measurements)
        if measurement.ok and measurement.median_s is not None
    ]
    if not ranked:
        reasons = "; ".join(m.reason for m in finals.measurements)
        raise TuningFailedError(f"no finalist passed its second verification: {reasons}")
    median, position = min(ranked)
    winner = finals.measurements[position]
    interval = winner.interval_s or (median, median)
    candidate = chosen[position]
    ratio = finals.ratios[position]
    baseline = None
    if finals.baseline is not None and ratio is not None:
        baseline = BaselineRecord(finals.baseline.name, finals.baseline.median_s, ratio)
    binary = evaluator.binary(candidate)
    record = TuningRecord(
        fingerprint=work.device.fingerprint,
        operation=work.problem.operation,
        problem=work.problem.key(),
        target=work.target.name,
        candidate=candidate,
        family_digest=work.families[candidate.family].digest,
        space_digest=work.union.digest,
        median_s=median,
        interval_s=interval,
        gflops=work.problem.flops / median / 1e9,
        ties=_ties(position, interval, finals.measurements),
        baseline=baseline,
        effort=effort,
        toolchain=dict(work.device.toolchain),
        state=dict(work.device.state),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        binary=None if binary is None else BinaryRecord.of(binary),
    )
    contents = [] if binary is None else [binary.content, binary.support]
    work.store.add(record, binaries=filter(None, contents))
    return record, finals


def _nothing_valid(problem: Gemm, results: Sequence[TrialResult]) -> str:
    counts = Counter(result.measurement.outcome for result in results)
    reasons = Counter(result.measurement.reason for result in results if result.measurement.reason)
    text = f"no candidate of {problem.label} was valid after {len(results)} trials"
    if counts:
        text += " (" + ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + ")"
    if reasons:
        text += f"; most often: {reasons.most_common(1)[0][0]}"
    if not results:
        text += ": allow more time with timeout=, or --timeout"
    return text


def _known_good(work: Workplace) -> Iterable[Candidate]:
    """First trials: what was tuned for this and near problems, then the default family's points.

    What is not valid for this problem and device is moved to the nearest that is.
    """
    problem, device, spaces = work.problem, work.device, work.union.spaces
    records = work.store.records(operation=problem.operation, target=work.target.name)
    wanted = [each.candidate for each in neighbours(records, problem, device.fingerprint, limit=3)]
    default = work.target.default_family(device)
    if default in spaces:
        family = work.families[default]
        wanted.append(Candidate(default, family.default(problem, device.limits)))
        wanted += [Candidate(default, each.configuration) for each in family.presets.values()]
    for candidate in wanted:
        space = spaces.get(candidate.family)
        if space is None:
            continue
        try:
            known = work.families[candidate.family].conform(candidate.configuration)
        except SpaceError:  # its parameters were others when that was tuned
            continue
        row = space.nearest(known, ())
        if row is not None:
            yield Candidate(candidate.family, space[row])


def _rungs(work: Workplace) -> Iterable[Candidate]:
    """The other families' own points: their presets are rungs of a ladder, and not tried."""
    default = work.target.default_family(work.device)
    for name in work.union.spaces:
        if name != default:
            yield Candidate(name, work.families[name].default(work.problem, work.device.limits))


def finalists(measured: Iterable[tuple[Candidate, Measurement]]) -> list[Candidate]:
    """The best candidates, fastest first: those that could still be the winner."""
    ranked = sorted(
        (
            (measurement.median_s, position, candidate, measurement)
            for position, (candidate, measurement) in enumerate(measured)
            if measurement.ok and measurement.median_s is not None
        ),
    )
    if not ranked:
        return []
    best_s = ranked[0][0]
    best_high = (ranked[0][3].interval_s or (best_s, best_s))[1]
    contenders = []
    for median, _, candidate, measurement in ranked[:FINALISTS]:
        low = (measurement.interval_s or (median, median))[0]
        if median <= CONTENDER_RATIO * best_s or low <= best_high:
            contenders.append(candidate)
    return contenders


def _ties(winner: int, interval: tuple[float, float], measurements: Sequence[Measurement]) -> int:
    """Finalists other than the winner whose intervals overlap its own."""
    return sum(
        measurement.ok
        and measurement.interval_s is not None
        and measurement.interval_s[0] <= interval[1]
        for position, measurement in enumerate(measurements)
        if position != winner
    )


def _study_name(problem: Gemm, target: str) -> str:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{problem.operation}-{problem.label}-{target}-{stamp}-{uuid.uuid4().hex[:4]}"
