"""Search over any space of one's own, in memory: ask, measure somehow, tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Generic, cast, overload

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.search.feasible import FeasibleSampler
from autotune.search.internals import quiet
from autotune.search.model import Prior
from autotune.search.samplers import make_sampler
from autotune.search.study_space import PointT
from autotune.space import SearchSpace, SpaceUnion


class Searcher(Generic[PointT]):
    """Proposes the valid configurations of a space one by one, each at most once.

    ```python
    searcher = Searcher(SearchSpace({"x": [1, 2, 4]}, ["x <= 2"]), seed=0)
    while (configuration := searcher.ask()) is not None:
        searcher.tell(configuration, measure(configuration))
    configuration, value = searcher.best
    ```

    Args:
        space: a `SearchSpace`, whose points are configurations, or a `SpaceUnion`, whose points
            are candidates.
        sampler: a name, or an instance of an Optuna sampler, see `make_sampler`.
        seed: equal seeds and equal told values give equal proposals.
        prior: what is expected before anything is measured, see `make_sampler`.

    Raises:
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler needs a package that is not installed.
        InputError: the space is none, the sampler neither a name nor Optuna's, or the seed bad.
    """

    @overload
    def __init__(
        self: Searcher[Configuration],
        space: SearchSpace,
        sampler: str | BaseSampler = ...,
        seed: int = ...,
        prior: Sequence[Prior] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Searcher[Candidate],
        space: SpaceUnion,
        sampler: str | BaseSampler = ...,
        seed: int = ...,
        prior: Sequence[Prior] = ...,
    ) -> None: ...
    def __init__(
        self,
        space: SearchSpace | SpaceUnion,
        sampler: str | BaseSampler = "auto",
        seed: int = 0,
        prior: Sequence[Prior] = (),
    ) -> None:
        if not isinstance(space, SearchSpace | SpaceUnion):
            raise InputError(f"a space must be a SearchSpace or a SpaceUnion, got {shown(space)}")
        self._sampler: FeasibleSampler = make_sampler(sampler, space, seed, prior)
        self._space = self._sampler.space
        with quiet():
            self._study = optuna.create_study(sampler=self._sampler)
        self._asked: dict[int, optuna.Trial] = {}
        self._told: set[int] = set()
        self._best: tuple[int, float] | None = None

    @property
    def best(self) -> tuple[PointT, float] | None:
        """The point with the smallest value told, and the value; None before any."""
        if self._best is None:
            return None
        row, value = self._best
        return cast("PointT", self._space.point(row)), value

    def ask(self) -> PointT | None:
        """The next point; None when every valid one was asked or told.

        Several points may be asked before the first is told.
        """
        if len(self._told) + len(self._asked) >= self._space.size:  # none is in both
            return None
        with quiet():
            trial = self._study.ask()
            choices = self._space.choices
            params = self._space.suggest(
                lambda name: cast("Value", trial.suggest_categorical(name, choices[name]))
            )
        row = self._space.row(params)
        assert row is not None, "the sampler proposes valid points only"
        self._asked[row] = trial
        return cast("PointT", self._space.point(row))

    def tell(self, point: Candidate | Mapping[str, Value], value: float | None) -> None:
        """Report the value of a point: smaller is better; None says that it failed.

        A point that was never asked may be told; it counts as visited.

        Raises:
            SpaceError: the point is not in the space.
            InputError: the value is not finite, the point was told before, or it is none at all,
                as what `ask` returns when nothing is left.
        """
        if value is not None:
            value = _finite(value)
        if point is None:
            raise InputError(
                "a point must be told, got None: ask() gives None when every point was asked, "
                "and nothing is left to tell then"
            )
        row = self._space.row_of(point)
        if row in self._told:
            raise InputError(f"a point can be told once, and this one was: {point}")
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with quiet():
            trial = self._asked.pop(row, None)
            if trial is not None:
                self._study.tell(trial, value, state)
            else:
                params = self._space.params(row)
                distributions = {name: self._space.distributions[name] for name in params}
                self._study.add_trial(
                    create_trial(
                        state=state, value=value, params=params, distributions=distributions
                    )
                )
        self._told.add(row)
        if value is not None and (self._best is None or value < self._best[1]):
            self._best = (row, float(value))


def _finite(value: object) -> float:
    """A told value as Python's own float; NumPy's scalars are converted."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = nan
    if isinstance(value, str) or not isfinite(number):
        raise InputError(f"a told value must be a finite number, or None, got {shown(value)}")
    return number
