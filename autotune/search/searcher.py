"""Search over any space of one's own: ask, measure somehow, tell; in memory or in a storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Generic, cast, overload

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from autotune.core import arguments
from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import InputError, StudyError
from autotune.core.printable import shown
from autotune.search.claims import INTERRUPTED, PointT, StudySpace, fail
from autotune.search.feasible import FeasibleSampler, SpaceExhaustedError
from autotune.search.goals import Direction, Goals, front
from autotune.search.internals import deferred_interrupt, end_with, quiet, storage_of
from autotune.search.living import Living
from autotune.search.model import Prior
from autotune.search.reading import GOALS, SPACE
from autotune.search.samplers import make_sampler
from autotune.search.stopping import Prospects
from autotune.search.storage import close_storage, open_storage, storage_errors
from autotune.space import SearchSpace, SpaceUnion


class Searcher(Generic[PointT]):
    """Proposes the valid configurations of a space one by one, each at most once.

    ```python
    searcher = Searcher(SearchSpace({"x": [1, 2, 4]}, ["x <= 2"]), seed=0)
    while (configuration := searcher.ask()) is not None:
        searcher.tell(configuration, measure(configuration))
    configuration, value = searcher.best
    ```

    A point may be told again, as a repeat of a noisy value: the median of its values counts.

    With a storage the study outlives the process, and several processes may search it together:
    none asks for what another has asked for or told, unless that one is lost.

    Args:
        space: a `SearchSpace`, whose points are configurations, or a `SpaceUnion`, whose points
            are candidates.
        sampler: a name, or an instance of an Optuna sampler, see `make_sampler`.
        seed: equal seeds and equal told values give equal proposals.
        prior: what is expected before anything is measured, see `make_sampler`.
        direction: "minimize", or "maximize" where larger values are better.
        objectives: names of several values that are told of a point, or a direction for each by
            name; none for a single value. A study that goes on keeps the order it began with.
        storage: an Optuna storage URL, or the folder of a journal; None searches in memory.
        study: name in the storage.
        resume: whether to go on where the study has trials; else it is refused.

    Raises:
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler or the storage needs a package that is not installed.
        InputError: the space is none, the sampler neither a name nor Optuna's, the seed bad, or a
            direction or name none.
        StudyError: the storage cannot be opened, or the study is of another space or objectives,
            or is not to be resumed.
    """

    @overload
    def __init__(
        self: Searcher[Configuration],
        space: SearchSpace,
        sampler: str | BaseSampler = ...,
        seed: int = ...,
        prior: Sequence[Prior] = ...,
        *,
        direction: Direction = ...,
        objectives: Sequence[str] | Mapping[str, Direction] = ...,
        storage: str | Path | None = ...,
        study: str = ...,
        resume: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Searcher[Candidate],
        space: SpaceUnion,
        sampler: str | BaseSampler = ...,
        seed: int = ...,
        prior: Sequence[Prior] = ...,
        *,
        direction: Direction = ...,
        objectives: Sequence[str] | Mapping[str, Direction] = ...,
        storage: str | Path | None = ...,
        study: str = ...,
        resume: bool = ...,
    ) -> None: ...
    def __init__(
        self,
        space: SearchSpace | SpaceUnion,
        sampler: str | BaseSampler = "auto",
        seed: int = 0,
        prior: Sequence[Prior] = (),
        *,
        direction: Direction = "minimize",
        objectives: Sequence[str] | Mapping[str, Direction] = (),
        storage: str | Path | None = None,
        study: str = "search",
        resume: bool = True,
    ) -> None:
        if not isinstance(space, SearchSpace | SpaceUnion):
            raise InputError(f"a space must be a SearchSpace or a SpaceUnion, got {shown(space)}")
        self._goals: Goals = Goals.of(direction, objectives)
        costs = len(self._goals.directions)
        self._sampler: FeasibleSampler = make_sampler(sampler, space, seed, prior, costs)
        self._space: StudySpace = self._sampler.space
        self._prospects: Prospects = Prospects(self._space, seed)
        self._living: Living | None = None
        self._study: optuna.Study
        directions = list(self._goals.directions.values())
        if storage is None:
            with quiet():
                self._study = optuna.create_study(sampler=self._sampler, directions=directions)
        else:
            self._study = self._opened(storage, study, space.digest, resume)
            self._living = Living(self._study, self._sampler)
        if "maximize" in self._goals.directions.values():
            self._sampler.ledger.converted = self._goals.converted
        self._name: str = study
        self._asked: dict[int, optuna.Trial] = {}
        # Of every row the values of each time that it was told; none where it failed.
        self._told: dict[int, list[list[float]]] = {}
        self._heard: int = 0
        if self._living is not None:
            self._hear()
            with self._storing():
                self._living.reclaim()

    @property
    def best(self) -> tuple[PointT, Any] | None:
        """The point with the best value told, and the value; None before any.

        Of several objectives that is the best by the first, with its values by name.
        """
        known = self._told_values()
        if not known:
            return None
        row = min(known, key=lambda row: self._goals.costs(known[row]))
        return cast("PointT", self._space.point(row)), self._goals.told(known[row])

    def repeats(self, point: Candidate | Mapping[str, Value]) -> int:
        """Number of values that were told of a point, on which the one in `best` rests.

        Raises:
            SpaceError: the point is not in the space.
        """
        if self._living is not None:
            self._hear()
        return len(self._told.get(self._space.row_of(point), ()))

    @property
    def front(self) -> list[tuple[PointT, Any]]:
        """The Pareto front of what was told, with values, the best by the first objective first.

        No other point is at least as good in all objectives, and better in one.
        """
        known = self._told_values()
        rows = list(known)
        return [
            (cast("PointT", self._space.point(rows[at])), self._goals.told(known[rows[at]]))
            for at in front([self._goals.costs(known[row]) for row in rows])
        ]

    @property
    def chance(self) -> float:
        """Probability that some point left is better by more than 1%; 1 for several objectives.

        A search may end once it is small, see `autotune.search.stopping`.
        """
        if len(self._goals.directions) > 1:
            return 1.0
        with self._storing():
            self._sampler.refresh(self._study)
        return self._prospects.after(self._sampler.ledger)

    def ask(self) -> PointT | None:
        """The next point; None when every valid one was asked or told.

        Several points may be asked before the first is told.
        """
        if self._living is not None:
            self._hear()
            with self._storing():
                self._living.begin()
        if len(self._told) + len(self._asked) >= self._space.size:  # none is in both
            return None
        with self._storing():
            trial = self._study.ask()
            choices = self._space.choices
            try:
                params = self._space.suggest(
                    lambda name: cast("Value", trial.suggest_categorical(name, choices[name]))
                )
            except SpaceExhaustedError as error:  # the others have what is left
                fail(self._study, trial, str(error))
                return None
        row = self._space.row(params)
        assert row is not None, "the sampler proposes valid points only"
        self._asked[row] = trial
        return cast("PointT", self._space.point(row))

    def tell(self, point: Candidate | Mapping[str, Value], value: Any) -> None:
        """Report the value of a point, or its values by name; None says that it failed.

        A point that was never asked may be told; it counts as visited. So may one that was told.

        Raises:
            SpaceError: the point is not in the space.
            InputError: a value is not finite or not of the objectives, or the point is none at
                all, as what `ask` returns when nothing is left.
        """
        values = None if value is None else self._goals.values(value)
        if point is None:
            raise InputError(
                "a point must be told, got None: ask() gives None when every point was asked, "
                "and nothing is left to tell then"
            )
        row = self._space.row_of(point)
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        with self._storing():
            trial = self._asked.pop(row, None)
            if trial is not None:
                try:
                    end_with(self._study, trial, state, values)
                except optuna.exceptions.UpdateFinishedTrialError:
                    if self._living is None:
                        raise
                    return  # this worker was taken for dead, and another has the point now
            else:
                params = self._space.params(row)
                distributions = {name: self._space.distributions[name] for name in params}
                self._study.add_trial(
                    create_trial(
                        state=state, values=values, params=params, distributions=distributions
                    )
                )
        if self._living is None:  # else it is heard with what the others have told
            self._learn(row, values)

    def close(self) -> None:
        """Give up what was asked and not told, and let go of the storage."""
        if self._living is not None:
            self._living.end()
            with self._storing():
                for trial in self._asked.values():
                    fail(self._study, trial, INTERRUPTED)
            self._asked.clear()
            close_storage(storage_of(self._study))

    def _told_values(self) -> dict[int, list[float]]:
        """Values by row, in the order in which they were first told; of all workers."""
        if self._living is not None:
            self._hear()
        return {
            row: [median(each) for each in zip(*values, strict=True)]
            for row, values in self._told.items()
            if values
        }

    def _learn(self, row: int, values: Sequence[float] | None) -> None:
        self._told.setdefault(row, []).extend([] if values is None else [list(values)])

    def _opened(self, storage: str | Path, name: str, digest: str, resume: bool) -> optuna.Study:
        folder = arguments.path("storage", storage)
        url = storage if isinstance(storage, str) and "://" in storage else None
        opened = open_storage(url, name, folder)
        directions = list(self._goals.directions.values())
        wanted = {SPACE: digest, GOALS: dict(self._goals.directions)}
        try:
            with quiet(), storage_errors(name):
                study = optuna.create_study(
                    storage=opened,
                    study_name=name,
                    sampler=self._sampler,
                    directions=directions,
                    load_if_exists=True,
                )
                there, begun = study.user_attrs, bool(study.get_trials(deepcopy=False))
                fault = ""
                if begun and not resume:
                    fault = "holds trials, and resume is False"
                elif (there or begun) and any(there.get(key) != wanted[key] for key in wanted):
                    fault = "is of another space, or of other objectives"
                if fault:
                    raise StudyError(f"study {name!r} {fault}: name another one with study=")
                for key in wanted.keys() - there:
                    study.set_user_attr(key, wanted[key])
                # Values are stored in this order, whatever order the names are given in here.
                self._goals = Goals(there.get(GOALS, self._goals.directions))
        except BaseException:
            close_storage(opened)
            raise
        return study

    def _hear(self) -> None:
        """Learn what other workers, and earlier runs, have told."""
        assert self._living is not None
        with self._storing():
            self._living.look()
            ledger, trials = self._sampler.ledger, self._study.get_trials(deepcopy=False)
        for number in ledger.ended[self._heard :]:
            row = ledger.rows.get(number)
            if row is not None and row in ledger.visited:
                self._learn(row, trials[number].values)
        self._heard = len(ledger.ended)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        if self._living is None:
            with quiet():
                yield
        else:
            with quiet(), deferred_interrupt(), storage_errors(self._name):
                yield
