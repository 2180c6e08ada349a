"""Prices of terms: expected before anything is measured, and fitted to measurements.

They are fitted by non-negative least squares of relative errors, drawn to a prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.limits import GpuLimits
from autotune.families.gpu.occupancy import resident_blocks
from autotune.model.portfolio import chip_of, rate_of
from autotune.model.pricing import Programs, price
from autotune.model.terms import TABLE, TERMS, Sizes

if TYPE_CHECKING:
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Gemm

PRIOR_WEIGHT = 0.04
"""The weight of an expected price, as a measurement: one that is off by half of itself is as
strange as a measurement that is off by a tenth."""

ABSENT_WEIGHT = 0.1
"""The same for a price that is expected to be zero, in what its term contributes where it
contributes most."""

LAST_LIKE_FULL = 1.0
"""The same for a step of the last wave that costs something else than one of a full wave: two
units take a place as long whether others follow them or not, and many programs are timed on small
problems alone, which have no full wave."""

DOUBTFUL = 3.0
"""Measurements that an unknown program's spread counts for: few that fit say little."""

UNKNOWN_SPREAD = 0.3
"""The difference of a family's programs from their expectation."""

_FULL, _LAST = map(TERMS.index, ("steps of full waves", "steps of the last wave"))
_ROBUST_ROUNDS = 4
_TOLERATED = 0.15
"""Relative errors beyond this count less and less: a disturbed moment is no price."""


class Fitted(NamedTuple):
    """Prices, and how well they tell the times that they were fitted to.

    Attributes:
        prices: seconds per term.
        spread: standard deviation of the logarithm of measured over predicted times, for problems
            that were not measured.
    """

    prices: NDArray[np.float64]
    spread: float


def fit(
    counted: NDArray[np.float64],
    seconds: NDArray[np.float64],
    weights: NDArray[np.float64],
    prior: NDArray[np.float64] | None = None,
) -> Fitted:
    """The prices that explain times best.

    The sum of squared relative errors is least, with what is far off counting less (iteratively
    reweighted). Prices are held near the prior's, each in proportion to itself: a term that is
    hardly seen in the measurements may be most of the time elsewhere.

    Args:
        counted: terms, shape (observations, terms).
        seconds: measured times, shape (observations,).
        weights: what each counts for, shape (observations,).
        prior: expected prices, shape (terms,); None expects none.

    Raises:
        ValueError: there are no observations.
    """
    if not len(seconds):
        raise ValueError("prices need at least one measurement")
    relative = counted / seconds[:, None]
    expected = np.zeros(len(TERMS)) if prior is None else np.asarray(prior, np.float64)
    largest = relative.max(axis=0)
    contributed = np.where(largest > 0, largest, 1.0)
    unit = np.where(expected > 0, expected, 1.0 / contributed)
    pull = np.diag(np.sqrt(np.where(expected > 0, PRIOR_WEIGHT, ABSENT_WEIGHT)))
    pulled = pull @ np.where(expected > 0, 1.0, 0.0)
    if expected[_FULL] > 0 and expected[_LAST] > 0:
        tie = np.zeros(len(TERMS))
        tie[[_FULL, _LAST]] = [-1.0, expected[_LAST] / expected[_FULL]]
        pull = np.vstack([pull, math.sqrt(LAST_LIKE_FULL) * tie])
        pulled = np.append(pulled, 0.0)
    strengths = np.sqrt(weights)
    robust = np.ones(len(seconds))
    prices = expected
    for _ in range(_ROBUST_ROUNDS):
        rows = relative * unit * (strengths * robust)[:, None]
        system = np.vstack([rows, pull])
        wanted = np.concatenate([strengths * robust, pulled])
        prices = _non_negative(system, wanted) * unit
        errors = np.abs(relative @ prices - 1.0)
        robust = np.sqrt(np.minimum(1.0, _TOLERATED / np.maximum(errors, 1e-12)))
    logs = np.log(seconds / np.maximum(counted @ prices, 1e-300))
    count = float(weights.sum())
    used = rows.T @ rows
    free = float(np.trace(np.linalg.solve(used + pull.T @ pull, used)))  # what the data decided
    inflation = count / max(count - free, _LEAST_KNOWN * count)
    told = float(weights @ logs**2) * inflation
    spread = math.sqrt((DOUBTFUL * UNKNOWN_SPREAD**2 + told) / (DOUBTFUL + count))
    return Fitted(prices, spread)


_LEAST_KNOWN = 0.25
"""Of the measurements, what is taken to check prices, however many of these are free."""


def _non_negative(system: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import nnls  # importing it takes longer than loading a kernel may

    solution, _ = nnls(system, wanted)
    return np.asarray(solution, dtype=np.float64)


_LOADS = 12.0
"""The cost of bringing an element of a tile of A or B to a GPU, in products; a CPU's tiles are in
registers."""

_BY_VOLUME, _BY_AREA = (np.array([each.by == by for each in TABLE]) for by in ("volume", "area"))

_ARITHMETIC = _BY_VOLUME | np.array([name == "sum in a block" for name in TERMS])
"""Terms that take twice as long in double precision."""


def volumes(
    tiles: tuple[int, int, int] | NDArray[np.float64], places: int, rate: float = 1.0
) -> NDArray[np.float64]:
    """The volumes that each term's price is proportional to, from one tile to another.

    Args:
        tiles: rows, columns and steps of a tile, or of each, shape (tiles, 3).
        places: multiprocessors of the device.
        rate: see `default_prices`: what is multiplied faster is not loaded faster.

    Returns:
        Shape (terms,), or (terms, tiles).
    """
    rows, columns, steps = np.asarray(tiles, dtype=np.float64).T
    found = np.ones((len(TERMS), *rows.shape))
    loads = rate * (_LOADS if places > 1 else 0.0)
    found[_BY_VOLUME] = (rows * columns + loads * (rows + columns)) * steps
    found[_BY_AREA] = rows * columns
    return found


def default_prices(dtype: str, places: int, rate: float = 1.0) -> NDArray[np.float64]:
    """Prices before anything is known, per unit of volume: of a machine of our days, roughly.

    They say what is cheap and what is dear; the first measurements say how much.

    Args:
        dtype: element type of the operands.
        places: multiprocessors of the device; 1 of a CPU.
        rate: products that are done in the time of one for each thread, as by tensor cores.
    """
    prices = np.array([each.cpu if places == 1 else each.gpu for each in TABLE])
    doubled = prices * np.where(_ARITHMETIC & (dtype == "float64"), 2.0, 1.0)
    return np.asarray(doubled / np.where(_BY_VOLUME, rate, 1.0))


def later_prices(dtype: str, places: int, known: int) -> tuple[float, ...]:
    """Prices of the terms behind those `known`, of a portfolio that was fitted without them."""
    return tuple((_LATER * default_prices(dtype, places)[known:]).tolist())


_LATER = 0.3
"""The charged share of such a price: where measurements showed it, other prices have it."""


def with_copies(prices: NDArray[np.float64], a: bool, b: bool) -> NDArray[np.float64]:
    """Prices of a program that copies none, where A or B are copied first, whatever their rows."""
    of = dict(zip(TERMS, prices, strict=True))
    of["call"] += (a or b) * of["copies"]
    of["bytes of A"] += a * of["bytes copied"]
    of["bytes of B"] += b * of["bytes copied"]
    return np.array([of[name] for name in TERMS])


_BLOCK = 4096
"""Configurations that are counted at a time: what is counted of them stays in a cache."""

Columns: TypeAlias = Mapping[str, NDArray[Any]]

Expectation: TypeAlias = Callable[[Columns], NDArray[np.float64]]
"""Logarithms of expected seconds, of columns of parameter values; NaN where nothing can run."""


def expected_log_time(
    family: KernelFamily, prices: Sequence[float], problem: Gemm, limits: DeviceLimits
) -> Expectation | None:
    """The estimate of a family's prices for its configurations; None where there is no model.

    Args:
        family: the configurations' family.
        prices: of the family, per volume, as a portfolio has them.
        problem: what is to be computed.
        limits: of the device.
    """
    work = family.work
    if work is None:
        return None
    sizes = Sizes.of(problem)

    def expected(columns: Columns) -> NDArray[np.float64]:
        rows = len(next(iter(columns.values())))
        names: dict[str, Any] = {**problem.sizes, **limits.names(), **columns}
        for name, expression in family.derived.items():
            names[name], _ = expression.evaluate_columns(names)

        def column(values: Any) -> NDArray[np.float64]:
            return np.broadcast_to(np.asarray(values, np.float64), rows)

        found = [column(each.evaluate_columns(names)[0]) for each in work.expressions]
        counts, flags = found[:4], found[4:]
        usable = np.all([np.isfinite(each) & (each >= 1) for each in counts], axis=0)
        relative = np.ones((2, rows))  # prices are brought to each tile's own volume below
        table = np.column_stack(
            [*(np.where(usable, each, 1.0) for each in counts), *flags, *relative]
        )
        resident = np.ones(rows)
        if isinstance(limits, GpuLimits):
            needs = (column(names[each]) for each in ("threads", "registers", "shared_bytes"))
            threads, registers, shared = (np.maximum(each, 1).astype(np.int64) for each in needs)
            fits = resident_blocks(
                limits, threads=threads, registers=registers, shared_bytes=shared
            )
            usable &= fits > 0
            blocks, idle = (
                column(each.evaluate_columns(names)[0]) for each in (work.blocks, work.idle)
            )
            resident = np.maximum(fits, 1) / blocks * (1 - idle / limits.multiprocessor_count)
        chip, rate, seconds = chip_of(limits), rate_of(family, limits), np.empty(rows)
        for start in range(0, rows, _BLOCK):
            part = slice(start, start + _BLOCK)
            scaled = np.asarray(prices)[:, None] * volumes(table[part, :3], chip.places, rate)
            counted = Programs(table[part], resident[part], chip).count(sizes)
            seconds[part] = price(counted, scaled)
        return np.where(usable & (seconds > 0), np.log(np.maximum(seconds, 1e-300)), np.nan)

    return expected
