"""The price book of a device: prices of programs that were timed, and of those that were not."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.configuration import Candidate
from autotune.model.fitting import UNKNOWN_SPREAD, fit
from autotune.model.portfolio import PLAIN, Entry, Key
from autotune.model.terms import TERMS, Programs, Sizes, Unit, price
from autotune.model.units import Units, chip_of, free_parameters, program_of, rate_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily

    Prices = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate's time on a problem.

    Attributes:
        candidate: family and configuration.
        sizes: of the problem.
        seconds: median of a call.
        resident: units that a multiprocessor holds at a time; None takes the family's estimate.
        weight: what it counts for.
    """

    candidate: Candidate
    sizes: Sizes
    seconds: float
    resident: int | None = None
    weight: float = 1.0


@dataclass(slots=True)
class Program:
    """A program, its possible calls, and its prices.

    Attributes:
        key: which one.
        units: what it does at a time.
        configurations: one for each choice of the free parameters.
        table: what each of those does at a time, a row each.
        calls: the same, as the terms are counted of.
        tile: of a unit.
        resident: units that a multiprocessor holds at a time.
        timed: what was measured of it: sizes, unit, seconds, weight.
        known: prices that an earlier portfolio has; they hold where no measurement speaks.
        known_to: products of the largest problem that those were fitted to.
        prices: seconds per term.
        spread: standard deviation of a prediction's logarithm.
    """

    key: Key
    units: Units
    configurations: list[Configuration]
    table: NDArray[np.float64]
    calls: Programs
    tile: tuple[int, int, int]
    resident: int
    prices: Prices
    spread: float = UNKNOWN_SPREAD
    timed: list[tuple[Sizes, Unit, float, float]] = field(default_factory=list)
    known: Prices | None = None
    known_to: float = 0.0

    def expected(self, sizes: Sizes) -> tuple[Configuration, float]:
        """The best call for a problem, and the seconds that it is expected to take."""
        seconds = self._seconds(sizes)
        row = int(seconds.argmin())
        return self.configurations[row], float(seconds[row])

    def ranked(self, sizes: Sizes) -> list[Configuration]:
        """All calls for a problem, the one expected to be fastest first."""
        order = np.argsort(self._seconds(sizes), kind="stable").tolist()
        return [self.configurations[row] for row in order]

    @property
    def largest(self) -> float:
        """Products of the largest problem that it was timed on, here or for its portfolio."""
        return max([self.known_to, *(sizes.products for sizes, *_ in self.timed)])

    def entry(self, family: KernelFamily) -> Entry:
        """It as a portfolio has it, without a binary."""
        return Entry(
            family=family.name,
            family_digest=family.digest,
            layout=self.key.layout,
            configuration=self.key.configuration,
            free=free_parameters(family),
            calls=(),
            resident=self.resident,
            prices=tuple(self.prices.tolist()),
            spread=self.spread,
            measured=len(self.timed),
            largest=self.largest,
        )

    def _seconds(self, sizes: Sizes) -> NDArray[np.float64]:
        prices = np.repeat(self.prices[:, None], len(self.configurations), axis=1)
        return price(self.calls.count(sizes), prices)


class PriceBook:
    """Prices for the programs of some families, on one device and for one element type.

    Args:
        families: by name; those without [work] are passed over.
        dtype: element type of the operands.
        limits: of the device.
    """

    def __init__(
        self, families: Mapping[str, KernelFamily], dtype: str, limits: DeviceLimits
    ) -> None:
        self._families = families
        self._dtype = dtype
        self._limits = limits
        self._chip = chip_of(limits)
        self._programs: dict[Key, Program] = {}
        self._common: dict[str, Prices] = {}
        self._begun_with: dict[str, Prices] = {}

    @property
    def common(self) -> dict[str, tuple[float, ...]]:
        """The prices of each family of which anything is known, per volume, by its name."""
        return {name: tuple(prices.tolist()) for name, prices in self._common.items()}

    @property
    def programs(self) -> list[Program]:
        """Every program that it has prices for."""
        return list(self._programs.values())

    def program(
        self, candidate: Candidate, layout: str, resident: int | None = None
    ) -> Program | None:
        """The program of a candidate; None where no model speaks of its family.

        Args:
            candidate: any call of it.
            layout: how operands are stored.
            resident: as compiled; None takes the family's estimate.

        Raises:
            SpaceError: it is not one of the family's configurations.
        """
        family = self._families.get(candidate.family)
        if family is None or family.work is None:
            return None
        configuration = family.conform(candidate.configuration)
        key = Key(family.name, layout, program_of(family, configuration))
        known = self._programs.get(key)
        if known is None or (resident is not None and known.resident != resident):
            made = self._make(family, key, resident)
            if known is not None:
                made.timed = known.timed
                made.known, made.known_to = known.known, known.known_to
            self._programs[key] = known = made
        return known

    def begin_with(self, families: Mapping[str, Sequence[float]]) -> None:
        """Take an earlier portfolio's prices of whole families for a start."""
        for name, prices in families.items():
            self._common[name] = self._begun_with[name] = np.array(prices)

    def take(self, entry: Entry) -> None:
        """Add a program of an earlier portfolio, with its prices.

        Raises:
            SpaceError: it is not one of the family's configurations.
        """
        candidate = Candidate(entry.family, entry.configuration)
        program = self.program(candidate, entry.layout, entry.resident)
        if program is not None:
            program.known, program.known_to = np.array(entry.prices), entry.largest
            program.prices, program.spread = program.known, entry.spread

    def note(self, each: Timed) -> None:
        """Add a measurement; prices follow with `learn`."""
        program = self.program(each.candidate, each.sizes.layout, each.resident)
        if program is not None:
            unit = program.units.of(each.candidate.configuration)
            program.timed.append((each.sizes, unit, each.seconds, each.weight))

    def learn(self) -> None:
        """Fit all prices anew: first those of a family, then each program's, near to them."""
        groups: defaultdict[tuple[str, str], list[Program]] = defaultdict(list)
        for each in self._programs.values():
            groups[each.key.family, each.key.layout].append(each)
        learned: set[str] = set()
        # The plain layout first, which others are like.
        for (name, _), group in sorted(groups.items(), key=lambda each: each[0][1] != PLAIN):
            # What was learned before is of the same measurements, and no prior for them.
            before = (self._common if name in learned else self._begun_with).get(name)
            if before is None:
                before = self._default(name)
            common = self._learn(group, before)
            if any(each.timed for each in group) and name not in learned:
                self._common[name] = common
                learned.add(name)

    def _learn(self, group: Sequence[Program], common: Prices) -> Prices:
        """Prices of one family's programs for one layout; gives those they have in common."""
        counted = {id(each): self._counted(each) for each in group if each.timed}
        if counted:
            timed = [each for each in group if each.timed]
            scaled = np.vstack(
                [counted[id(each)] * self._volumes(each.key, each.tile) for each in timed]
            )
            rows = [row for each in timed for row in each.timed]
            seconds, weights = _columns(rows)
            common = fit(scaled, seconds, weights, common).prices
        for each in group:
            plain = self._programs.get(replace(each.key, layout=PLAIN))
            expected = common * self._volumes(each.key, each.tile)
            if each.known is not None and _still_holds(each, counted.get(id(each))):
                expected = each.known
            elif plain is not None and plain is not each and plain.timed:
                expected = plain.prices
            if each.timed:
                seconds, weights = _columns(each.timed)
                fitted = fit(counted[id(each)], seconds, weights, expected)
                each.prices, each.spread = fitted.prices, fitted.spread
            elif each.known is None:
                each.prices, each.spread = expected, UNKNOWN_SPREAD
        return common

    def _counted(self, program: Program) -> NDArray[np.float64]:
        rows = np.empty((len(program.timed), len(TERMS)))
        calls: dict[Unit, Programs] = {}
        for row, (sizes, unit, _, _) in zip(rows, program.timed, strict=True):
            if unit not in calls:
                calls[unit] = Programs.of([unit], program.resident, self._chip)
            row[:] = calls[unit].count(sizes)[:, 0]
        return rows

    def _make(self, family: KernelFamily, key: Key, resident: int | None) -> Program:
        units = Units(family, key.configuration, self._dtype, self._limits)
        resident = units.resident() if resident is None else resident
        configurations, table = units.variants()
        calls = Programs(table, resident, self._chip)
        tile = units.of(key.configuration).tile
        common = self._common.get(family.name)
        if common is None:
            common = self._default(family.name)
        prices = common * self._volumes(key, tile)
        return Program(key, units, configurations, table, calls, tile, resident, prices)

    def _volumes(self, key: Key, tile: tuple[int, int, int]) -> NDArray[np.float64]:
        return volumes(tile, self._chip.places, self._rate(key.family))

    def _default(self, family: str) -> Prices:
        return default_prices(self._dtype, self._chip.places, self._rate(family))

    def _rate(self, family: str) -> float:
        return rate_of(self._families[family], self._limits)


def _still_holds(program: Program, counted: NDArray[np.float64] | None) -> bool:
    """Return whether known prices are of use: they must be near what was measured since."""
    if counted is None or program.known is None:
        return True
    measured = np.array([seconds for _, _, seconds, _ in program.timed])
    told = np.log(np.maximum(counted @ program.known, 1e-300) / measured)
    return bool(np.median(np.abs(told)) < _STRANGE)


_STRANGE = math.log(2.0)
"""Prices that are off by more, in the median, are another device's, or another time's."""


_LOADS = 12.0
"""The cost of bringing an element of a tile of A or B to a GPU, in products."""

_LOADS_OF_ONE = 0.0
"""The same for a CPU, whose tiles are in registers."""


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
    loads = rate * (_LOADS if places > 1 else _LOADS_OF_ONE)
    for row, name in enumerate(TERMS):
        # Waiting for memory takes as long however large the tile is.
        if name.startswith("steps") and not name.endswith("cache"):
            found[row] = (rows * columns + loads * (rows + columns)) * steps
    for name in ("units", "sum in a block", "units, rows of C unaligned"):
        found[TERMS.index(name)] = rows * columns
    return found


def default_prices(dtype: str, places: int, rate: float = 1.0) -> Prices:
    """Prices before anything is known, per unit of volume: of a machine of our days, roughly.

    They say what is cheap and what is dear; the first measurements say how much.

    Args:
        dtype: element type of the operands.
        places: multiprocessors of the device; 1 of a CPU, whose units follow each other, so that
            each is a wave and a wave costs no more than a unit does.
        rate: products that are done in the time of one for each thread, as by tensor cores.
    """
    double = 2.0 if dtype == "float64" else 1.0
    prices = dict.fromkeys(TERMS, 0.0) | (_ONE_PLACE if places == 1 else _MANY_PLACES)
    steps = np.array([name.startswith("steps") for name in TERMS])
    doubled = steps | np.array([name == "sum in a block" for name in TERMS])
    found = np.array([prices[name] for name in TERMS]) * np.where(doubled, double, 1.0)
    return np.asarray(found / np.where(steps, rate, 1.0))


def later_prices(dtype: str, places: int, known: int) -> tuple[float, ...]:
    """Prices of terms that came later than a portfolio, which was fitted without them.

    Args:
        dtype: element type of the operands.
        places: see `default_prices`.
        known: terms that the portfolio has prices for.
    """
    return tuple((_LATER * default_prices(dtype, places)[known:]).tolist())


_LATER = 0.3
"""The charged share of such a price: where measurements showed it, other prices have it."""


def with_copies(prices: Prices, a: bool, b: bool) -> Prices:
    """Prices of a program for which operands are copied first, whatever their rows.

    Args:
        prices: of the program, which copies none.
        a: whether A is copied.
        b: whether B is.
    """
    of = dict(zip(TERMS, prices, strict=True))
    of["call"] += (a or b) * of["copies"]
    of["bytes of A"] += a * of["bytes copied"]
    of["bytes of B"] += b * of["bytes copied"]
    return np.array([of[name] for name in TERMS])


_MANY_PLACES = {
    "call": 2e-6,
    "steps of full waves": 6e-12,
    "steps of the last wave": 5e-12,
    "steps in a row": 1e-12,
    "units": 1e-11,
    "waves": 1e-6,
    "bytes of A": 1.5e-13,
    "bytes of B": 1.5e-13,
    "bytes of C": 2.5e-13,
    "bytes of parts": 4e-13,
    "sum of parts": 2e-6,
    "sum in a block": 4e-11,
    "copies": 2e-6,
    "bytes copied": 6e-13,
    "sectors in vain": 1e-9,
    "units, rows of C unaligned": 2e-10,
}

_ONE_PLACE = {
    "call": 5e-7,
    "steps of full waves": 1.5e-11,
    "units": 1e-10,
    "bytes of A": 2e-11,
    "bytes of B": 2e-11,
    "bytes of C": 4e-11,
}


def _columns(
    rows: Iterable[tuple[Sizes, Unit, float, float]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    pairs = np.array([(seconds, weight) for _, _, seconds, weight in rows])
    return pairs[:, 0], pairs[:, 1]
