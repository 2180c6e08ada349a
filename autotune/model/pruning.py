"""Calls of a portfolio's programs that are worth looking at when a shape comes.

A program may be called in a hundred ways, most of which are the best nowhere. To count the terms
of all of them would take longer than many products do.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.families.gpu.planning import planner_of
from autotune.model.choosing import Calls, Chooser
from autotune.model.terms import Sizes
from autotune.model.units import Units, chip_of
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.model.portfolio import Entry, Key

SHAPES = 1500
"""Problems that are drawn, for each layout, to see which calls serve them."""

KEPT = 2
"""Of the choices for a problem, those that are kept: the best may not be what was predicted."""

_LARGEST = 1 << 15
"""Rows, columns and reduction of what is drawn, at most."""


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
    """Shapes of all kinds and sizes: thin ones, odd ones, long reductions."""
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
