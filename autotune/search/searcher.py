"""Search over any space of one's own, in memory: ask, measure somehow, tell; samplers by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import isfinite, nan
from random import Random
from typing import Any, Generic, cast, overload

import optuna
from optuna import samplers
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from autotune.core import arguments
from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import InputError, MissingDependencyError, UnknownNameError
from autotune.core.printable import first_line, shown
from autotune.core.suggestions import did_you_mean
from autotune.search.claims import Ledger, PointT, StudySpace
from autotune.search.feasible import (
    Encoding,
    FeasibleSampler,
    MirrorProposer,
    Proposer,
    trial_seed,
)
from autotune.search.internals import quiet
from autotune.search.model import ModelProposer, Prior
from autotune.space import SearchSpace, SpaceUnion


class ExhaustiveProposer:
    """Proposes the valid configurations in canonical order."""

    def __init__(self, space: StudySpace, seed: int = 0) -> None:
        self._space = space
        self._next = 0

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """The next unvisited row; rows that were given up by other trials come at the end."""
        size = self._space.size
        rows = chain(range(self._next, size), range(self._next))
        self._next = next(row for row in rows if row not in ledger.visited)
        return self._space.params(self._next)


class RandomProposer:
    """Proposes uniformly among the valid configurations that are left.

    Drawing every parameter by itself and moving to a valid point, as a wrapped
    `optuna.samplers.RandomSampler` would, favours points beside large invalid regions.
    """

    def __init__(self, space: StudySpace, seed: int = 0) -> None:
        self._space = space
        self._seed = seed

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """A draw that depends on the seed, the trial's number and what is left."""
        # Python's generator: a space may have more rows than NumPy's integers can count.
        rng = Random(trial_seed(self._seed, number))
        row = rng.randrange(self._space.size - len(ledger.visited))
        for taken in sorted(ledger.visited):  # of those left, the one at this position
            if taken > row:
                break
            row += 1
        return self._space.params(row)


def sampler_names() -> tuple[str, ...]:
    """The names `make_sampler` knows, beside dotted paths."""
    return tuple(_PROPOSERS)


def make_sampler(
    name: str | BaseSampler,
    space: SearchSpace | SpaceUnion,
    seed: int = 0,
    prior: Sequence[Prior] = (),
) -> FeasibleSampler:
    """Build a sampler that proposes only valid, unvisited points of a space.

    With the same told values and the same seed, `auto`, `tpe`, `random` and `exhaustive` propose
    the same points, also when a study is closed and resumed in between. `gp` does too as long as
    its fit converges alike; `nsga2` and `cmaes` begin a new population when a study is resumed.

    Args:
        name: one of `sampler_names()`, or the dotted path of a subclass of
            `optuna.samplers.BaseSampler`, built with the seed if it takes one, or an instance of
            one, which keeps its own. It sees every parameter as a categorical; of a union all
            families' parameters at once. Samplers that keep count of a grid themselves do not
            fit: `exhaustive` is there for that.
        space: where the points come from.
        seed: 0 or more, below 2**63.
        prior: what is expected before anything is measured; `auto` learns how far to trust it,
            the other samplers have no use for it.

    Raises:
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler needs a package that is not installed.
        InputError: no seed or prior, a class that cannot be built, or no sampler at all.
    """
    seed = arguments.seed(seed)
    prior = _priors(prior)
    if isinstance(name, BaseSampler):
        return FeasibleSampler(name, space)
    if not isinstance(name, str):
        raise InputError(
            f"a sampler must be a name ({', '.join(_PROPOSERS)}), a dotted path, or an instance "
            f"of optuna.samplers.BaseSampler, got {shown(name)}"
        )
    foreign = check_sampler(name, seed)
    if foreign is not None:
        return FeasibleSampler(foreign, space)
    given = {"priors": prior} if name == "auto" else {}
    return FeasibleSampler(_PROPOSERS[name](StudySpace(space), seed=seed, **given), space)


def check_sampler(name: str, seed: int = 0) -> BaseSampler | None:
    """Refuse what `make_sampler` would, before there is a space.

    Returns:
        Optuna's sampler, where the name is a dotted path.

    Raises:
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler needs a package that is not installed.
        InputError: a class that cannot be built.
    """
    if name in _PROPOSERS:
        needed = _NEEDED.get(name, ())
        if missing := [package for package in needed if not importlib.util.find_spec(package)]:
            raise MissingDependencyError(
                f"sampler {name!r} needs {', '.join(missing)}: pip install {' '.join(missing)}"
            )
        return None
    if "." not in name:
        raise UnknownNameError(
            f"no sampler {shown(name)}: use {', '.join(_PROPOSERS)}, or the dotted path of an "
            f"optuna.samplers.BaseSampler{did_you_mean(name, _PROPOSERS)}"
        )
    return _instance(_load(name), seed)


def _priors(given: Any) -> Sequence[Prior]:
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    arguments.must("prior", "a list of priors, like MeasuredPrior", given, several)
    priors = list(given)
    for prior in priors:
        known = callable(getattr(prior, "over", None))
        arguments.must("prior", "a list of priors, like MeasuredPrior", prior, known)
    return priors


def _mirrored(
    space: StudySpace,
    sampler: Callable[..., BaseSampler],
    seed: int,
    *,
    flat: bool = True,
    ordinal: bool = False,
    **options: Any,
) -> Proposer:
    """A sampler of Optuna's, and how it sees the parameters."""
    encoding = Encoding(space, flat=flat, ordinal=ordinal)
    return MirrorProposer(encoding, lambda seed: sampler(seed=seed, **options), seed)


_PROPOSERS: dict[str, Callable[..., Proposer]] = {
    "auto": ModelProposer,
    # First the family, then its parameters jointly: what TPE's experimental `group` option does,
    # without looking for the groups in all trials again and again.
    "tpe": partial(
        _mirrored,
        sampler=samplers.TPESampler,
        flat=False,
        multivariate=True,
        constant_liar=True,
    ),
    "gp": partial(_mirrored, sampler=samplers.GPSampler, ordinal=True),
    "cmaes": partial(
        _mirrored, sampler=samplers.CmaEsSampler, ordinal=True, warn_independent_sampling=False
    ),
    "nsga2": partial(_mirrored, sampler=samplers.NSGAIISampler),
    "random": RandomProposer,
    "exhaustive": ExhaustiveProposer,
}

_NEEDED: dict[str, tuple[str, ...]] = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",)}
"""Packages that Optuna imports for a sampler."""


def _load(path: str) -> type[BaseSampler]:
    module_name, _, class_name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # of a module that may be anybody's
        raise UnknownNameError(
            f"no sampler {shown(path)} ({first_line(error)}): use {', '.join(_PROPOSERS)}, "
            "or the dotted path of an optuna.samplers.BaseSampler"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise UnknownNameError(f"{path!r} is not a subclass of optuna.samplers.BaseSampler")
    return found


def _instance(cls: type[BaseSampler], seed: int) -> BaseSampler:
    name = f"{cls.__module__}.{cls.__qualname__}"
    # NumPy's older generators take a seed of 32 bits.
    short = seed if seed < 1 << 32 else trial_seed(seed, 0)
    try:
        seeded = {"seed": short} if "seed" in inspect.signature(cls).parameters else {}
        with quiet():
            return cls(**seeded)
    except TypeError as error:
        raise InputError(
            f"sampler {name} needs more than a seed ({first_line(error)}): give an instance of it "
            "to autotune.Searcher"
        ) from error
    except Exception as error:
        raise InputError(
            f"sampler {name} cannot be built ({type(error).__name__}: {first_line(error)}): "
            "choose another one"
        ) from error


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
