"""Samplers by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Any

from optuna import samplers
from optuna.samplers import BaseSampler

from autotune.core import arguments
from autotune.core.configuration import Value
from autotune.core.errors import (
    InputError,
    MissingDependencyError,
    UnknownNameError,
)
from autotune.core.printable import first_line, shown
from autotune.core.suggestions import did_you_mean
from autotune.search.claims import Ledger, StudySpace
from autotune.search.feasible import (
    Encoding,
    FeasibleSampler,
    MirrorProposer,
    Proposer,
    trial_seed,
)
from autotune.search.goals import SeveralProposer
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
    costs: int = 1,
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
        costs: how many values a trial has, each to be made small: `auto` weighs them by turns
            (`SeveralProposer`), those of Optuna see them all.

    Raises:
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler needs a package that is not installed.
        InputError: no seed or prior, a class that cannot be built, or no sampler at all.
    """
    seed = arguments.seed(seed)
    prior = _priors(prior)
    if isinstance(name, BaseSampler):
        return FeasibleSampler(name, space, costs)
    if not isinstance(name, str):
        raise InputError(
            f"a sampler must be a name ({', '.join(_PROPOSERS)}), a dotted path, or an instance "
            f"of optuna.samplers.BaseSampler, got {shown(name)}"
        )
    foreign = check_sampler(name, seed)
    if foreign is not None:
        return FeasibleSampler(foreign, space, costs)
    options: dict[str, Any] = {"priors": prior} if name == "auto" else {}
    if costs > 1 and isinstance(_PROPOSERS[name], partial):
        options["costs"] = costs
    make = partial(_PROPOSERS[name], StudySpace(space), seed=seed, **options)
    several = costs > 1 and name == "auto"
    return FeasibleSampler(SeveralProposer(make, costs, seed) if several else make(), space)


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
    costs: int = 1,
    **options: Any,
) -> Proposer:
    """A sampler of Optuna's, and how it sees the parameters."""
    encoding = Encoding(space, flat=flat, ordinal=ordinal)
    return MirrorProposer(encoding, lambda seed: sampler(seed=seed, **options), seed, costs)


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
