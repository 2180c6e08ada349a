"""Tuning a preset: many problems within one time limit, resumable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from autotune.core import arguments
from autotune.core.deadline import Deadline
from autotune.core.errors import InputError, TuningFailedError, WorkerError
from autotune.core.interrupt import Interrupt
from autotune.core.pace import Pace
from autotune.core.paths import CacheLocations
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort
from autotune.runtime.loading import check_place
from autotune.store import MatchQuality, TuningCache, TuningRecord, find
from autotune.surveying.journal import Journal, identity
from autotune.surveying.portfolios import survey_device
from autotune.surveying.visits import (
    MIN_VISIT_S,
    Claim,
    expected_gain,
    first_visit_s,
    in_turn,
    second_round_s,
    second_visits,
    survey_s,
)
from autotune.targets.families import load_families, select_families
from autotune.targets.registry import make_target
from autotune.tuning.budget import Budget
from autotune.tuning.context import DeviceContext, TuningContext
from autotune.tuning.known import known_good
from autotune.tuning.run import tune_in
from autotune.tuning.settings import Run

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.surveying.portfolios import Surveyed, SurveyPlan
    from autotune.surveying.portfolios import Watch as SurveyWatch
    from autotune.surveying.presets import TuningPreset
    from autotune.tuning.progress import Watcher
    from autotune.tuning.results import TuneResult

EFFORT = Effort(budget_s=0.05, finals_s=1.0, sustained_s=4.0)
"""Less per trial than for a single problem: there are many, and they learn from each other."""

PREDICTED = 32
"""First trials that the device's cost model chooses: a program that is compiled is timed in less
time than a search takes to propose another."""

AHEAD = 3
"""Problems after the one that is measured whose first trials compilers begin with."""

GRACE_S = 8.0
"""Seconds beyond a visit's goal that its finals may take: where they are cut off their operands
were drawn in vain."""

SURVEY = "survey"
"""The survey's line in the journal."""

INTERRUPTED = "interrupted: run it again to go on"


class PresetStatus(StrEnum):
    """Outcome of a problem of a preset."""

    TUNED = "tuned"
    KEPT = "kept"
    """An earlier run of the preset has tuned it, and its record fits exactly and is not noisy."""
    FAILED = "failed"
    NOT_REACHED = "not reached"
    """The time was over before its turn, or the run was interrupted."""


@dataclass(frozen=True, slots=True)
class PresetResult:
    """One problem of a preset run.

    Attributes:
        problem: what was to be tuned.
        study: the study's name: the same in every run of the preset.
        status: what became of it.
        record: the winner's record; None where there is none.
        result: the tuning run; None where there was none.
        reason: one line saying why the problem was not tuned.
    """

    problem: Problem
    study: str
    status: PresetStatus
    record: TuningRecord | None = None
    result: TuneResult | None = None
    reason: str = ""


Watch = Callable[["Problem", float], "Watcher | None"]
"""``watch(problem, seconds)``: called before each visit; returns its progress callback."""


def run_preset(
    preset: TuningPreset,
    *,
    target: str | None = None,
    device: int | str | None = None,
    families: Sequence[str] = (),
    extra_families: Sequence[Path] = (),
    seconds: float | None = None,
    trials: int | None = None,
    sampler: str = "auto",
    seed: int = 0,
    rank: str = "sustained",
    cache: str | Path | None = None,
    storage: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    visits: SurveyWatch | None = None,
    surveyed: Callable[[Surveyed], None] | None = None,
    reached: Callable[[PresetResult], None] | None = None,
) -> Iterator[PresetResult]:
    """Survey the device, if the preset says so, and tune a preset's problems.

    Yields each problem when it is done.

    Problems that an earlier run of the same preset has finished, with the same limits and families
    on this device, are kept as long as their record fits exactly and was measured in quiet; one
    that was interrupted goes on in its study. How the time is divided, `visits` says.
    Processes that compile and measure serve all problems, and operands are kept as far as memory
    goes.

    Args:
        preset: what to tune.
        target: where to run; None takes the preset's target.
        device: which GPU, by number or (part of) its name; None takes the first.
        families: names of the families to search; empty takes all that can serve a problem.
        extra_families: folders with families of the user's own.
        seconds: limit for the whole run, all in; None takes the preset's.
        trials: limit of trials for each problem; None takes the preset's.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        seed: seeds the sampler and the operands; 0 or more, below 2**63.
        rank: as for `tune`.
        cache: folder or database of the user's cache; None takes the default place.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        workers: processes that compile, at least 1; None uses every core.
        watch: called before each visit; returns its progress callback.
        visits: called before each visit of the survey.
        surveyed: called with each portfolio that was stored.
        reached: called with the result of a first visit that another may follow.

    Raises:
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    if target is not None:
        arguments.text("target", target)
    check_place(target, device, cache)
    arguments.must("watch", "None or a function", watch, watch is None or callable(watch))
    run = Run.of(
        trials=preset.trials if trials is None else trials,
        timeout=preset.seconds if seconds is None else seconds,
        sampler=sampler,
        seed=seed,
        storage=storage,
        workers=workers,
        effort=EFFORT,
        predicted=PREDICTED,
        rank=rank,
    )
    families = arguments.texts("families", families)
    extra_families = arguments.paths("extra_families", extra_families)
    deadline = Deadline(run.timeout)
    chosen = make_target(target or preset.target)
    offered = load_families(target=chosen.name, operation=preset.operation, extra=extra_families)
    found = select_families(offered, families)
    read = chosen.device(None, device)
    read.check_here()
    place = CacheLocations.at(cache).create()
    context = DeviceContext(
        chosen, read, found, TuningCache(place.database), ProgramCache.of(place)
    )
    context_of = functools.partial(
        TuningContext.of,
        target=chosen,
        device=device,
        families=families,
        extra_families=extra_families,
        cache=cache,
        options={},
    )
    folder = place.root / "presets"
    yield from PresetRun(
        preset, run, deadline, context, context_of, folder, watch, visits, surveyed, reached
    ).results()


@dataclass(slots=True)
class _Task:
    """A problem that is to be tuned, and how it stands.

    Attributes:
        problem: what is tuned.
        weight: seconds that the preset means for it.
        study: the study's name.
        trials: trials that it may still take.
        record: what was stored for it before this run.
        context: where it is tuned, once that is known.
        pace: what its steps have taken.
        medians: of its trials so far, in seconds.
        result: of the last visit that ended with a winner.
        failure: why the last visit did not.
    """

    problem: Problem
    weight: float
    study: str
    trials: int
    record: TuningRecord | None
    context: TuningContext | None = None
    pace: Pace = field(default_factory=Pace)
    medians: list[float] = field(default_factory=list)
    result: TuneResult | None = None
    failure: str = ""

    @property
    def claim(self) -> Claim:
        """Its claim when time is divided."""
        record = self.record if self.result is None else self.result.best
        if record is None or record.noisy:  # nobody knows how good that is
            gain = expected_gain(None, ())
        else:
            gain = expected_gain(record.ratio, self.medians or [record.median_s])
        return Claim.of(self.problem, self.weight, gain)

    def note(self, result: TuneResult) -> None:
        """A visit ended with a winner."""
        self.result = result
        self.failure = ""
        self.trials -= len(result.trials)
        found = [trial.measurement for trial in result.trials]
        self.medians += [
            trial.median_s for trial in found if trial.ok and trial.median_s is not None
        ]

    def became(self, status: PresetStatus, reason: str = "") -> PresetResult:
        """The problem's result, now that no other visit follows."""
        record = None if self.result is None else self.result.best
        return PresetResult(self.problem, self.study, status, record, self.result, reason)


@dataclass
class PresetRun:
    """One run of a preset: keep what is finished, survey, visit all, visit the promising again.

    Args:
        preset: what is tuned.
        run: settings; every visit has a study of its own.
        deadline: until when it may take.
        context: the device, and all families that take part.
        context_of: makes the tuning context of a problem.
        folder: where the journal of finished problems is kept.
        watch: called before each visit; returns its progress callback.
        visits: called before each visit of the survey.
        surveyed: called with each portfolio that was stored.
        reached: called with the result of a first visit that another may follow.
    """

    preset: TuningPreset
    run: Run
    deadline: Deadline
    context: DeviceContext
    context_of: Callable[[Problem], TuningContext]
    folder: Path
    watch: Watch | None
    visits: SurveyWatch | None
    surveyed: Callable[[Surveyed], None] | None
    reached: Callable[[PresetResult], None] | None

    def __post_init__(self) -> None:
        limits = f"{self.run.timeout:g} s, {self.run.trials} trials"
        ranked = "" if self.run.rank == "sustained" else f", {self.run.rank}"
        self._identity = identity(self.preset, self.context, limits + ranked)
        self._journal = Journal(self.folder / f"{self.preset.name}-{self._identity}.txt")
        self._too_little = (
            f"too little is left of the {self.run.timeout:g} s: run it again to go on"
        )
        self._stopped = ""
        self._compile_s = 0.0
        self._tasks: list[_Task] = []

    def results(self) -> Iterator[PresetResult]:
        """Every problem when it is done."""
        finished = self._journal.labels()
        yield from self._keep(finished)
        plan = None if SURVEY in finished else self.preset.survey
        if not self._tasks and plan is None:
            return
        if plan is not None:
            self._survey(plan)
        if self._stopped:
            for task in self._tasks:
                yield task.became(PresetStatus.NOT_REACHED, self._stopped)
            return
        # Its processes are everybody's; it measures nothing itself.
        first = self.preset.problems[0].problem
        with self.context.evaluator(first, self.run) as host:
            order = in_turn([task.claim for task in self._tasks])
            self._tasks = [self._tasks[at] for at in order]
            visited: list[_Task] = []
            yield from self._first_round(host, visited)
            yield from self._second_round(host, visited)

    def _keep(self, finished: frozenset[str]) -> Iterator[PresetResult]:
        """Problems that an earlier run has finished; the others become tasks."""
        for member in self.preset.problems:
            problem = member.problem
            study = f"preset-{self.preset.name}-{self._identity}-{problem.label}"
            record = self._stored(problem)
            if record is not None and problem.label in finished:
                yield PresetResult(problem, study, PresetStatus.KEPT, record)
            else:
                trials = self.run.trials
                self._tasks.append(_Task(problem, member.seconds, study, trials, record))

    def _stored(self, problem: Problem) -> TuningRecord | None:
        """A problem's own record, if there is one that still holds and was measured in quiet."""
        context = self.context
        device, target = context.device, context.target.name
        records = context.store.records(device.fingerprint.digest, problem.operation, target)
        digests = {family.name: family.digest for family in context.families.values()}
        match = find(records, problem, target, device, digests, lambda record: None)
        exact = match.record if match.quality is MatchQuality.EXACT else None
        return None if exact is None or exact.noisy else exact

    def _survey(self, plan: SurveyPlan) -> None:
        """Survey the device; where there was too little time the next run tries again."""
        left_s, name = self.deadline.remaining_s, self.preset.name
        own = Deadline(survey_s(left_s, plan.share, len(self._tasks)))
        study = f"survey-{name}-{identity(self.preset, self.context)}"
        brought = False
        with Interrupt(own) as interrupt:
            for made in survey_device(
                self.context,
                self.run,
                plan,
                own,
                lambda: interrupt.requested,
                study=study,
                watch=self.visits,
            ):
                brought = True
                if self.surveyed is not None:
                    self.surveyed(made)
        if interrupt.requested:
            self._stopped = INTERRUPTED
        elif brought:
            self._journal.add(SURVEY)

    def _first_round(self, host: Evaluator, visited: list[_Task]) -> Iterator[PresetResult]:
        """Visit every problem once; those that may be visited again are put into `visited`."""
        kept_s = second_round_s(self.deadline.left_s, len(self._tasks))
        with ExitStack() as opened:
            for number, task in enumerate(self._tasks):
                weights = [task.weight for task in self._tasks[number:]]
                visit_s = first_visit_s(self.deadline.left_s, kept_s, weights)
                if visit_s is None and not self._stopped:
                    self._stopped = self._too_little
                if visit_s is None or self._stopped:
                    yield task.became(PresetStatus.NOT_REACHED, self._stopped)
                    continue
                for near in self._tasks[number : number + 1 + AHEAD]:
                    self._compile_ahead(near, host, opened)
                self._visit(task, visit_s, host)
                if not kept_s or self._stopped:
                    yield self._done(task)
                    continue
                visited.append(task)
                if self.reached is not None and task.result is not None:
                    self.reached(task.became(PresetStatus.TUNED))

    def _compile_ahead(self, task: _Task, host: Evaluator, opened: ExitStack) -> None:
        """Have compilers begin with a problem's first trials while others are measured."""
        if task.context is not None or not host.compiles_ahead:
            return
        with suppress(TuningFailedError):  # as its visit will find
            task.context = self._able(task.problem)
            evaluator = task.context.evaluator(task.problem, self.run, host)
            opened.enter_context(evaluator)
            evaluator.compile_ahead(list(known_good(task.context, self.run.predicted)))

    def _second_round(self, host: Evaluator, visited: list[_Task]) -> Iterator[PresetResult]:
        """Visit the most promising again, as long as there is time."""
        while visited:
            able = [task for task in visited if task.trials > 0 and not self._stopped]
            plan = second_visits(self.deadline.left_s, [task.claim for task in able])
            if not plan:  # without another visit in sight all are done
                yield from map(self._done, visited)
                return
            place, visit_s = plan[0]
            self._visit(able[place], visit_s, host)
            visited.remove(able[place])
            yield self._done(able[place])

    def _visit(self, task: _Task, visit_s: float, host: Evaluator) -> None:
        """Tune a problem for so long, or longer until something of it is valid."""
        task.pace.compile_s = task.pace.compile_s or self._compile_s
        own = Deadline(self.deadline.left_s, goal_s=visit_s, grace_s=GRACE_S)
        watcher = None if self.watch is None else self.watch(task.problem, visit_s)
        run = replace(self.run, study=task.study, trials=task.trials, progress=watcher)
        with Interrupt(own) as interrupt:
            try:
                task.context = task.context or self._able(task.problem)
                task.note(tune_in(task.context, run, Budget(own, interrupt, task.pace), host))
            except (TuningFailedError, WorkerError) as error:
                task.failure = str(error)
        if interrupt.requested:
            self._stopped = INTERRUPTED
        self._compile_s = task.pace.compile_s

    def _able(self, problem: Problem) -> TuningContext:
        try:
            return self.context_of(problem)
        except InputError as error:  # what one cannot be tuned for, others may
            raise TuningFailedError(str(error)) from error

    def _done(self, task: _Task) -> PresetResult:
        """The result of a problem, now that no other visit follows."""
        if task.result is not None:
            if not self._stopped:
                self._journal.add(task.problem.label)
            return task.became(PresetStatus.TUNED)
        if not self._stopped and self.deadline.left_s < MIN_VISIT_S:
            self._stopped = self._too_little
        if self._stopped:
            return task.became(PresetStatus.NOT_REACHED, self._stopped)
        return task.became(PresetStatus.FAILED, task.failure)
