"""Samplers by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import optuna
from optuna.samplers import BaseSampler

from autotune.core import arguments
from autotune.core.errors import InputError, MissingDependencyError, UnknownNameError
from autotune.core.printable import first_line, shown
from autotune.core.suggestions import did_you_mean
from autotune.search.exhaustive import ExhaustiveProposer, RandomProposer
from autotune.search.feasible import FeasibleSampler, Proposer
from autotune.search.mirror import Encoding, MirrorProposer, trial_seed
from autotune.search.model import ModelProposer
from autotune.search.quiet import quiet
from autotune.search.study_space import StudySpace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.search.model import Prior
    from autotune.space import SearchSpace, SpaceUnion


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
    study_space = StudySpace(space)
    if name == "auto":
        return FeasibleSampler(ModelProposer(study_space, seed, prior), space)
    return FeasibleSampler(_PROPOSERS[name](study_space, seed), space)


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
        _require(name, *_NEEDED.get(name, ()))
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
    for each in priors:
        known = callable(getattr(each, "over", None))
        arguments.must("prior", "a list of priors, like MeasuredPrior", each, known)
    return priors


def _tpe(space: StudySpace, seed: int) -> Proposer:
    # First the family, then its parameters jointly: what TPE's experimental `group` option does,
    # without looking for the groups in all trials again and again.
    return MirrorProposer(
        Encoding(space, flat=False),
        lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        seed,
    )


def _nsga2(space: StudySpace, seed: int) -> Proposer:
    return MirrorProposer(
        Encoding(space, flat=True), lambda seed: optuna.samplers.NSGAIISampler(seed=seed), seed
    )


def _gp(space: StudySpace, seed: int) -> Proposer:
    return MirrorProposer(
        Encoding(space, flat=True, ordinal=True),
        lambda seed: optuna.samplers.GPSampler(seed=seed),
        seed,
    )


def _cmaes(space: StudySpace, seed: int) -> Proposer:
    return MirrorProposer(
        Encoding(space, flat=True, ordinal=True),
        lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        seed,
    )


def _random(space: StudySpace, seed: int) -> Proposer:
    return RandomProposer(space, seed)


def _exhaustive(space: StudySpace, seed: int) -> Proposer:
    return ExhaustiveProposer(space)


_PROPOSERS: dict[str, Callable[[StudySpace, int], Proposer]] = {
    "auto": ModelProposer,
    "tpe": _tpe,
    "gp": _gp,
    "cmaes": _cmaes,
    "nsga2": _nsga2,
    "random": _random,
    "exhaustive": _exhaustive,
}

_NEEDED: dict[str, tuple[str, ...]] = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",)}
"""Packages that Optuna imports for a sampler."""


def _require(sampler: str, *packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"sampler {sampler!r} needs {', '.join(missing)}: pip install {' '.join(missing)}"
        )


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
    try:
        seeded = {"seed": _short(seed)} if "seed" in inspect.signature(cls).parameters else {}
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


def _short(seed: int) -> int:
    """A seed as NumPy's older generators take it, in 32 bits."""
    return seed if seed < 1 << 32 else trial_seed(seed, 0)
