"""Goals of a search: one value or several, each to be made small or large, and their front."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np
from optuna.trial import FrozenTrial

from autotune.core.configuration import Value
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.search.claims import Ledger
from autotune.search.feasible import Proposer, trial_seed

Direction = Literal["minimize", "maximize"]
"""As Optuna has it."""

_RENEWED = 1.5
"""Costs are put on one scale anew when there are so many times as many of them."""

_BESIDE = 0.05
"""Share of the sum of costs beside the largest one, so that no point is as good as one that it
has nothing on."""


@dataclass(frozen=True, slots=True)
class Goals:
    """Goals that values are told for.

    Attributes:
        directions: of each goal by name; of a single value without one the name is empty.
    """

    directions: Mapping[str, Direction]

    @classmethod
    def of(cls, direction: Any, objectives: Any) -> Self:
        """Read the arguments of `Searcher`.

        Raises:
            InputError: a direction is none, or names are not texts.
        """
        if isinstance(objectives, Mapping):
            named = dict(objectives)
        elif not isinstance(objectives, Iterable):
            raise InputError(f"objectives must be names, got {shown(objectives)}")
        else:
            named = dict.fromkeys([objectives] if isinstance(objectives, str) else objectives)
        for name, told in (named or {"": None}).items():
            if not isinstance(name, str):
                raise InputError(f"objectives must be names, got {shown(name)}")
            named[name] = direction if told is None else told
            if named[name] not in get_args(Direction):
                raise InputError(must_be("a direction", str(named[name]), get_args(Direction)))
        return cls(named)

    @property
    def named(self) -> bool:
        """True if values are told by name."""
        return "" not in self.directions

    def values(self, told: Any) -> list[float]:
        """Told values, in order.

        Raises:
            InputError: one is missing, unknown or no finite number.
        """
        if not self.named:
            return [_finite(told)]
        given = set(told) if isinstance(told, Mapping) else None
        if given != set(self.directions):
            wanted = ", ".join(self.directions)
            raise InputError(f"values must be told by name, of {wanted}, got {shown(told)}")
        return [_finite(told[name]) for name in self.directions]

    def told(self, values: Sequence[float]) -> Any:
        """Values as they are told: a number, or numbers by name."""
        return dict(zip(self.directions, values, strict=True)) if self.named else values[0]

    def costs(self, values: Sequence[float]) -> list[float]:
        """A cost for each value, less being better."""
        directions = self.directions.values()
        return [
            value if direction == "minimize" else _inverse(value)
            for value, direction in zip(values, directions, strict=True)
        ]

    def converted(self, trial: FrozenTrial) -> FrozenTrial:
        """A trial that has costs for values."""
        known = trial.values is not None
        return _with_values(trial, self.costs(trial.values)) if known else trial


def front(costs: Sequence[Sequence[float]]) -> list[int]:
    """Positions of the costs that no others are at least as good as in all, and better in one.

    By the first cost; of equals all, the earliest first.
    """
    kept: list[int] = []
    for at in sorted(range(len(costs)), key=lambda each: (list(costs[each]), each)):
        if not any(
            all(map(float.__le__, costs[one], costs[at])) and [*costs[one]] != [*costs[at]]
            for one in kept
        ):
            kept.append(at)
    return kept


@dataclass
class _Scale:
    """Several costs on one scale: logarithms where all are positive, standardised."""

    logs: np.ndarray[Any, np.dtype[np.bool_]]
    least: np.ndarray[Any, np.dtype[np.float64]]
    spread: np.ndarray[Any, np.dtype[np.float64]]
    count: int
    scalars: dict[tuple[int, int], FrozenTrial] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> _Scale:
        costs = np.array(rows)
        logs = costs.min(axis=0) > 0
        known = np.where(logs, np.log(np.where(logs, costs, 1.0)), costs)
        spread = known.std(axis=0)
        return cls(logs, known.min(axis=0), np.where(spread > 0, spread, 1.0), len(rows))

    def scalar(self, costs: Sequence[float], weights: Any) -> float:
        """Augmented Tchebycheff norm (Knowles, ParEGO, 2006): any point of a front may win."""
        given = np.array(costs)
        tiny = np.maximum(given, np.finfo(float).tiny)
        known = np.where(self.logs, np.log(tiny), given)
        parts = weights * (known - self.least) / self.spread
        return float(parts.max() + _BESIDE * parts.sum())


class SeveralProposer:
    """Proposes for several costs with a model for one: by weights of them, in turns.

    Weights are each cost alone, all alike, and some at random.

    Args:
        make: makes the proposer for one cost.
        count: how many costs there are.
        seed: draws the random weights.
    """

    def __init__(self, make: Callable[[], Proposer], count: int, seed: int = 0) -> None:
        random = np.random.default_rng(trial_seed(seed, count))
        self._weights = np.vstack(
            [np.eye(count), np.full((1, count), 1 / count), random.dirichlet([1] * count, count)]
        )
        self._proposers = [make() for _ in self._weights]
        self._scale: _Scale | None = None

    def propose(self, number: int, ledger: Ledger) -> Mapping[str, Value]:
        """The point of the weights whose turn it is."""
        known = [at for at in ledger.ended if ledger.trials[at].values is not None]
        if known and (self._scale is None or len(known) >= _RENEWED * self._scale.count):
            self._scale = _Scale.of([ledger.trials[at].values for at in known])
        turn = number % len(self._proposers)
        view = copy.copy(ledger)
        view.trials = list(ledger.trials)
        for at in known:
            view.trials[at] = self._scalar(ledger.trials[at], turn)
        return self._proposers[turn].propose(number, view)

    def _scalar(self, trial: FrozenTrial, turn: int) -> FrozenTrial:
        assert self._scale is not None
        key = trial.number, turn
        if key not in self._scale.scalars:
            scalar = self._scale.scalar(trial.values, self._weights[turn])
            self._scale.scalars[key] = _with_values(trial, [scalar])
        return self._scale.scalars[key]


def _with_values(trial: FrozenTrial, values: list[float]) -> FrozenTrial:
    twin = copy.copy(trial)
    twin.values = values
    return twin


def _inverse(value: float) -> float:
    """A positive cost of a value that is to be large: half its reciprocal where that is large."""
    root = math.hypot(value, 1.0)
    return 1 / (root + value) if value > 0 else root - value


def _finite(value: object) -> float:
    """A told value as Python's own float; NumPy's scalars are converted."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise InputError(f"a told value must be a finite number, or None, got {shown(value)}")
    return number
