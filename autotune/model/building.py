"""From measurements to a portfolio: prices of every program, then the few that are needed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.fitting import Observation, counted_terms, fit
from autotune.model.portfolio import LARGEST, Entry
from autotune.model.selecting import select
from autotune.model.terms import TERMS, Programs, Sizes, price
from autotune.model.units import Tile, free_parameters, program_of, unit_of, variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Candidate, Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily

FEWEST = 6
"""Times that a program must have been measured at, to be selected."""

LOSS = 0.01
"""What the selected programs may be slower than all, as a geometric mean, unless there are too
many."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate's time on a problem.

    Attributes:
        candidate: family and configuration.
        sizes: of the problem.
        seconds: median of a call.
        resident: units that a multiprocessor holds at a time.
        weight: what it counts for.
    """

    candidate: Candidate
    sizes: Sizes
    seconds: float
    resident: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Key:
    """What tells one program from another.

    Attributes:
        family: its family's name.
        layout: how operands are stored.
        configuration: with the lowest values of its free parameters.
    """

    family: str
    layout: str
    configuration: Configuration


@dataclass(slots=True)
class _Program:
    key: Key
    tile: Tile
    resident: int
    sizes: list[Sizes]
    counted: NDArray[np.float64]
    seconds: NDArray[np.float64]
    weights: NDArray[np.float64]
    prices: NDArray[np.float64]
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class Built:
    """What was made of measurements.

    Attributes:
        entries: the portfolio's, in the order of what they bring.
        loss: what the best of them is slower than the best that was measured, by prediction and
            measurement together, as a geometric mean over the problems measured.
        shapes: how many problems those were.
    """

    entries: tuple[Entry, ...]
    loss: float
    shapes: int


def build(
    timed: Iterable[Timed],
    families: Mapping[str, KernelFamily],
    dtype: str,
    limits: DeviceLimits,
    *,
    weights: Mapping[Sizes, float] | None = None,
    most: int = LARGEST,
    loss: float = LOSS,
) -> Built:
    """Fit every program that was measured often enough, and select.

    Args:
        timed: measurements; those of families without [work] are passed over.
        families: by name.
        dtype: element type of the operands.
        limits: of the device.
        weights: what problems count for; None counts all the same.
        most: programs at most.
        loss: see `LOSS`.
    """
    programs = _programs(timed, families, dtype, limits)
    if not programs:
        return Built((), 0.0, 0)
    for group in _by_family(programs):
        _fit_group(group)
    observed = _best_observed(programs)
    shapes = list(observed)
    able = [each for each in programs if len(each.seconds) >= FEWEST] or programs
    times = np.full((len(able), len(shapes)), np.inf)
    for row, program in enumerate(able):
        family = families[program.key.family]
        times[row] = _expected(program, shapes, family, dtype, limits)
        for column, sizes in enumerate(shapes):
            known = observed[sizes].get(program.key)
            if known is not None:
                times[row, column] = known
    keep = np.isfinite(times).any(axis=0)
    counts = np.array([1.0 if weights is None else weights.get(each, 1.0) for each in shapes])
    chosen, remaining = select(times[:, keep], counts[keep], most=most, loss=loss)
    entries = tuple(_entry(able[row], families[able[row].key.family]) for row in chosen)
    return Built(entries, remaining, int(keep.sum()))


def places_of(limits: DeviceLimits) -> int:
    """Multiprocessors of a device; 1 of one that has none: a CPU's tiles follow each other."""
    return int(limits.names().get("multiprocessor_count", 1))


def _programs(
    timed: Iterable[Timed],
    families: Mapping[str, KernelFamily],
    dtype: str,
    limits: DeviceLimits,
) -> list[_Program]:
    grouped: defaultdict[Key, list[tuple[Timed, int]]] = defaultdict(list)
    tiles: dict[Key, Tile] = {}
    for each in timed:
        family = families.get(each.candidate.family)
        if family is None or family.work is None:
            continue
        configuration = each.candidate.configuration
        key = Key(family.name, each.sizes.layout, program_of(family, configuration))
        tiles[key], parts = unit_of(family, configuration, dtype, limits)
        grouped[key].append((each, parts))
    places, programs = places_of(limits), []
    for key, members in grouped.items():
        resident = members[0][0].resident
        observed = [
            Observation(each.sizes, parts, each.seconds, each.weight) for each, parts in members
        ]
        programs.append(
            _Program(
                key,
                tiles[key],
                resident,
                [each.sizes for each in observed],
                counted_terms(tiles[key], resident, places, observed),
                np.array([each.seconds for each in observed]),
                np.array([each.weight for each in observed]),
                np.zeros(len(TERMS)),
            )
        )
    return programs


def _by_family(programs: Sequence[_Program]) -> Iterable[list[_Program]]:
    groups: defaultdict[tuple[str, str], list[_Program]] = defaultdict(list)
    for each in programs:
        groups[each.key.family, each.key.layout].append(each)
    return groups.values()


def _volumes(tile: Tile) -> NDArray[np.float64]:
    """What a term is proportional to, from one tile to another, as far as anybody knows."""
    rows, columns, steps = tile
    per_term = dict.fromkeys(TERMS, 1.0)
    for name in TERMS:
        if name.startswith("steps"):
            per_term[name] = float(rows * columns * steps)
    per_term["units"] = float(rows * columns)
    return np.array(list(per_term.values()))


def _fit_group(programs: Sequence[_Program]) -> None:
    """First one price list for a family, in products; then one for each program, near to it."""
    scaled = np.vstack([each.counted * _volumes(each.tile) for each in programs])
    seconds = np.concatenate([each.seconds for each in programs])
    weights = np.concatenate([each.weights for each in programs])
    common = fit(scaled, seconds, weights).prices
    for each in programs:
        fitted = fit(each.counted, each.seconds, each.weights, common * _volumes(each.tile))
        each.prices, each.spread = fitted.prices, fitted.spread


def _best_observed(programs: Sequence[_Program]) -> dict[Sizes, dict[Key, float]]:
    """Of every problem, the best time of each program that was measured on it."""
    best: defaultdict[Sizes, dict[Key, float]] = defaultdict(dict)
    for program in programs:
        for sizes, seconds in zip(program.sizes, program.seconds.tolist(), strict=True):
            known = best[sizes]
            known[program.key] = min(seconds, known.get(program.key, np.inf))
    return best


def _expected(
    program: _Program,
    shapes: Sequence[Sizes],
    family: KernelFamily,
    dtype: str,
    limits: DeviceLimits,
) -> NDArray[np.float64]:
    """What a program takes for each problem, its free parameters chosen; infinite in vain."""
    units = [
        unit_of(family, each, dtype, limits)
        for each in variants(family, program.key.configuration)
    ]
    counted = Programs(
        [tile for tile, _ in units],
        [parts for _, parts in units],
        [program.resident] * len(units),
        places_of(limits),
    )
    prices = np.repeat(program.prices[:, None], len(units), axis=1)
    return np.array(
        [
            price(counted.count(each), prices).min()
            if each.layout == program.key.layout
            else np.inf
            for each in shapes
        ]
    )


def _entry(program: _Program, family: KernelFamily) -> Entry:
    return Entry(
        family=family.name,
        family_digest=family.digest,
        layout=program.key.layout,
        configuration=program.key.configuration,
        free=free_parameters(family),
        resident=program.resident,
        prices=tuple(program.prices.tolist()),
        spread=program.spread,
        measured=len(program.seconds),
    )
