"""Choosing a program for a shape: the one whose predicted time is least."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autotune.core.configuration import Candidate
from autotune.model.pricing import Priced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.model.portfolio import Entry
    from autotune.model.terms import Chip, Sizes

CAUTION = 0.7
"""Of two programs with equal predictions the better known one is taken: a standard deviation of
the prediction's logarithm counts as so much of it."""

FAR = 32.0
"""The multiple of timed products that a prediction is taken for as it is: a matrix of few
rows that no cache holds has a twentieth of the products of the largest ones."""


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


class Choice(NamedTuple):
    """The choice for a shape.

    Attributes:
        entry: the program.
        candidate: the same with what is passed at the call.
        seconds: predicted time of a call.
        spread: standard deviation of the prediction's logarithm.
    """

    entry: Entry
    candidate: Candidate
    seconds: float
    spread: float


def strangeness(sizes: Sizes, largest: float) -> float:
    """The factor of a prediction for a problem much larger than all timed ones.

    What takes time at sizes where operands are beyond the caches, small problems do not tell.

    Args:
        sizes: the problem's.
        largest: products of the largest problem timed; 0 where nothing is known of it, and nothing
            is held against it.
    """
    return max(math.sqrt(sizes.products) * _strange(largest), 1.0)


def _strange(largest: float) -> float:
    """The strangeness of a problem, divided by the root of its products."""
    return 1 / math.sqrt(FAR * largest) if largest else 0.0


class Chooser:
    """Ranks programs of one dtype and layout for whatever sizes.

    Args:
        programs: what may be chosen.
        chip: the device.
        itemsize: bytes of an element.

    Attributes:
        candidates: all that may be chosen.

    Raises:
        ValueError: there are no programs.
    """

    def __init__(self, programs: Sequence[Calls], chip: Chip, itemsize: int) -> None:
        if not programs:
            raise ValueError("a choice needs at least one program")
        counts = [len(each.configurations) for each in programs]
        entries = [each.entry for each in programs]
        doubt = np.exp(CAUTION * np.repeat([each.spread for each in entries], counts))
        prices = np.array([each.prices for each in entries], dtype=np.float64)
        # Doubt about a program makes all that it does dearer.
        self._priced = Priced(
            np.concatenate([each.units for each in programs]),
            np.repeat([float(each.resident) for each in entries], counts),
            chip,
            np.repeat(prices, counts, axis=0).T * doubt,
            entries[0].layout,
            itemsize,
        )
        order = self._priced.order
        calls = [
            (each, Candidate(each.family, call))
            for each, program in zip(entries, programs, strict=True)
            for call in program.configurations
        ]
        self._calls = [calls[number] for number in order.tolist()]
        self.candidates = tuple(candidate for _, candidate in self._calls)
        self._doubt = doubt[order].tolist()
        self._strange = np.repeat([_strange(each.largest) for each in entries], counts)[order]
        self._ones = np.ones(len(order))

    def ranked(self, sizes: Sizes) -> Iterator[Choice]:
        """All choices, the most promising first."""
        doubtful = self._priced.seconds(sizes)
        strange = self._strange * math.sqrt(sizes.products)
        np.maximum(strange, self._ones, out=strange)
        doubtful *= strange
        # One or two are asked for as a rule: to find each costs less than to put all in order.
        for _ in doubtful:
            row = int(doubtful.argmin())
            entry, candidate = self._calls[row]
            seconds = float(doubtful[row] / (self._doubt[row] * strange[row]))
            yield Choice(entry, candidate, seconds, entry.spread)
            doubtful[row] = np.inf
