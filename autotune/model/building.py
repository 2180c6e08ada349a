"""From a price book to a portfolio: the few programs that are needed."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.choosing import strangeness
from autotune.model.portfolio import LARGEST
from autotune.model.selecting import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.families.family import KernelFamily
    from autotune.model.book import PriceBook, Program
    from autotune.model.portfolio import Entry, Key
    from autotune.model.terms import Sizes

FEWEST = 3
"""Times that a program must have been measured at to be selected, where some were."""

DOUBT = 1.0
"""The standard deviations that a program is taken to be slower than predicted, where it was not
measured."""

LOSS = 0.002
"""The loss of the selected programs to all, as a geometric mean, unless there are too
many."""


@dataclass(frozen=True, slots=True)
class Built:
    """The portfolio of a price book.

    Attributes:
        entries: the portfolio's, in the order of what they bring.
        loss: what the best of them is slower than the best of all, by measurements and, where
            there are none, predictions, as a geometric mean over the problems measured.
        shapes: how many problems those were.
    """

    entries: tuple[Entry, ...]
    loss: float
    shapes: int


def build(
    book: PriceBook,
    families: Mapping[str, KernelFamily],
    *,
    weights: Mapping[Sizes, float] | None = None,
    most: int = LARGEST,
    fewest: int = FEWEST,
    loss: float = LOSS,
) -> Built:
    """Select the programs of a portfolio.

    Args:
        book: what has been learned.
        families: by name.
        weights: what problems count for; those that are not named, and all where there is no
            mapping, count 1.
        most: programs at most.
        fewest: see `FEWEST`.
        loss: see `LOSS`.
    """
    timed = [each for each in book.programs if each.timed]
    # What an earlier portfolio has need not be measured again to stay.
    tried = [p for p in book.programs if len(p.timed) >= fewest or p.known is not None]
    able = tried or timed
    if not able:
        return Built((), 0.0, 0)
    observed = _best_observed(timed)
    shapes = list(observed)
    seconds = np.full((len(able), len(shapes)), np.inf)
    for row, program in enumerate(able):
        for column, sizes in enumerate(shapes):
            if sizes.layout == program.key.layout:
                known = observed[sizes].get(program.key)
                if known is None:  # what is not known well is no reason to leave out what is
                    doubt = math.exp(DOUBT * program.spread)
                    far = strangeness(sizes, program.largest)
                    known = program.expected(sizes)[1] * doubt * far
                seconds[row, column] = known
    served = np.isfinite(seconds).any(axis=0)
    counts = np.array([(weights or {}).get(each, 1.0) for each in shapes])
    chosen, remaining = select(seconds[:, served], counts[served], most=most, loss=loss)
    entries = tuple(able[row].entry(families[able[row].key.family]) for row in chosen)
    return Built(entries, remaining, int(served.sum()))


def _best_observed(programs: Sequence[Program]) -> dict[Sizes, dict[Key, float]]:
    """Of every problem, the best time of each program that was measured on it."""
    best: defaultdict[Sizes, dict[Key, float]] = defaultdict(dict)
    for program in programs:
        for sizes, _, seconds, _ in program.timed:
            known = best[sizes]
            known[program.key] = min(seconds, known.get(program.key, np.inf))
    return best
