"""Tuning a preset: many problems within one time limit, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core import arguments
from autotune.core.deadline import Deadline
from autotune.core.errors import CacheError, InputError, TuningFailedError, WorkerError
from autotune.core.interrupt import Interrupt
from autotune.core.pace import Pace
from autotune.core.paths import CacheLocations, private_folder
from autotune.families.catalog import load_families, select_families
from autotune.families.program_cache import ProgramCache
from autotune.measuring.evaluator import Effort
from autotune.runtime.asking import check_place, check_run
from autotune.serving.target import Work
from autotune.store import MatchQuality, TuningCache, TuningRecord, find
from autotune.surveying.portfolios import survey_device
from autotune.surveying.preset_schedule import (
    MIN_VISIT_S,
    Claim,
    expected_gain,
    first_visit_s,
    in_turn,
    second_round_s,
    second_visits,
    survey_s,
)
from autotune.surveying.survey import Place
from autotune.targets.registry import make_target
from autotune.tuning.trials import Workplace
from autotune.tuning.tuner import TuneResult, tune_at

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.surveying.portfolios import Surveyed
    from autotune.surveying.portfolios import Watch as SurveyWatch
    from autotune.surveying.presets import TuningPreset
    from autotune.tuning.progress import Watcher

EFFORT = Effort(budget_s=0.1, finals_s=2.0)
"""Less per trial than for a single problem: there are many, and they learn from each other."""


class PresetStatus(StrEnum):
    """What became of a problem of a preset."""

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
    cache: str | Path | None = None,
    storage: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    visits: SurveyWatch | None = None,
    surveyed: Callable[[Surveyed], None] | None = None,
) -> Iterator[PresetResult]:
    """Survey the device, if the preset says so, and tune a preset's problems.

    Yields each problem when it is done.

    Problems that an earlier run of the same preset has finished, with the same limits and families
    on this device, are kept as long as their record fits exactly and was measured in quiet; one
    that was interrupted goes on in its study. How the time is divided, `preset_schedule` says.
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
        sampler: as for `tune`.
        seed: as for `tune`.
        cache: as for `tune`.
        storage: as for `tune`.
        workers: as for `tune`.
        watch: shows progress.
        visits: shows progress of the survey.
        surveyed: hears of each portfolio that was stored.

    Raises:
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    limit_s = arguments.seconds("timeout", preset.seconds if seconds is None else seconds)
    most = arguments.whole("trials", preset.trials if trials is None else trials)
    seed, workers = arguments.seed(seed), arguments.workers(workers)
    families = arguments.texts("families", families)
    extra_families = arguments.paths("extra_families", extra_families)
    if target is not None:
        arguments.text("target", target)
    check_place(target, device, cache)
    check_run(sampler=sampler, storage=storage, study=None, effort=None, progress=watch)
    deadline = Deadline(limit_s)
    name = target or preset.target
    chosen = make_target(name)
    offered = load_families(target=name, operation=preset.operation, extra=extra_families)
    found = select_families(offered, families)
    read = chosen.device(None, device)
    read.check_here()
    place = CacheLocations.at(cache).create()
    store = TuningCache(place.database)
    identity = _identity(preset, name, found, read, f"{limit_s:g} s, {most} trials")
    journal = _Journal(place.root / "presets" / f"{preset.name}-{identity}.txt")
    finished = journal.labels()
    digests = {family.name: family.digest for family in found.values()}

    def stored(problem: Problem) -> TuningRecord | None:
        """A problem's own record, if there is one that still holds."""
        records = store.records(read.fingerprint.digest, problem.operation, name)
        match = find(records, problem, name, read, digests, lambda record: None)
        exact = match.record if match.quality is MatchQuality.EXACT else None
        # What a disturbed moment measured is not to stay.
        return None if exact is None or exact.noisy else exact

    tasks = []
    for each in preset.problems:
        study = f"preset-{preset.name}-{identity}-{each.problem.label}"
        record = stored(each.problem)
        if record is not None and each.problem.label in finished:
            yield PresetResult(each.problem, study, PresetStatus.KEPT, record)
        else:
            tasks.append(_Task(each.problem, each.seconds, study, most, record))

    def workplace(problem: Problem) -> Workplace:
        return Workplace.of(
            problem,
            target=chosen,
            device=device,
            families=families,
            extra_families=extra_families,
            cache=cache,
        )

    def visit(task: _Task, visit_s: float) -> TuneResult:
        """Tune a problem for so long, or longer until something of it is valid."""
        own = Deadline(deadline.left_s, goal_s=visit_s)
        shown = None if watch is None else watch(task.problem, visit_s)
        with Interrupt(own) as interrupt:
            try:
                task.work = task.work or _able(workplace, task.problem)
                return tune_at(
                    task.work,
                    task.study,
                    own,
                    interrupt,
                    trials=task.trials,
                    sampler=sampler,
                    seed=seed,
                    storage=storage,
                    workers=workers,
                    effort=EFFORT,
                    progress=shown,
                    beside=host,
                    pace=task.pace,
                )
            finally:
                task.interrupted = interrupt.requested

    plan = None if _SURVEY in finished else preset.survey
    if not tasks and plan is None:
        return
    programs = ProgramCache.of(place)
    first = preset.problems[0].problem
    if plan is not None:
        survey = Place(chosen, read, found, store, programs, workers, seed)
        own = Deadline(survey_s(deadline.remaining_s, plan.share, len(tasks)))
        brought = False
        with Interrupt(own) as interrupt:
            for made in survey_device(
                survey,
                plan,
                own,
                lambda: interrupt.requested,
                study=f"survey-{preset.name}-{_identity(preset, name, found, read)}",
                watch=visits,
            ):
                brought = True
                if surveyed is not None:
                    surveyed(made)
        if interrupt.requested:
            for task in tasks:
                status = PresetStatus.NOT_REACHED
                yield PresetResult(task.problem, task.study, status, reason=_INTERRUPTED)
            return
        if brought:  # else there was too little time, and the next run tries again
            journal.add(_SURVEY)
    # Its processes are everybody's; it measures nothing itself.
    with chosen.evaluator(Work(first, found, read, programs, EFFORT, workers, seed)) as host:
        yield from _Rounds(tasks, deadline, visit, journal).hold()


def _able(workplace: Callable[[Problem], Workplace], problem: Problem) -> Workplace:
    """Where a problem is tuned: what one cannot be, others may.

    Raises:
        TuningFailedError: nothing here computes it.
        CacheError: the cache cannot be written.
    """
    try:
        return workplace(problem)
    except InputError as error:
        raise TuningFailedError(str(error)) from error


_SURVEY = "survey"
"""What the journal calls the survey."""

_INTERRUPTED = "interrupted: run it again to go on"


@dataclass(slots=True)
class _Task:
    """A problem that is to be tuned, and how it stands.

    Attributes:
        problem: what is tuned.
        weight: seconds that the preset means for it.
        study: the study's name.
        trials: trials that it may still take.
        record: what was stored for it before this run.
        work: where it is tuned, once that is known.
        pace: what its steps have taken.
        medians: of its trials so far, in seconds.
        result: of the last visit that ended with a winner.
        failure: why the last visit did not.
        interrupted: whether a request to stop ended the last visit.
    """

    problem: Problem
    weight: float
    study: str
    trials: int
    record: TuningRecord | None
    work: Workplace | None = None
    pace: Pace = field(default_factory=Pace)
    medians: list[float] = field(default_factory=list)
    result: TuneResult | None = None
    failure: str = ""
    interrupted: bool = False

    @property
    def gain(self) -> float:
        """What more time is expected to bring; see `expected_gain`."""
        record = self.record if self.result is None else self.result.best
        if record is None:
            return expected_gain(None, ())
        ratio = None if record.baseline is None else record.baseline.ratio
        return expected_gain(ratio, self.medians or [record.median_s])

    def note(self, result: TuneResult) -> None:
        """A visit ended with a winner."""
        self.result = result
        self.failure = ""
        self.trials -= len(result.trials)
        self.medians += [
            trial.measurement.median_s
            for trial in result.trials
            if trial.measurement.ok and trial.measurement.median_s is not None
        ]


class _Rounds:
    """Visits to all problems, then to those that promise most; see `preset_schedule`."""

    def __init__(
        self,
        tasks: Sequence[_Task],
        deadline: Deadline,
        visit: Callable[[_Task, float], TuneResult],
        journal: _Journal,
    ) -> None:
        order = in_turn([Claim(each.weight, each.gain, each.problem.dtype) for each in tasks])
        self._tasks = [tasks[at] for at in order]
        self._deadline = deadline
        self._visit = visit
        self._journal = journal
        self._stopped = ""
        self._too_little = (
            f"too little is left of the {deadline.limit_s:g} s: run it again to go on"
        )
        self._compile_s = 0.0

    def hold(self) -> Iterator[PresetResult]:
        """Make the visits; yields each problem after its last one."""
        visited = []
        kept_s = second_round_s(self._deadline.left_s, [task.weight for task in self._tasks])
        for number, task in enumerate(self._tasks):
            weights = [each.weight for each in self._tasks[number:]]
            visit_s = first_visit_s(self._deadline.left_s - kept_s, weights)
            if visit_s is None and not self._stopped:
                self._stopped = self._too_little
            if visit_s is None or self._stopped:
                status = PresetStatus.NOT_REACHED
                yield PresetResult(task.problem, task.study, status, reason=self._stopped)
                continue
            self._go(task, visit_s)
            if kept_s and not self._stopped:
                visited.append(task)
            else:
                yield self._done(task)
        while visited:
            open_tasks = [task for task in visited if task.trials > 0 and not self._stopped]
            claims = [Claim(task.weight, task.gain) for task in open_tasks]
            plan = second_visits(self._deadline.left_s, claims)
            chosen = open_tasks[plan[0][0]] if plan else None
            if chosen is not None:
                self._go(chosen, plan[0][1])
            # Without another visit in sight all are done.
            for task in [chosen] if chosen is not None else list(visited):
                visited.remove(task)
                yield self._done(task)

    def _go(self, task: _Task, visit_s: float) -> None:
        task.pace.compile_s = task.pace.compile_s or self._compile_s
        try:
            result = self._visit(task, visit_s)
        except (TuningFailedError, WorkerError) as error:
            task.failure = str(error)
        else:
            task.note(result)
        if task.interrupted:
            self._stopped = _INTERRUPTED
        self._compile_s = task.pace.compile_s

    def _done(self, task: _Task) -> PresetResult:
        """What became of a problem, now that no other visit follows."""
        problem, study, result = task.problem, task.study, task.result
        if result is not None:
            if not self._stopped:
                self._journal.add(problem.label)
            return PresetResult(problem, study, PresetStatus.TUNED, result.best, result)
        if not self._stopped and self._deadline.left_s < MIN_VISIT_S:
            self._stopped = self._too_little
        if self._stopped:
            return PresetResult(problem, study, PresetStatus.NOT_REACHED, reason=self._stopped)
        return PresetResult(problem, study, PresetStatus.FAILED, reason=task.failure)


class _Journal:
    """The problems that runs of one preset have finished, a line each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def labels(self) -> frozenset[str]:
        try:
            return frozenset(self._path.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return frozenset()
        except (OSError, UnicodeDecodeError) as error:
            raise CacheError(f"cannot read {self._path} ({error}): remove it") from error

    def add(self, label: str) -> None:
        private_folder(self._path.parent)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{label}\n")
        except OSError as error:
            raise CacheError(f"cannot write {self._path}: {error.strerror or error}") from error


def _identity(
    preset: TuningPreset,
    target: str,
    families: Mapping[str, KernelFamily],
    device: Device,
    effort: str = "",
) -> str:
    """Twelve hex digits over all that makes two runs of a preset comparable."""
    parts = [preset.digest, target, device.fingerprint.digest, effort]
    parts += sorted(family.digest for family in families.values())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
