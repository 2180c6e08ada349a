"""Choosing a program for a shape: the one whose predicted time is least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.terms import Programs, Sizes, Unit, price

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.core.configuration import Configuration
    from autotune.model.portfolio import Entry

CAUTION = 0.5
"""Of two programs with equal predictions the better known one is taken: a standard deviation of
the prediction's logarithm counts as so much of it."""

_RANKED = 8
"""Choices that are put in order at once; more are asked for hardly ever."""


@dataclass(frozen=True, slots=True)
class Call:
    """A program that may be chosen, with one choice of what is passed at the call.

    Attributes:
        entry: the program.
        configuration: with that choice.
        unit: what it does at a time.
    """

    entry: Entry
    configuration: Configuration
    unit: Unit


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a shape.

    Attributes:
        entry: the program.
        configuration: with what is passed at the call.
        seconds: predicted time of a call.
        spread: standard deviation of the prediction's logarithm.
    """

    entry: Entry
    configuration: Configuration
    seconds: float
    spread: float


class Chooser:
    """Ranks programs of one dtype and layout for whatever sizes.

    Not for several threads at once: what is computed on the way is kept in place.

    Args:
        candidates: what may be chosen.
        places: multiprocessors of the device.

    Raises:
        ValueError: there are no candidates.
    """

    def __init__(self, candidates: Sequence[Call], places: int) -> None:
        if not candidates:
            raise ValueError("a choice needs at least one program")
        self._candidates = tuple(candidates)
        self._programs = Programs.of(
            [each.unit for each in candidates],
            [each.entry.resident for each in candidates],
            places,
        )
        self._prices = np.ascontiguousarray(
            np.array([each.entry.prices for each in candidates], dtype=np.float64).T
        )
        spreads = np.array([each.entry.spread for each in candidates])
        self._doubt = np.exp(CAUTION * spreads)

    def ranked(self, sizes: Sizes) -> Iterator[Choice]:
        """All choices, the most promising first."""
        seconds = price(self._programs.count(sizes), self._prices)
        doubtful = seconds * self._doubt
        first = int(doubtful.argmin())
        yield self._choice(first, seconds)
        count = min(_RANKED, len(doubtful))
        few = np.argpartition(doubtful, count - 1)[:count]
        order = few[np.argsort(doubtful[few], kind="stable")].tolist()
        for row in order:
            if row != first:
                yield self._choice(row, seconds)
        done = {first, *order}
        for row in np.argsort(doubtful, kind="stable").tolist():
            if row not in done:
                yield self._choice(row, seconds)

    def _choice(self, row: int, seconds: np.ndarray) -> Choice:
        chosen = self._candidates[row]
        return Choice(chosen.entry, chosen.configuration, float(seconds[row]), chosen.entry.spread)
