"""The sampler that never runs an infeasible or a duplicate trial.

Optuna's samplers propose in studies of their own, each of which mirrors the real one.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.core.configuration import Value
from autotune.core.errors import AutotuneError, InputError, SpaceError
from autotune.core.printable import first_line
from autotune.search.claims import Ledger, StudySpace, claim, withdraw
from autotune.search.internals import quiet, trial_id
from autotune.space import SearchSpace, SpaceUnion


class Encoding:
    """A sampler's view of the parameters.

    Args:
        space: the names and their values.
        flat: every name is always there; else a family's only when it is chosen. Flat is for
            samplers that need one fixed space; names that do not apply are then noise.
        ordinal: a parameter is an integer, the position among its values; else categorical.
    """

    def __init__(self, space: StudySpace, *, flat: bool, ordinal: bool = False) -> None:
        self.space = space
        self.flat = flat
        self._ordinal = ordinal
        self.distributions: dict[str, BaseDistribution] = {
            name: IntDistribution(0, len(values) - 1)
            if ordinal
            else CategoricalDistribution(values)
            for name, values in space.choices.items()
        }

    def encode(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Values as the sampler sees them."""
        if not self._ordinal:
            return dict(params)
        return {name: self.space.choices[name].index(value) for name, value in params.items()}

    def decode(self, name: str, seen: Value) -> Value:
        """The parameter's value behind one that the sampler sees."""
        return self.space.choices[name][int(seen)] if self._ordinal else seen


class MirrorProposer:
    """Asks an Optuna sampler, in an in-memory study that copies the real one trial by trial.

    The mirror has the same trial numbers, states and values; its parameters are the claimed
    ones, encoded. So a sampler learns from what ran, not from what it proposed; a numeric sampler
    can work on a categorical study; trials of other workers count as running; and a sampler's own
    notes (CMA-ES pickles its state into trials) never reach the storage that users share. A trial
    whose copy has ended is not looked at again.

    Args:
        encoding: how the sampler sees the parameters.
        sampler: makes the sampler from a seed. Called for every trial with a seed of its own, so
            that a resumed study proposes what an uninterrupted one would. A sampler that keeps
            state in memory is one that ignores the seed: `lambda seed: instance`.
        seed: where the trials' seeds come from.
        costs: how many values a trial has, all to be made small.
    """

    def __init__(
        self,
        encoding: Encoding,
        sampler: Callable[[int], BaseSampler],
        seed: int = 0,
        costs: int = 1,
    ) -> None:
        self._encoding = encoding
        self._sampler = sampler
        self._seed = seed
        self._storage = optuna.storages.InMemoryStorage()
        with quiet():
            self._name = optuna.create_study(
                storage=self._storage, directions=["minimize"] * costs
            ).study_name
        self._copied = 0
        self._open: list[int] = []
        # The sampler's own values of names that do not apply to the claimed point.
        self._wishes: dict[int, dict[str, Value]] = {}

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """The sampler's point for trial `number`, after everything the ledger knows.

        Raises:
            InputError: the sampler failed.
        """
        with quiet():
            sampler = self._sampler(trial_seed(self._seed, number))
            try:
                # A fresh handle: a study caches its trials between ask and tell.
                study = optuna.load_study(
                    study_name=self._name, storage=self._storage, sampler=sampler
                )
                self._copy(study, ledger, number)
                wish = self._ask(study, sampler, study.get_trials(deepcopy=False)[number])
            except AutotuneError:
                raise
            except Exception as error:  # a sampler may be anybody's
                cls = type(sampler)
                raise InputError(
                    f"sampler {cls.__module__}.{cls.__qualname__} failed in trial {number} "
                    f"({type(error).__name__}: {first_line(error)}): choose another one"
                ) from error
        self._wishes[number] = wish
        return self._encoding.space.suggest(lambda name: self._encoding.decode(name, wish[name]))

    def _ask(
        self, study: optuna.Study, sampler: BaseSampler, trial: FrozenTrial
    ) -> dict[str, Value]:
        """One whole point: what the sampler decides jointly, then the rest one by one."""
        distributions, choices = self._encoding.distributions, self._encoding.space.choices
        sampler.before_trial(study, trial)
        wish: dict[str, Value] = {}
        flat = [lambda decided: tuple(distributions)]
        for stage in flat if self._encoding.flat else self._encoding.space.stages():
            names = stage(wish)
            if self._encoding.flat:
                several = sampler.infer_relative_search_space(study, trial)
            else:
                several = {n: distributions[n] for n in names if not distributions[n].single()}
            joint = sampler.sample_relative(study, trial, several)
            for name in names:
                if name in joint:
                    wish[name] = joint[name]
                elif distributions[name].single():
                    wish |= self._encoding.encode({name: choices[name][0]})
                else:
                    wish[name] = sampler.sample_independent(
                        study, trial, name, distributions[name]
                    )
        return wish

    def _copy(self, study: optuna.Study, ledger: Ledger, number: int) -> None:
        """Bring the mirror's trials up to date, up to and including trial `number`."""
        mirrored = study.get_trials(deepcopy=False)
        running = []
        for at in self._open:
            trial = ledger.trials[at]
            if at < number:
                self._update(study, trial, mirrored[at], ledger.rows.get(at))
            if at >= number or not trial.state.is_finished():
                running.append(at)
        for trial in ledger.trials[self._copied : number + 1]:
            template = self._template(trial, ledger.rows.get(trial.number))
            study.add_trial(template)
            if template.state is TrialState.RUNNING:
                running.append(trial.number)
        self._open, self._copied = running, max(self._copied, number + 1)

    def _update(
        self, study: optuna.Study, trial: FrozenTrial, twin: FrozenTrial, row: int | None
    ) -> None:
        """Bring the copy of a trial that was running up to date."""
        finished, key = trial.state.is_finished(), trial_id(twin)
        if row is not None and (not twin.params or finished):
            for name, value in self._params(trial.number, row).items():
                distribution = self._encoding.distributions[name]
                internal = distribution.to_internal_repr(value)
                self._storage.set_trial_param(key, name, internal, distribution)
        if finished:
            for step, reported in trial.intermediate_values.items():
                self._storage.set_trial_intermediate_value(key, step, reported)
            self._wishes.pop(trial.number, None)
            twin = self._storage.get_trial(key)
            study.sampler.after_trial(study, twin, trial.state, trial.values)
            self._storage.set_trial_state_values(key, trial.state, trial.values)

    def _template(self, trial: FrozenTrial, row: int | None) -> FrozenTrial:
        params = {} if row is None else self._params(trial.number, row)
        state = trial.state
        if state is TrialState.WAITING:
            state = TrialState.RUNNING  # without parameters samplers pass it over
        elif row is None and state.is_finished():
            state = TrialState.FAIL  # nothing to learn from, but its number must be taken
        known = state in (TrialState.COMPLETE, TrialState.PRUNED)
        return create_trial(
            state=state,
            values=trial.values if known else None,
            params=params,
            distributions={name: self._encoding.distributions[name] for name in params},
            intermediate_values=trial.intermediate_values if known else {},
        )

    def _params(self, number: int, row: int) -> dict[str, Value]:
        """The point at `row` as the sampler sees it, with the names that do not apply if flat."""
        encode, space = self._encoding.encode, self._encoding.space
        active = encode(space.params(row))
        if not self._encoding.flat:
            return active
        middle = {name: values[len(values) // 2] for name, values in space.choices.items()}
        return {**encode(middle), **self._wishes.get(number, {}), **active}


def trial_seed(seed: int, number: int) -> int:
    """A seed for one trial: 32 bits drawn from the study's seed and the trial's number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


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
        costs: how many values a trial has.
    """

    def __init__(
        self, inner: BaseSampler | Proposer, space: SearchSpace | SpaceUnion, costs: int = 1
    ) -> None:
        self.space = StudySpace(space)
        self.ledger = Ledger(self.space)
        self.first: deque[int] = deque()
        """Rows to run before the inner sampler is asked; visited ones are skipped."""
        self._proposer: Proposer = (
            MirrorProposer(Encoding(self.space, flat=True), lambda seed: inner, costs=costs)
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
