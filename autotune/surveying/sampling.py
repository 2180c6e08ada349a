"""Problems drawn at random: those of a survey, and such as programs may meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ODD_SHARE = 1 / 3
"""Of problems, those whose sizes are all odd: no row of theirs is aligned."""

_LAYOUTS = ("nn", "nn", "nn", "nt", "nn", "tn", "nn", "nn", "tt", "nn")
"""In turns: most products are of matrices as they are."""

_THIN = 4
"""Every so many problems one is thin: few rows of C and few columns in turns; lot draws few."""

_FEW = (1, 1, 2, 4, 8, 16)
"""Rows or columns of thin problems, in turns."""

_LONG = 128
"""Least other sizes of a thin problem: what short ones cost is mostly the call."""

_LARGE = 6
"""Every so many problems one is large in all sizes: there programs differ by what they take for
each step, and for nothing else."""

_OF_LARGEST = 8
"""Divisor of the largest size, for the least of a large problem. Every second thin problem
is large in the other two: no cache of a GPU holds it, and memory sets its time."""

_ELEMENTS = 2**25
"""Of a matrix, at most: beyond all caches, and a trial is not mostly the making of operands."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of the problems that are drawn, logarithmically uniform in each size.

    Attributes:
        outer: least and largest rows and columns of C.
        reduction: least and largest reduction.
        work: least and largest number of products, M N K.
    """

    outer: tuple[int, int]
    reduction: tuple[int, int]
    work: tuple[float, float]

    def admits(self, m: int, n: int, k: int) -> bool:
        """A problem of these sizes has as much work as it should."""
        least, most = self.work
        return least <= m * n * k <= most


def draw_problems(
    within: Range, count: int, seed: int, dtype: str, threads: int | None = None
) -> list[Gemm]:
    """Distinct problems, the same for the same arguments; a third of them odd in all sizes."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, int, int, str], None] = {}
    for m, n, k in _shapes(within, rng):
        if rng.random() < ODD_SHARE:
            m, n, k = m | 1, n | 1, k | 1
        thin, rest = divmod(len(found), _THIN)
        if not rest:
            turn, side = divmod(thin, 2)
            least = (_LONG, within.outer[1] // _OF_LARGEST)[turn % 2]
            long, n = (
                _at_least(least, bounds, rng) for bounds in (within.outer, within.reduction)
            )
            few = _FEW[turn % len(_FEW)]
            m, k = (long, few) if side else (few, long)
        elif len(found) % _LARGE == 1:
            bounds = within.outer, within.reduction, within.outer
            m, n, k = (_at_least(high // _OF_LARGEST, (low, high), rng) for low, high in bounds)
        if not within.admits(m, n, k) or max(m * n, n * k, m * k) > _ELEMENTS:
            continue
        found[m, n, k, _LAYOUTS[len(found) % len(_LAYOUTS)]] = None
        if len(found) == count:
            break
    return [
        Gemm(m, n, k, dtype=dtype, layout=layout, threads=threads) for m, n, k, layout in found
    ]


def _shapes(within: Range, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """Rows, reduction and columns within the range, for ever."""
    while True:
        m, k = _log_uniform(within.outer, rng, 2).tolist()
        [n] = _log_uniform(within.reduction, rng, 1).tolist()
        if within.admits(m, n, k):
            yield m, n, k


def _at_least(least: int, bounds: tuple[int, int], rng: np.random.Generator) -> int:
    """A size within the bounds, from the least on if they have that."""
    low, high = bounds
    return int(_log_uniform((max(low, min(least, high)), high), rng, 1)[0])


def _log_uniform(
    bounds: tuple[int, int], rng: np.random.Generator, count: int
) -> NDArray[np.int64]:
    low, high = np.log(bounds[0]), np.log(bounds[1] + 1)
    return np.minimum(np.exp(rng.uniform(low, high, count)).astype(np.int64), bounds[1])
