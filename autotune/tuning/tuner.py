"""Tuning: from a problem to a verified, stored winner."""

from __future__ import annotations

import functools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import arguments
from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import NotTunedError, SpaceError
from autotune.core.interrupt import Interrupt
from autotune.core.session import forget
from autotune.families.defaults import default_family
from autotune.runtime.asking import check_asked, check_run
from autotune.runtime.loading import load
from autotune.serving import lookup
from autotune.store import EffortRecord, neighbours
from autotune.targets.registry import make_target
from autotune.tuning.deciding import FINALISTS, decide
from autotune.tuning.progress import Progress, Watcher
from autotune.tuning.trial_run import TrialRun
from autotune.tuning.trials import TrialResult, Workplace

if TYPE_CHECKING:
    from autotune.core.measurement import Outcome
    from autotune.core.pace import Pace
    from autotune.measuring.evaluator import Baseline, Effort, Evaluator
    from autotune.model import Key
    from autotune.operations.problem import Problem
    from autotune.serving.kernel import Kernel
    from autotune.serving.target import Target
    from autotune.space import SearchSpace
    from autotune.store import Match, TuningRecord

__all__ = ["Progress", "TrialResult", "TuneResult", "tune"]


PREDICTED = 8
"""First trials that the device's model chooses."""

CALLS = 2
"""Of these, calls of one program: about others the model is more likely to be wrong."""


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run found.

    Attributes:
        problem: what was tuned.
        target: where it runs.
        study: name of the Optuna study; pass it again to go on.
        best: the record of the winner: the fastest kernel of the families searched.
        serving: the record that `load` gives from now on: `best`, unless one that was tuned
            before is of another family, and faster.
        kept: whether `best` was there before: nothing that was tried now beat it in turns.
        trials: every trial of this run, in order.
        spaces: the families' search spaces, as pruned for this device and problem.
        baseline: the vendor library, measured interleaved with the finalists.
        seconds: wall time of the whole run.
        interrupted: whether Ctrl-C, or another request to stop, ended it early.
        placed: the target itself, with what it was told.
        device: which device was asked for; None for the first.
        cache: where the record was stored; None for the default place.
        extra_families: folders with families of the user's own that took part.
    """

    problem: Problem
    target: str
    study: str
    best: TuningRecord
    serving: TuningRecord
    kept: bool
    trials: tuple[TrialResult, ...]
    spaces: Mapping[str, SearchSpace]
    baseline: Baseline | None
    seconds: float
    interrupted: bool
    placed: Target = field(repr=False)
    device: int | str | None = field(default=None, repr=False)
    cache: Path | None = field(default=None, repr=False)
    extra_families: tuple[Path, ...] = field(default=(), repr=False)

    @property
    def counts(self) -> dict[Outcome, int]:
        """Trials of this run by outcome."""
        return dict(Counter(trial.measurement.outcome for trial in self.trials))

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel that serves the problem now (`serving`)."""
        return load(
            self.problem,
            self.placed,
            match="stale",
            device=self.device,
            cache=self.cache,
            extra_families=self.extra_families,
        )


def tune(
    problem: Problem,
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
    **options: Any,
) -> TuneResult:
    """Search the families' spaces for the fastest kernel of a problem and store the winner.

    The search ends after `trials` trials, or when only the time for the finals is left of
    `timeout` seconds, or with Ctrl-C; then the best candidates are measured again, in turns with
    the vendor library and with what was tuned for the problem before, and the winner is stored
    (`autotune.tuning.deciding`).

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
        seed: seeds the sampler and the operands; 0 or more, below 2**63.
        cache: folder or database of the user's cache; None takes the default place.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        study: name of the study; an existing one is continued. None starts a new one.
        workers: processes that compile, at least 1; None uses every core.
        effort: how long and how exactly to measure; None takes the default.
        progress: called whenever something has moved.
        options: what the target can be told (its `OPTIONS`), as for `load`.

    Raises:
        TuningFailedError: no candidate compiled, ran and was right.
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    deadline = Deadline(arguments.seconds("timeout", timeout))
    trials = arguments.whole("trials", trials)
    seed, workers = arguments.seed(seed), arguments.workers(workers)
    families = arguments.texts("families", families)
    folders = arguments.paths("extra_families", extra_families)
    check_asked(problem, target, device, cache)
    check_run(sampler=sampler, storage=storage, study=study, effort=effort, progress=progress)
    work = Workplace.of(
        problem,
        target=make_target(target, options),
        device=device,
        families=families,
        extra_families=folders,
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
        extra_families=folders,
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
            finalists=FINALISTS + 1,  # and the incumbent
            pace=pace,
            progress=progress,
        )
        run.search(rungs=_rungs(work))
        spent = EffortRecord(len(run.results), run.seconds, sampler, seed)
        decision = decide(work, opened.measured(), evaluator, run, spent, _incumbent(work))
        opened.note_run({"record": decision.best.id})
    forget()
    return TuneResult(
        problem=work.problem,
        target=work.target.name,
        study=study,
        best=decision.best,
        serving=decision.serving,
        kept=decision.kept,
        trials=tuple(run.results),
        spaces=work.union.spaces,
        baseline=decision.finals.baseline,
        seconds=deadline.elapsed_s,
        interrupted=interrupt.requested,
        placed=work.target,
    )


def _incumbent(work: Workplace) -> Match | None:
    """The record that serves the problem as things are; None where none does."""
    try:
        found = lookup.look_up(
            work.problem,
            work.target,
            match="stale",
            device=work.wanted_device,
            cache=work.place.database,
            extra_families=work.extra_families,
        )
    except NotTunedError:
        return None
    record = found.match.record
    # With fewer threads than it was tuned with it is another candidate, and no rival.
    if record is None or record.candidate != found.candidate:
        return None
    return found.match if record.candidate.family in work.families else None


def _known_good(work: Workplace) -> Iterable[Candidate]:
    """First trials: what was tuned for near problems, what a model favours, then known points.

    What is not valid for this problem and device is moved to the nearest that is.
    """
    problem, device, spaces = work.problem, work.device, work.union.spaces
    records = work.store.records(operation=problem.operation, target=work.target.name)
    wanted = [each.candidate for each in neighbours(records, problem, device.fingerprint, limit=3)]
    wanted += islice(_favourites(work), PREDICTED)
    default = _default_of(work)
    if default is not None:
        family = work.families[default]
        wanted.append(Candidate(default, family.default(problem, device.limits)))
        # Those that would no longer be what they say are left out: one for another type, say.
        placed = [each.placed(spaces[default]) for each in family.presets.values()]
        wanted += [
            Candidate(default, each) for each in placed if spaces[default].rejection(each) is None
        ]
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


def _favourites(work: Workplace) -> Iterator[Candidate]:
    """What the device's model favours, of several programs."""
    calls: Counter[Key] = Counter()
    for each in work.predictor.favourites(work.problem):
        calls[each.entry.key] += 1
        if calls[each.entry.key] <= CALLS:
            yield each.candidate


def _default_of(work: Workplace) -> str | None:
    """The default among the families that are searched."""
    searched = {name: work.families[name] for name in work.union.spaces}
    return default_family(searched, work.problem, work.device.limits)


def _rungs(work: Workplace) -> Iterable[Candidate]:
    """The other families' own points: their presets are rungs of a ladder, and not tried."""
    default = _default_of(work)
    for name in work.union.spaces:
        if name != default:
            yield Candidate(name, work.families[name].default(work.problem, work.device.limits))


def _study_name(problem: Problem, target: str) -> str:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{problem.operation}-{problem.label}-{target}-{stamp}-{uuid.uuid4().hex[:4]}"
