"""Tuning: from a problem to a verified, stored winner."""

from __future__ import annotations

import functools
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autotune import __version__, runtime
from autotune.catalog import load_families, select_families
from autotune.configuration import Candidate
from autotune.errors import InputError, TuningFailedError
from autotune.evaluators.base import Baseline, Effort, Evaluator, Finals
from autotune.interrupt import Interrupt
from autotune.measurement import Measurement, Outcome
from autotune.paths import CacheLocations
from autotune.program_cache import ProgramCache
from autotune.search import open_study
from autotune.space import SpaceUnion
from autotune.store import (
    BaselineRecord,
    BinaryRecord,
    EffortRecord,
    TuningCache,
    TuningRecord,
    neighbours,
)
from autotune.targets import Target, make_target

if TYPE_CHECKING:
    from autotune.device import Device
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.runtime import Kernel
    from autotune.search import Proposal, TuningStudy
    from autotune.space import SearchSpace

FINALISTS = 5
"""How many of the best candidates are measured again, interleaved."""

CONTENDER_RATIO = 1.10
"""A finalist is at most this much slower than the best, or its interval overlaps."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a tuning run stands; passed to the callback at the start and after every trial.

    Attributes:
        trial: trials told so far in this run.
        trials: the most this run will make.
        elapsed_s: seconds since the search began.
        timeout_s: seconds after which the search ends.
        best_s: best median so far, in seconds; None before the first success.
        baseline: the vendor library on the same problem; None when there is none.
        flops: floating-point operations of the problem.
        counts: trials by outcome.
    """

    trial: int
    trials: int
    elapsed_s: float
    timeout_s: float
    best_s: float | None
    baseline: Baseline | None
    flops: int
    counts: Mapping[Outcome, int]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial of a run: what was tried and what came of it."""

    candidate: Candidate
    measurement: Measurement


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
        interrupted: whether Ctrl-C ended the search early.
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
        return runtime.load(
            self.problem,
            self.target,
            match="stale",
            device=self.device,
            cache=self.cache,
            extra_families=self.extra_families,
        )


def tune(
    problem: Gemm,
    *,
    target: str | None = None,
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
    progress: Callable[[Progress], None] | None = None,
) -> TuneResult:
    """Search the families' spaces for the fastest kernel of a problem and store the winner.

    The search ends after `trials` trials or `timeout` seconds, or with Ctrl-C; then the best
    candidates are measured again, interleaved with the vendor library, and the winner is stored.

    Args:
        problem: what to tune.
        target: where to run; None takes the best this machine has.
        device: which GPU, by number or (part of) its name; None takes the first.
        families: names of the families to search; empty takes all that can serve the problem.
        extra_families: folders with families of the user's own.
        trials: the most trials to make, all families together.
        timeout: seconds of search; the finals come on top.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        seed: seeds the sampler and the operands.
        cache: folder or database of the user's cache; None takes the default place.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        study: name of the study; an existing one is continued. None starts a new one.
        workers: compile workers; None uses every core.
        effort: how long and how exactly to measure; None takes the default.
        progress: called before the first trial and after every trial.

    Raises:
        TuningFailedError: no candidate compiled, ran and was right.
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    started = time.perf_counter()
    if trials < 1:
        raise InputError(f"trials must be at least 1, got {trials}")
    if not timeout > 0:
        raise InputError(f"timeout must be more than 0 seconds, got {timeout}")
    place = CacheLocations.at(cache).create()
    store = TuningCache(place.database)
    store.check_writable()
    chosen = make_target(target)
    read = chosen.device(problem, device)
    found = select_families(
        load_families(target=chosen.name, operation=problem.operation, extra=extra_families),
        families,
    )
    usable = _usable(found, problem)
    spaces = {name: family.space(problem, read.limits) for name, family in usable.items()}
    spaces = {name: space for name, space in spaces.items() if space.size}
    if not spaces:
        raise InputError(
            f"no configuration of {', '.join(usable)} is valid for {problem.label} on "
            f"{read.fingerprint.name}: `autotune space` shows what pruned them"
        )
    union = SpaceUnion(spaces)
    name = study or _study_name(problem, chosen.name)
    with (
        open_study(
            union,
            storage=storage,
            name=name,
            folder=place.studies,
            sampler=sampler,
            seed=seed,
        ) as opened,
        chosen.evaluator(
            problem,
            usable,
            read,
            ProgramCache(place.programs),
            effort=effort,
            workers=workers,
            seed=seed,
        ) as evaluator,
    ):
        opened.enqueue(_known_good(problem, chosen, read, usable, spaces, store))
        run = _Run(problem, opened, evaluator, store, read, chosen.name, trials, timeout)
        run.search(progress)
        record, finals = run.finish(
            usable, union, EffortRecord(len(run.results), timeout, sampler, seed)
        )
    runtime.forget()
    return TuneResult(
        problem=problem,
        target=chosen.name,
        study=name,
        best=record,
        trials=tuple(run.results),
        spaces=spaces,
        baseline=finals.baseline,
        seconds=time.perf_counter() - started,
        interrupted=run.interrupted,
        device=device,
        cache=None if cache is None else Path(cache),
        extra_families=tuple(extra_families),
    )


class _Run:
    """One search: asks, evaluates, tells, and measures the finalists."""

    def __init__(
        self,
        problem: Gemm,
        study: TuningStudy[Candidate],
        evaluator: Evaluator,
        store: TuningCache,
        device: Device,
        target: str,
        trials: int,
        timeout: float,
    ) -> None:
        self.problem = problem
        self.study = study
        self.evaluator = evaluator
        self.store = store
        self.device = device
        self.target = target
        self.trials = trials
        self.timeout = timeout
        self.results: list[TrialResult] = []
        self.interrupted = False
        self._started = time.perf_counter()
        self._best: float | None = None

    def search(self, progress: Callable[[Progress], None] | None) -> None:
        """Run trials until the budget is spent, the space is exhausted, or Ctrl-C."""
        with Interrupt() as interrupt:
            baseline = self.evaluator.baseline()
            if progress is not None:
                progress(self._progress(baseline))
            waiting: deque[Proposal[Candidate]] = deque()
            while not (interrupt.requested or self._spent):
                self._refill(waiting)
                if not waiting:
                    break
                self._trial(_first_ready(waiting, self.evaluator))
                if progress is not None:
                    progress(self._progress(baseline))
            for unused in waiting:
                self.study.release(unused)
            self.interrupted = interrupt.requested

    def _refill(self, waiting: deque[Proposal[Candidate]]) -> None:
        """Have a batch of candidates compiled or compiling ahead of the one to be measured."""
        if waiting and not self.evaluator.compiles_ahead:
            return
        room = self.evaluator.batch - len(waiting)
        left = self.trials - len(self.results) - len(waiting)
        batch = self.study.ask_batch(max(0, min(room, left)))
        self.evaluator.prepare([proposal.candidate for proposal in batch])
        waiting.extend(batch)

    def finish(
        self,
        families: Mapping[str, KernelFamily],
        union: SpaceUnion,
        effort: EffortRecord,
    ) -> tuple[TuningRecord, Finals]:
        """Measure the finalists interleaved and store the winner."""
        finalists = _finalists(self.study.measured())
        if not finalists:
            raise TuningFailedError(self._nothing_valid())
        finals = self.evaluator.finals(finalists)
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
        candidate = finalists[position]
        family = families[candidate.family]
        ratio = finals.ratios[position]
        baseline = None
        if finals.baseline is not None and ratio is not None:
            baseline = BaselineRecord(finals.baseline.name, finals.baseline.median_s, ratio)
        binary = self.evaluator.binary(candidate)
        record = TuningRecord(
            fingerprint=self.device.fingerprint,
            operation=self.problem.operation,
            problem=self.problem.key(),
            target=self.target,
            candidate=candidate,
            family_digest=family.digest,
            space_digest=union.digest,
            median_s=median,
            interval_s=interval,
            gflops=self.problem.flops / median / 1e9,
            ties=_ties(position, interval, finals.measurements),
            baseline=baseline,
            effort=effort,
            toolchain=dict(self.device.toolchain),
            state=dict(self.device.state),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            binary=None if binary is None else BinaryRecord.of(binary),
        )
        contents = [] if binary is None else [binary.content, binary.support]
        self.store.add(record, binaries=filter(None, contents))
        return record, finals

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _spent(self) -> bool:
        return len(self.results) >= self.trials or self._elapsed >= self.timeout

    def _trial(self, proposal: Proposal[Candidate]) -> None:
        try:
            measurement = self.evaluator.evaluate(proposal.candidate, self._best)
        except BaseException:
            self.study.release(proposal)
            raise
        self.study.tell(proposal, measurement)
        self.results.append(TrialResult(proposal.candidate, measurement))
        self.store.add_measurements(
            self.study.name,
            self.device.fingerprint,
            self.problem,
            self.target,
            [(proposal.candidate, measurement)],
        )
        if measurement.ok and measurement.median_s is not None:
            self._best = min(self._best or math.inf, measurement.median_s)

    def _progress(self, baseline: Baseline | None) -> Progress:
        return Progress(
            trial=len(self.results),
            trials=self.trials,
            elapsed_s=self._elapsed,
            timeout_s=self.timeout,
            best_s=self._best,
            baseline=baseline,
            flops=self.problem.flops,
            counts=Counter(result.measurement.outcome for result in self.results),
        )

    def _nothing_valid(self) -> str:
        counts = Counter(result.measurement.outcome for result in self.results)
        reasons = Counter(
            result.measurement.reason for result in self.results if result.measurement.reason
        )
        text = f"no candidate of {self.problem.label} was valid after {len(self.results)} trials"
        if counts:
            text += " (" + ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + ")"
        if reasons:
            text += f"; most often: {reasons.most_common(1)[0][0]}"
        if not self.results:
            text += ": allow more time with --timeout"
        return text


def _first_ready(waiting: deque[Proposal[Candidate]], evaluator: Evaluator) -> Proposal[Candidate]:
    """Take the oldest proposal that has been compiled, or the oldest if none has."""
    for proposal in waiting:
        if evaluator.is_ready(proposal.candidate):
            break
    else:
        proposal = waiting[0]
    waiting.remove(proposal)
    return proposal


def _usable(families: Mapping[str, KernelFamily], problem: Gemm) -> dict[str, KernelFamily]:
    """The families that can serve a problem; an error that says why when none can."""
    reasons = {name: family.unsupported(problem) for name, family in families.items()}
    usable = {name: families[name] for name, reason in reasons.items() if reason is None}
    if not usable:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise InputError(f"no family can serve {problem.label}: {listed or 'none was found'}")
    return usable


def _known_good(
    problem: Gemm,
    target: Target,
    device: Device,
    families: Mapping[str, KernelFamily],
    spaces: Mapping[str, SearchSpace],
    store: TuningCache,
) -> Iterable[Candidate]:
    """First trials: what was tuned for this and near problems, then the families' own points.

    Of the target's default family those are its presets too; others' are rungs of a ladder.
    """
    records = store.records(operation=problem.operation, target=target.name)
    for record in neighbours(records, problem, device.fingerprint, limit=3):
        space = spaces.get(record.candidate.family)
        if space is None:
            continue
        row = space.nearest(record.candidate.configuration, ())
        if row is not None:
            yield Candidate(record.candidate.family, space[row])
    default = target.default_family(device)
    order = sorted(spaces, key=lambda name: name != default)
    for name in order:
        yield Candidate(name, families[name].default(problem, device.limits))
        if name == default:
            for preset in families[name].presets.values():
                yield Candidate(name, preset.configuration)


def _finalists(measured: Iterable[tuple[Candidate, Measurement]]) -> list[Candidate]:
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
    finalists = []
    for median, _, candidate, measurement in ranked[:FINALISTS]:
        low = (measurement.interval_s or (median, median))[0]
        if median <= CONTENDER_RATIO * best_s or low <= best_high:
            finalists.append(candidate)
    return finalists


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
