"""Choosing a program for a shape: the one whose predicted time is least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.terms import Priced, Programs, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.model.portfolio import Entry

CAUTION = 0.7
"""Of two programs with equal predictions the better known one is taken: a standard deviation of
the prediction's logarithm counts as so much of it."""

FAR = 2.0
"""How many times as many products as timed a prediction is taken for as it is."""


@dataclass(frozen=True, slots=True)
class Calls:
    """A program that may be chosen, and all ways to call it.

    Attributes:
        entry: the program.
        configurations: one for each way.
        units: what it does at a time, a row for each; see `autotune.model.terms.UNIT`.
    """

    entry: Entry
    configurations: Sequence[Configuration]
    units: NDArray[np.float64]


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


def strangeness(sizes: Sizes, known: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """What a prediction is to be multiplied with for a problem much larger than all timed ones.

    What takes time at sizes where operands are beyond the caches, small problems do not tell.

    Args:
        sizes: the problem's.
        known: `inverse` of the products of the largest problem timed.
    """
    return np.sqrt(np.maximum(sizes.products * known * (1 / FAR), 1.0))


def inverse(largest: float) -> float:
    """One divided by so many products; 0 where they are not known, and are 0 themselves."""
    return 1 / largest if largest else 0.0


class Chooser:
    """Ranks programs of one dtype and layout for whatever sizes.

    Args:
        programs: what may be chosen.
        places: multiprocessors of the device.

    Raises:
        ValueError: there are no programs.
    """

    def __init__(self, programs: Sequence[Calls], places: int) -> None:
        if not programs:
            raise ValueError("a choice needs at least one program")
        self._calls = [(each.entry, call) for each in programs for call in each.configurations]
        counts = [len(each.configurations) for each in programs]
        entries = [each.entry for each in programs]
        offered = Programs(
            np.concatenate([each.units for each in programs]),
            np.repeat([float(each.resident) for each in entries], counts),
            places,
        )
        prices = np.array([each.prices for each in entries], dtype=np.float64)
        self._priced = Priced(offered, np.repeat(prices, counts, axis=0).T)
        self._doubt = np.exp(CAUTION * np.repeat([each.spread for each in entries], counts))
        self._known = np.repeat([inverse(each.largest) for each in entries], counts)

    def ranked(self, sizes: Sizes) -> Iterator[Choice]:
        """All choices, the most promising first."""
        seconds = self._priced.seconds(sizes)
        doubtful = seconds * self._doubt * strangeness(sizes, self._known)
        # One or two are asked for as a rule: to find each costs less than to put all in order.
        for _ in doubtful:
            row = int(doubtful.argmin())
            yield self._choice(row, seconds)
            doubtful[row] = np.inf

    def _choice(self, row: int, seconds: np.ndarray) -> Choice:
        entry, configuration = self._calls[row]
        return Choice(entry, configuration, float(seconds[row]), entry.spread)
