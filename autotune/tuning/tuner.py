"""Tuning: from a problem to a verified, stored winner."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune.core import arguments
from autotune.core.deadline import Deadline
from autotune.core.errors import InputError
from autotune.core.interrupt import Interrupt
from autotune.core.printable import shown
from autotune.tuning.budget import Budget
from autotune.tuning.context import TuningContext
from autotune.tuning.helping import Helpers, Task
from autotune.tuning.known import other_defaults
from autotune.tuning.progress import Progress
from autotune.tuning.results import TrialResult, TuneResult
from autotune.tuning.run import priors_of, tune_in
from autotune.tuning.settings import Run
from autotune.tuning.trials import TrialRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.measuring.effort import Effort
    from autotune.measuring.processes import Handler
    from autotune.operations.problem import Problem
    from autotune.serving.target import Target
    from autotune.tuning.progress import Watcher

__all__ = ["Progress", "TrialResult", "TuneResult", "tune"]


def tune(
    problem: Problem,
    *,
    target: str | Target | None = None,
    device: int | str | None = None,
    families: Sequence[str] = (),
    extra_families: Sequence[Path] = (),
    trials: int = 200,
    timeout: float = 60.0,
    until: float | None = None,
    sampler: str = "auto",
    seed: int = 0,
    cache: str | Path | None = None,
    storage: str | None = None,
    study: str | None = None,
    workers: int | None = None,
    effort: Effort | None = None,
    objective: str | None = None,
    rank: str = "cool",
    devices: Sequence[int] = (),
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
        until: ends the trials too: once the probability of a gain of more than 1% is below.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        seed: seeds the sampler and the operands; 0 or more, below 2**63.
        cache: folder or database of the user's cache; None takes the default place.
        storage: an Optuna storage URL; None keeps a journal file beside the cache.
        study: name of the study; an existing one is continued. None starts a new one.
        workers: processes that compile, at least 1; None uses every core.
        effort: how long and how exactly to measure; None takes the default.
        objective: what kernels are compared by: "time", "throughput", "energy", "error" or
            another package's (`autotune.core.objective`); None takes the effort's.
        rank: "cool" or "sustained": the winner of short turns in the finals, or of turns without
            a pause at steady clocks, where a GPU has taken those (`autotune.measuring.sustained`).
        devices: numbers of GPUs that are alike and make trials of one study, a process each; the
            first also holds the finals. Empty takes `device` alone.
        progress: called whenever something has moved.
        options: what the target can be told (its `OPTIONS`), as for `load`.

    Raises:
        TuningFailedError: no candidate compiled, ran and was right.
        InputError: something above cannot be used; the message says what and why.
        CacheError: the cache cannot be written.
    """
    deadline = Deadline(arguments.seconds("timeout", timeout))
    run = Run.of(
        trials=trials,
        timeout=timeout,
        until=until,
        sampler=sampler,
        seed=seed,
        storage=storage,
        study=study,
        workers=workers,
        effort=effort,
        objective=objective,
        rank=rank,
        progress=progress,
    )
    arguments.must("devices", "numbers of GPUs", devices, isinstance(devices, Iterable))
    every: list[int | str | None] = [*devices] or [device]
    first, *others = every
    for each in devices:
        arguments.must("devices", "numbers of GPUs", devices, arguments.is_whole(each))
    if devices and device not in (None, first, str(first)):
        raise InputError(f"device must be left out where devices are named, got {shown(device)}")
    context = TuningContext.of(
        problem,
        target=target,
        device=first,
        families=families,
        extra_families=extra_families,
        cache=cache,
        options=options,
    )
    if run.study is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{problem.operation}-{problem.label}-{context.target.name}-{stamp}"
        run = replace(run, study=f"{name}-{uuid.uuid4().hex[:4]}")
    helpers = Helpers(_helper, context, run, [int(each) for each in others if each is not None])
    with Interrupt(deadline) as interrupt, helpers:
        budget = Budget(deadline, interrupt)
        return tune_in(context, helpers.own, budget, helpers=helpers if others else None)


def _helper() -> Handler:
    """The entry of a helper's process."""
    return _make_trials


def _make_trials(task: Task) -> int:
    """Make a helper's share of trials, or what there is time for; how many they were."""
    context = TuningContext.of(
        task.problem,
        target=task.target,
        device=task.device,
        families=task.families,
        extra_families=task.extra_families,
        cache=task.cache,
        options={},
    )
    deadline, run = Deadline(task.run.timeout), task.run
    with Interrupt(deadline) as interrupt:
        with context.open(run, None, priors_of(context, run)) as (study, evaluator):
            trials = TrialRun(context, study, evaluator, run, Budget(deadline, interrupt))
            trials.search(besides=other_defaults(context))
        interrupt.number = None  # the parent's request, which wants an answer
    return len(trials.results)
