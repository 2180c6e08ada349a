"""Results of trials and of runs."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from autotune.runtime.loading import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from autotune.core.configuration import Candidate
    from autotune.core.measurement import Measurement, Outcome
    from autotune.measuring.effort import Baseline, Finals
    from autotune.operations.problem import Problem
    from autotune.serving.kernel import Kernel
    from autotune.serving.target import Target
    from autotune.space import SearchSpace
    from autotune.store import TuningRecord
    from autotune.tuning.budget import Budget
    from autotune.tuning.context import TuningContext


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial of a run: what was tried and what came of it."""

    candidate: Candidate
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome of the finals.

    Attributes:
        best: the record of the fastest candidate of the searched families.
        serving: the record that a lookup gives from now on: `best`, unless the incumbent is of a
            family that was not searched, and faster.
        kept: whether `best` is the incumbent as it was: nothing else was faster.
        finals: everybody's times.
    """

    best: TuningRecord
    serving: TuningRecord
    kept: bool
    finals: Finals


@dataclass(frozen=True)
class TuneResult:
    """Result of a tuning run.

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
        chance: probability that more trials would have come to a gain of more than 1%; None where
            `until` did not ask for it.
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
    chance: float | None
    placed: Target = field(repr=False)
    device: int | str | None = field(default=None, repr=False)
    cache: Path | None = field(default=None, repr=False)
    extra_families: tuple[Path, ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        context: TuningContext,
        study: str,
        decision: Decision,
        trials: Iterable[TrialResult],
        budget: Budget,
        chance: float | None,
    ) -> Self:
        """The result of a run that has ended."""
        return cls(
            problem=context.problem,
            target=context.target.name,
            study=study,
            best=decision.best,
            serving=decision.serving,
            kept=decision.kept,
            trials=tuple(trials),
            spaces=context.union.spaces,
            baseline=decision.finals.baseline,
            seconds=budget.deadline.elapsed_s,
            interrupted=budget.interrupted,
            chance=chance,
            placed=context.target,
            device=context.wanted_device,
            cache=context.wanted_cache,
            extra_families=context.extra_families,
        )

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
