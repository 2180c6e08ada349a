"""The trials of one problem, as tuning and sweeping share them: ask, compile, evaluate, tell."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.catalog import load_families, select_families
from autotune.configuration import Candidate
from autotune.errors import InputError
from autotune.evaluators.base import Baseline, Effort, Evaluator
from autotune.interrupt import Interrupt
from autotune.measurement import Measurement, Outcome
from autotune.paths import CacheLocations
from autotune.priors import known_priors
from autotune.program_cache import ProgramCache
from autotune.search import open_study
from autotune.space import SpaceUnion
from autotune.store import TuningCache
from autotune.targets import Target, make_target

if TYPE_CHECKING:
    from autotune.device import Device
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.search import Proposal, TuningStudy
    from autotune.search.model import Prior


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands; passed to the callback at the start and after every trial.

    Attributes:
        trial: trials told so far in this run.
        trials: the most this run will make.
        elapsed_s: seconds since the search began.
        timeout_s: seconds after which the search ends; infinite where only trials count.
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


@dataclass(frozen=True, slots=True)
class Workplace:
    """What the trials of a problem need: where they run, what can be tried, where it is kept.

    Attributes:
        problem: what is computed.
        target: where it runs.
        device: as the target read it.
        families: those that can serve the problem, by name.
        union: their spaces, as pruned for this device and problem; empty ones are left out.
        place: folders of the cache.
        store: the cache itself.
    """

    problem: Gemm
    target: Target
    device: Device
    families: Mapping[str, KernelFamily]
    union: SpaceUnion
    place: CacheLocations
    store: TuningCache

    @classmethod
    def of(
        cls,
        problem: Gemm,
        *,
        target: str | Target | None,
        device: int | str | None,
        families: Sequence[str],
        extra_families: Sequence[Path],
        cache: str | Path | None,
    ) -> Workplace:
        """Read the device, find the families, and make sure that the cache can be written.

        Raises:
            InputError: something cannot be used, or nothing is valid for the problem there.
            CacheError: the cache cannot be written.
        """
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
        return cls(problem, chosen, read, usable, SpaceUnion(spaces), place, store)

    @contextmanager
    def open(
        self,
        study: str,
        *,
        storage: str | None,
        sampler: str,
        seed: int,
        workers: int | None,
        effort: Effort | None,
    ) -> Iterator[tuple[TuningStudy[Candidate], Evaluator]]:
        """The study of that name and a running evaluator; both are closed at the end.

        Raises:
            StudyError: the storage cannot be read, or the study is of another space.
            UnknownNameError: there is no such sampler.
            MissingDependencyError: the sampler, the storage or the target needs a package.
        """
        with (
            open_study(
                self.union,
                storage=storage,
                name=study,
                folder=self.place.studies,
                sampler=sampler,
                seed=seed,
                prior=self._priors() if sampler == "auto" else (),
            ) as opened,
            self.target.evaluator(
                self.problem,
                self.families,
                self.device,
                ProgramCache(self.place.programs),
                effort=effort,
                workers=workers,
                seed=seed,
            ) as evaluator,
        ):
            yield opened, evaluator

    def _priors(self) -> list[Prior]:
        families = {name: self.families[name] for name in self.union.spaces}
        return known_priors(self.problem, self.target.name, self.device, families, self.store)


class TrialRun:
    """One run of trials: asks, has compiled, evaluates, tells and stores.

    Args:
        workplace: what can be tried, and where.
        study: where candidates come from and where results go.
        evaluator: turns candidates into measurements.
        trials: the most trials to make.
        timeout: seconds after which no trial begins.
        racing: whether a candidate is abandoned once it is far behind the best so far; if not,
            every candidate is timed to the end.

    Attributes:
        results: every trial of this run, in order.
        interrupted: whether Ctrl-C ended it.
    """

    def __init__(
        self,
        workplace: Workplace,
        study: TuningStudy[Candidate],
        evaluator: Evaluator,
        *,
        trials: int,
        timeout: float = math.inf,
        racing: bool = True,
    ) -> None:
        self.results: list[TrialResult] = []
        self.interrupted = False
        self._workplace = workplace
        self._study = study
        self._evaluator = evaluator
        self._trials = trials
        self._timeout = timeout
        self._racing = racing
        self._started = time.perf_counter()
        self._best: float | None = None

    def search(
        self,
        progress: Callable[[Progress], None] | None,
        source: Iterator[Candidate] | None = None,
        rungs: Iterable[Candidate] = (),
    ) -> None:
        """Run trials until the budget is spent, there is nothing left to try, or Ctrl-C.

        Args:
            progress: called before the first trial and after every trial.
            source: what to try, in this order, in place of what the sampler proposes; what the
                study has visited is passed over.
            rungs: what is tried besides, half of every batch: no family goes untried, but
                compiling them all at once takes longer than a short search should wait.
        """
        rungs = iter(rungs)
        with Interrupt() as interrupt:
            baseline = self._evaluator.baseline()
            if progress is not None:
                progress(self._progress(baseline))
            waiting: deque[Proposal[Candidate]] = deque()
            while not (interrupt.requested or self._spent):
                self._refill(waiting, source, rungs)
                if not waiting:
                    break
                self._trial(_first_ready(waiting, self._evaluator))
                if progress is not None:
                    progress(self._progress(baseline))
            for unused in waiting:
                self._study.release(unused)
            self.interrupted = interrupt.requested

    @property
    def counts(self) -> dict[Outcome, int]:
        """Trials of this run by outcome."""
        return dict(Counter(result.measurement.outcome for result in self.results))

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _spent(self) -> bool:
        return len(self.results) >= self._trials or self._elapsed >= self._timeout

    def _refill(
        self,
        waiting: deque[Proposal[Candidate]],
        source: Iterator[Candidate] | None,
        rungs: Iterator[Candidate],
    ) -> None:
        """Have a batch of candidates compiled or compiling ahead of the one to be measured."""
        if waiting and not self._evaluator.compiles_ahead:
            return
        room = self._evaluator.batch - len(waiting)
        left = self._trials - len(self.results) - len(waiting)
        count = max(0, min(room, left))
        if source is not None:
            taken = 0
            while taken < count and (candidate := next(source, None)) is not None:
                taken += self._study.enqueue([candidate])
            count = taken
        if count:
            some = max(1, self._evaluator.batch // 2) - self._study.enqueued
            self._study.enqueue(itertools.islice(rungs, max(0, some)))
        batch = self._study.ask_batch(count)
        self._evaluator.prepare([proposal.candidate for proposal in batch])
        waiting.extend(batch)

    def _trial(self, proposal: Proposal[Candidate]) -> None:
        best_s = self._best if self._racing else None
        try:
            measurement = self._evaluator.evaluate(proposal.candidate, best_s)
        except BaseException:
            self._study.release(proposal)
            raise
        # First: whoever is killed in between loses nothing that was reported.
        self._workplace.store.add_measurements(
            self._study.name,
            self._workplace.device.fingerprint,
            self._workplace.problem,
            self._workplace.target.name,
            [(proposal.candidate, measurement)],
        )
        self._study.tell(proposal, measurement)
        self.results.append(TrialResult(proposal.candidate, measurement))
        if measurement.ok and measurement.median_s is not None:
            self._best = min(self._best or math.inf, measurement.median_s)

    def _progress(self, baseline: Baseline | None) -> Progress:
        return Progress(
            trial=len(self.results),
            trials=self._trials,
            elapsed_s=self._elapsed,
            timeout_s=self._timeout,
            best_s=self._best,
            baseline=baseline,
            flops=self._workplace.problem.flops,
            counts=self.counts,
        )


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
