"""The price book of a device: prices of programs that were timed, and of those that were not.

The few programs that together are fast on all shapes are a portfolio's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.configuration import Candidate
from autotune.model.choosing import strangeness
from autotune.model.portfolio import (
    LARGEST,
    PLAIN,
    Entry,
    Key,
    Units,
    chip_of,
    program_of,
    rate_of,
)
from autotune.model.prices import UNKNOWN_SPREAD, default_prices, fit, volumes
from autotune.model.pricing import Programs, price
from autotune.model.terms import TERMS, Sizes, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    resident: float | None = None
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
        volumes: see `volumes`; a unit's.
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
    volumes: NDArray[np.float64]
    resident: float
    prices: Prices
    spread: float = UNKNOWN_SPREAD
    timed: list[tuple[Sizes, Unit, float, float]] = field(default_factory=list)
    known: Prices | None = None
    known_to: float = 0.0

    def seconds(self, sizes: Sizes) -> NDArray[np.float64]:
        """The seconds that each of its calls is expected to take for a problem."""
        prices = np.repeat(self.prices[:, None], len(self.configurations), axis=1)
        return price(self.calls.count(sizes), prices)

    def expected(self, sizes: Sizes) -> tuple[Configuration, float]:
        """The best call for a problem, and the seconds that it is expected to take."""
        seconds = self.seconds(sizes)
        row = int(seconds.argmin())
        return self.configurations[row], float(seconds[row])

    def ranked(self, sizes: Sizes) -> list[Configuration]:
        """All calls for a problem, the one expected to be fastest first."""
        order = np.argsort(self.seconds(sizes), kind="stable").tolist()
        return [self.configurations[row] for row in order]

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds and weights of what was measured, shape (2, measurements)."""
        return np.array([row[2:] for row in self.timed]).T

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
            free=family.free_parameters,
            calls=(),
            resident=self.resident,
            prices=tuple(self.prices.tolist()),
            spread=self.spread,
            measured=len(self.timed),
            largest=self.largest,
        )


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
        self, candidate: Candidate, layout: str, resident: float | None = None
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
            scaled = np.vstack([counted[id(each)] * each.volumes for each in timed])
            seconds, weights = np.hstack([each.times for each in timed])
            common = fit(scaled, seconds, weights, common).prices
        for each in group:
            plain = self._programs.get(replace(each.key, layout=PLAIN))
            expected = common * each.volumes
            if each.known is not None and _still_holds(each, counted.get(id(each))):
                expected = each.known
            elif plain is not None and plain is not each and plain.timed:
                expected = plain.prices
            if each.timed:
                seconds, weights = each.times
                each.prices, each.spread = fit(counted[id(each)], seconds, weights, expected)
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

    def _make(self, family: KernelFamily, key: Key, resident: float | None) -> Program:
        units = Units(family, key.configuration, self._dtype, self._limits)
        resident = units.resident() if resident is None else resident
        configurations, table = units.variants()
        calls = Programs(table, resident, self._chip)
        rate = rate_of(family, self._limits)
        of_unit = volumes(units.of(key.configuration).tile, self._chip.places, rate)
        common = self._common.get(family.name)
        if common is None:
            common = self._default(family.name)
        prices = common * of_unit
        return Program(key, units, configurations, table, calls, of_unit, resident, prices)

    def _default(self, family: str) -> Prices:
        rate = rate_of(self._families[family], self._limits)
        return default_prices(self._dtype, self._chip.places, rate)


def _still_holds(program: Program, counted: NDArray[np.float64] | None) -> bool:
    """Return whether known prices are of use: they must be near what was measured since."""
    if counted is None or program.known is None:
        return True
    told = np.log(np.maximum(counted @ program.known, 1e-300) / program.times[0])
    return bool(np.median(np.abs(told)) < _STRANGE)


_STRANGE = math.log(2.0)
"""Prices that are off by more, in the median, are another device's, or another time's."""


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
    most: int = LARGEST,
    fewest: int = FEWEST,
    loss: float = LOSS,
) -> Built:
    """Select the programs of a portfolio.

    Args:
        book: what has been learned.
        families: by name.
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
    if not served.any():  # nothing was measured yet, or nothing that can be used
        return Built((), 0.0, 0)
    chosen, remaining = select(seconds[:, served], most=most, loss=loss)
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


def select(seconds: NDArray[np.float64], *, most: int, loss: float) -> tuple[list[int], float]:
    """Programs in the order of what they bring, until the loss is small enough.

    Each is the one that lowers the mean logarithm of the best time most, given those before it:
    what each brings shrinks with what is there already (it is submodular), so that the greedy
    choice is within 1 - 1/e of the best one (Nemhauser, Wolsey and Fisher, 1978).

    Args:
        seconds: times, shape (programs, shapes); infinite where a program cannot be used.
        most: programs at most.
        loss: what the best of the selected may be slower than the best of all, as a geometric
            mean: 0.02 is 2%.

    Returns:
        The selected rows, and the loss that remains.

    Raises:
        ValueError: a shape has no program at all.
    """
    logs = np.log(seconds)
    best = logs.min(axis=0)
    if not np.isfinite(best).all():
        raise ValueError("every shape needs a program that can be used for it")
    # Far behind is as bad as unusable, and finite: the first choice serves most shapes.
    behind = np.minimum(logs - best, _FARTHEST)
    covered = np.full(logs.shape[1], _FARTHEST)
    chosen: list[int] = []
    while len(chosen) < most:
        gains = np.maximum(covered - behind, 0.0).mean(axis=1)
        row = int(gains.argmax())
        if gains[row] <= 0:
            break
        chosen.append(row)
        covered = np.minimum(covered, behind[row])
        if np.expm1(covered.mean()) <= loss:
            break
    return chosen, float(np.expm1(covered.mean()))


_FARTHEST = 5.0
