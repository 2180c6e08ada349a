"""The sampler that never runs an infeasible or a duplicate trial."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.core.configuration import Value
from autotune.core.errors import AutotuneError, SpaceError
from autotune.search.claims import Ledger, claim, withdraw
from autotune.search.mirror import Encoding, MirrorProposer
from autotune.search.study_space import StudySpace
from autotune.space import SearchSpace, SpaceUnion

_ENQUEUED = "fixed_params"
"""The trial attribute under which `study.enqueue_trial` keeps a point."""


class SpaceExhaustedError(AutotuneError, optuna.TrialPruned):
    """Every valid configuration has been visited; `study.optimize` ends without failing."""


class Proposer(Protocol):
    """Source of points; what it proposes may be invalid or visited."""

    def propose(self, number: int, ledger: Ledger) -> Mapping[str, Value]:
        """A complete point, by flat names, for trial `number`; asked again, it may be the same."""
        ...


class FeasibleSampler(BaseSampler):
    """Wraps a sampler so that every trial is valid and unvisited.

    The inner sampler proposes a whole point; it is moved to the nearest valid point that no
    trial has visited and no other worker holds, and claimed. `trial.params` is therefore exactly
    what runs. It works under `study.optimize`, where it stops the study after the last valid
    point, and under `study.ask`, which raises `SpaceExhaustedError` when nothing is left (at the
    first suggestion with more than one choice). A point given to `study.enqueue_trial` is a
    proposal too: it is moved when it is invalid or visited.

    The objective suggests the space's own names with their values in declared order, and of a
    union only the chosen family's. What was proposed, when it was moved, is kept in the trial's
    `autotune:claim` attribute.

    Args:
        inner: an Optuna sampler, which sees every parameter as a categorical, or a `Proposer`.
        space: the valid points.
    """

    def __init__(self, inner: BaseSampler | Proposer, space: SearchSpace | SpaceUnion) -> None:
        self.space = StudySpace(space)
        self.ledger = Ledger(self.space)
        self.first: deque[int] = deque()
        """Rows to run before the inner sampler is asked; visited ones are skipped."""
        self._proposer: Proposer = (
            MirrorProposer(Encoding(self.space, flat=True), lambda seed: inner)
            if isinstance(inner, BaseSampler)
            else inner
        )
        self._enqueued: dict[int, Mapping[str, Value]] = {}
        # study.optimize(n_jobs=...) samples from several threads.
        self._lock = threading.RLock()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every name: what is not part of the chosen point is left out of the sample."""
        return dict(self.space.distributions)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Take note of what was enqueued, so that it is checked like any other proposal.

        Optuna would use an enqueued value without asking the sampler. It reads them from this
        very object after this call.
        """
        enqueued = trial.system_attrs.get(_ENQUEUED)
        if enqueued:
            self._enqueued[trial.number] = enqueued
            trial.system_attrs = {k: v for k, v in trial.system_attrs.items() if k != _ENQUEUED}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Choose and claim the trial's whole configuration.

        Raises:
            SpaceExhaustedError: nothing is left.
        """
        with self._lock:
            enqueued = self._enqueued.pop(trial.number, {})
            self.refresh(study, but=trial.number)
            while (choice := self._choose(trial.number, enqueued)) is not None:
                row, proposed = choice
                if claim(study, trial, self.ledger, row, proposed):
                    return self.space.params(row)
            withdraw(study, trial)
        with suppress(RuntimeError):  # asked outside of study.optimize: there is no loop to stop
            study.stop()
        raise SpaceExhaustedError(
            f"all {self.space.size} valid configurations have been visited: widen the space"
        )

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse a name that is not part of the chosen configuration.

        Raises:
            SpaceError: always; every name that applies was sampled in `sample_relative`.
        """
        raise SpaceError(
            f"{param_name!r} is no parameter of the configuration chosen for trial "
            f"{trial.number}: suggest only the space's names, and the chosen family's"
        )

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop `study.optimize` when this trial was the last valid configuration."""
        with self._lock:
            self.refresh(study)
            if self.ledger.exhausted:
                with suppress(RuntimeError):
                    study.stop()

    def refresh(self, study: optuna.Study, but: int | None = None) -> None:
        """Bring the ledger up to date with the study's storage."""
        self.ledger.refresh(study.get_trials(deepcopy=False), but=but)

    def _choose(
        self, number: int, enqueued: Mapping[str, Value]
    ) -> tuple[int, Mapping[str, Value] | None] | None:
        """An unvisited row, and the proposal it was moved from if it was; None: none is left."""
        visited = self.ledger.visited
        while self.first and self.first[0] in visited:
            self.first.popleft()
        if not enqueued and self.first:
            return self.first[0], None
        if self.ledger.exhausted:
            return None
        proposed = self._proposer.propose(number, self.ledger)
        if enqueued:
            proposed = self._overlay(enqueued, proposed)
        row = self.space.row(proposed)
        if row is not None and row not in visited:
            return row, None
        row = self.space.nearest(proposed, visited)
        return None if row is None else (row, proposed)

    def _overlay(
        self, enqueued: Mapping[str, Value], proposed: Mapping[str, Value]
    ) -> dict[str, Value]:
        """The enqueued values, where there are such, and the proposal for the rest."""
        choices = self.space.choices
        wanted = {k: v for k, v in enqueued.items() if v in choices.get(k, ())}
        return self.space.suggest(
            lambda name: wanted.get(name, proposed.get(name, choices[name][0]))
        )
