"""Choosing a program for a shape: the one whose predicted time is least.

A program may be called in a hundred ways, most of which are the best nowhere. To count the terms
of all of them would take longer than many products do: a portfolio has the others only.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autotune.core.configuration import Candidate
from autotune.families.gpu.planning import planner_of
from autotune.model.portfolio import Units, chip_of
from autotune.model.pricing import Priced, Programs
from autotune.model.terms import UNIT, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.model.portfolio import Entry, Key
    from autotune.model.terms import Chip
    from autotune.operations.problem import Gemm

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
        reserve: times as fast as others it must promise to be, to be chosen.
    """

    entry: Entry
    configurations: Sequence[Configuration]
    units: NDArray[np.float64]
    reserve: float = 1.0


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
        ways = [len(each.configurations) for each in programs]
        entries = [each.entry for each in programs]
        units = np.concatenate([each.units for each in programs])
        order = np.argsort(units[:, UNIT.index("share")] > 0, kind="stable")
        of = np.repeat(np.arange(len(entries)), ways)[order]
        reserves = np.array([each.reserve for each in programs])
        doubt = (reserves * np.exp(CAUTION * np.array([each.spread for each in entries])))[of]
        prices = np.array([each.prices for each in entries], dtype=np.float64)[of]
        resident = np.array([float(each.resident) for each in entries])[of]
        # Doubt about a program makes all that it does dearer.
        counted = Programs(units[order], resident, chip)
        self._priced = Priced(counted, prices.T * doubt, entries[0].layout, itemsize)
        calls = [
            (each, Candidate(each.family, call))
            for each, program in zip(entries, programs, strict=True)
            for call in program.configurations
        ]
        self._calls = [calls[number] for number in order.tolist()]
        self.candidates = tuple(candidate for _, candidate in self._calls)
        self._doubt = doubt.tolist()
        self._strange = np.array([_strange(each.largest) for each in entries])[of]
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


SHAPES = 1500
"""Problems of all kinds that are drawn, for each layout, to see which calls serve them, and as
many layers."""

KEPT = 2
"""Of the choices for a problem, those that are kept: the best may not be what was predicted."""

_LARGEST = 1 << 15
"""Rows, columns and reduction of what is drawn, at most."""

_TOKENS, _FEATURES, _WHOLE = 1 << 12, 1 << 9, 1 << 7
"""Tokens of a layer at most, its inputs and outputs at least, and what these are multiples of."""


def with_calls(
    entries: Sequence[Entry],
    families: Mapping[str, KernelFamily],
    problem: Gemm,
    limits: DeviceLimits,
    seed: int = 0,
) -> tuple[Entry, ...]:
    """The entries with the calls that are best for some shape; of the others one call each.

    Args:
        entries: programs of one dtype.
        families: by name.
        problem: one that they are for; the others differ in sizes and layout.
        limits: of the device.
        seed: draws the problems.
    """
    kept: defaultdict[Key, dict[tuple[int, ...], None]] = defaultdict(dict)
    for layout in dict.fromkeys(each.layout for each in entries):
        own = [each for each in entries if each.layout == layout]
        offered = [
            Calls(
                each,
                *Units(
                    families[each.family], each.configuration, problem.dtype, limits
                ).variants(),
            )
            for each in own
        ]
        chooser = Chooser(offered, chip_of(limits), problem.itemsize)
        for m, n, k in _shapes(seed):
            here = replace(problem, m=m, n=n, k=k, layout=layout)
            valid = (
                each
                for each in chooser.ranked(Sizes.of(here))
                if planner_of(
                    families[each.entry.family],
                    each.candidate.configuration,
                    problem.dtype,
                    limits,
                ).valid(here)
            )
            for choice in itertools.islice(valid, KEPT):
                call = tuple(
                    int(choice.candidate.configuration[name]) for name in choice.entry.free
                )
                kept[choice.entry.key][call] = None
    return tuple(replace(each, calls=tuple(_calls(each, kept[each.key]))) for each in entries)


def _calls(entry: Entry, kept: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    found = sorted(kept)
    if found or not entry.free:
        return found
    return [tuple(int(entry.configuration[name]) for name in entry.free)]


def _shapes(seed: int) -> Iterator[tuple[int, int, int]]:
    """Shapes of all kinds and sizes: thin and odd ones, long reductions; layers, and gradients."""
    rng = np.random.default_rng(seed)
    drawn = np.exp(rng.uniform(0.0, np.log(_LARGEST), (SHAPES, 3))).astype(np.int64)
    for number, (m, n, k) in enumerate(drawn.tolist()):
        match number % 6:
            case 0:
                yield (m | 1), (n | 1), (k | 1)
            case 1:
                yield 1 + m % 16, n, k
            case 2:
                yield m, n, 1 + k % 16
            case _:
                yield m, n, k
    tokens = np.exp(rng.uniform(0.0, np.log(_TOKENS), SHAPES)).astype(np.int64)
    wide = np.exp(rng.uniform(np.log(_FEATURES), np.log(_LARGEST), (SHAPES, 2)))
    features = _WHOLE * np.ceil(wide / _WHOLE).astype(np.int64)
    layers = zip(tokens.tolist(), features.tolist(), strict=True)
    for number, (rows, (first, second)) in enumerate(layers):
        yield (rows, first, second) if number % 3 else (first, rows, second)
