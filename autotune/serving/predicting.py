"""Predictions: the program of a portfolio that a device's model chooses for an untuned problem."""

from __future__ import annotations

import itertools
import threading
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import SETTINGS
from autotune.core.dtypes import DTYPES
from autotune.core.errors import SpaceError
from autotune.families.gpu.launch import kernel_layout
from autotune.families.offers import default_family
from autotune.model import (
    PLAIN,
    Calls,
    Chooser,
    PriceBook,
    Sizes,
    Units,
    check_entry,
    chip_of,
    expected_log_time,
    on_all_threads,
    threads_of,
    with_copies,
)
from autotune.operations.problem import ACCURACIES, admits, product_of
from autotune.serving.fitting import Fits
from autotune.store import PortfolioHead, decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.model import Choice, Entry, Expectation, Key, Portfolio
    from autotune.operations.problem import Gemm, Problem
    from autotune.store import RecordSource


RESERVE = 1.5
"""Factor on the expected time of families other than the default one, where nobody has measured
either."""

OWN_RESERVE = 1.15
"""Factor on that of the default family's presets, beside its default configuration."""

LOOSER_RESERVE = 1.1
"""Factor by which programs of a class looser than the usual one must promise to be faster. In two
folds of 120 shapes in three classes, 8 choices took 3% longer than the strict kernel without it,
and none with it."""

_MOST = 0.75
"""Share of another device's programs that must run here for its model to choose."""

_TRIED = 4
"""Calls of a program that are checked for that."""

_MOVED = 8
"""Calls that are moved to near ones where no call of any program is valid as it is."""

_USUAL = (
    *((2048, 2048, 2048), (64, 64, 64)),
    *((1, 4096, 4096), (8, 4096, 4096), (4096, 4096, 1)),
    *((4096, 2, 4096), (4096, 8, 4096)),
)
"""Rows, reduction and columns of problems, for one of which a preset is meant."""


class Prediction(NamedTuple):
    """A candidate that a model chose.

    Attributes:
        candidate: family and configuration.
        entry: its program in the portfolio.
        portfolio: which one.
        seconds: predicted time of a call.
        spread: standard deviation of the prediction's logarithm.
        whose: the model that predicts, and what it knows.
    """

    candidate: Candidate
    entry: Entry
    portfolio: Portfolio
    seconds: float
    spread: float
    whose: str

    @property
    def reason(self) -> str:
        """The predicted time, its spread, and whose model predicts it."""
        return f"predicted {_duration(self.seconds)} within {self.spread:.0%} by {self.whose}"


class Predictor:
    """Chooses for problems of one operation on one device; from any thread.

    A product with something after it is served by the programs that are best for the product,
    compiled with what follows.

    The device's own portfolio predicts, or the one of the device most like it; of `portfolios`,
    the preferred first, a head's is decoded when it is needed.
    """

    def __init__(
        self,
        portfolios: Iterable[Portfolio | PortfolioHead],
        families: Mapping[str, KernelFamily],
        device: Device,
    ) -> None:
        self._families = families
        self._device = device
        own = device.fingerprint
        # Sorting keeps the order of preference among equals.
        heads = [
            one if isinstance(one, PortfolioHead) else PortfolioHead.known(one)
            for one in portfolios
        ]
        self._heads = sorted(
            (head for head in heads if head.subject.fingerprint.kind == own.kind),
            key=lambda head: -head.subject.fingerprint.likeness(own),
        )
        self._fits = Fits(families, device.limits)
        self._lock = threading.Lock()
        self._choosers: dict[tuple[object, ...], _Ranked | None] = {}
        self._points: dict[tuple[object, ...], Chooser | None] = {}

    def choose(self, problem: Problem) -> Prediction | None:
        """The candidate whose predicted time is least, of those valid; None without a model."""
        return next(self.favourites(problem), None)

    def favourites(self, problem: Problem) -> Iterator[Prediction]:
        """Valid candidates, the one whose predicted time is least first."""
        product = product_of(problem)
        if product is None or (ranked := self._ranked(product)) is None:
            return
        if self._is_outdone(ranked.portfolio, problem):
            return
        choices = self._valid_choices(ranked.chooser, product)
        first = next(choices, None)
        if first is None:  # of the calls that are kept, which are not all of these programs
            choices = self._moved_choices(ranked.chooser, product)
        begun = () if first is None else (first,)
        for entry, candidate, seconds, spread in itertools.chain(begun, choices):
            if product is not problem:  # with what follows it is compiled anew
                entry = replace(entry, binary=None, support=None)
            yield Prediction(candidate, entry, ranked.portfolio, seconds, spread, ranked.whose)

    def by_limits(self, problem: Problem, default: str) -> Candidate | None:
        """The valid one of the families' own points with the least work, waves and bytes.

        The estimate where nothing was measured; None where no family has [work]. The family
        `default` serves where others do not promise much more.
        """
        if (product := product_of(problem)) is None:
            return None
        key = (*_kind(product), default)
        with self._lock:
            if key not in self._points:
                self._points[key] = self._chooser_of_points(product, default)
            chooser = self._points[key]
        choices = () if chooser is None else self._valid_choices(chooser, product)
        return next((choice.candidate for choice in choices), None)

    def portfolio(self, problem: Gemm) -> Portfolio | None:
        """The portfolio for problems like this, of the device or of the one most like it."""
        return next((first for first, *_ in self._fitting(problem)), None)

    def prior(self, problem: Problem) -> dict[str, Expectation]:
        """Expected times of all configurations of the families that were measured, by name."""
        product = product_of(problem)
        if product is None or (portfolios := next(self._fitting(product), None)) is None:
            return {}
        limits = self._device.limits
        known = ChainMap(*(dict(one.families) for one in portfolios))
        found = {
            name: expected_log_time(self._families[name], prices, product, limits)
            for name, prices in known.items()
            if name in self._families
        }
        return {name: one for name, one in found.items() if one is not None}

    def _valid_choices(self, chooser: Chooser, problem: Gemm) -> Iterator[Choice]:
        """The valid calls for a problem, the most promising first."""
        for choice in chooser.ranked(Sizes.of(problem)):
            if self._fits.valid(choice.candidate, problem):
                yield choice

    def _moved_choices(self, chooser: Chooser, problem: Gemm) -> Iterator[Choice]:
        """Calls of the same programs that are nearest to calls that are not valid."""
        fitting = self._fits.at(problem)
        for choice in itertools.islice(chooser.ranked(Sizes.of(problem)), _MOVED):
            if (moved := fitting.fitted(choice.candidate)) is None:
                continue
            changed = set(moved.configuration.items() - choice.candidate.configuration.items())
            if {name for name, _ in changed} <= {*self._families[moved.family].runtime_parameters}:
                yield choice._replace(candidate=moved)

    def _fitting(self, problem: Gemm) -> Iterator[list[Portfolio]]:
        """Portfolios of problems like this, of the device itself or the most similar ones.

        Behind each are those of other classes that may serve the problem, too, the strictest
        first; of a class without any, such a one is the first.

        Where a problem says how many threads there may be, those for as many as there are come
        after those for so many: the device has no more than the problem says.
        """
        wanted = problem.accuracy
        classes = sorted((one for one in ACCURACIES if admits(wanted, one)), key=wanted.__ne__)
        typed = [
            head
            for head in self._heads
            if (head.subject.dtype, head.subject.out_dtype)
            == (problem.dtype, problem.result_dtype)
        ]
        of_classes = [[head for head in typed if head.subject.accuracy == one] for one in classes]
        like, *others = [heads for heads in of_classes if heads] or [[]]
        for threads in dict.fromkeys((problem.threads, None)):
            for head in like:
                if head.subject.threads == threads and (found := head.read()) is not None:
                    of_device = decoded(
                        one
                        for one in itertools.chain(*others)
                        if replace(one.subject, accuracy=head.subject.accuracy) == head.subject
                    )
                    yield [found, *(one for one in of_device if _alike(one) == _alike(found))]

    def _is_outdone(self, portfolio: Portfolio, problem: Problem) -> bool:
        """True if a portfolio is of a stricter class, and a family of the looser one is faster."""
        if portfolio.accuracy == problem.accuracy:
            return False
        default = default_family(self._families, problem, self._device.limits)
        return default is not None and self._families[default].accuracy == problem.accuracy

    def _ranked(self, problem: Gemm) -> _Ranked | None:
        """The first portfolio that has programs for problems like this, and its choices."""
        key = _kind(problem)
        with self._lock:
            if key not in self._choosers:
                self._choosers[key] = self._chooser(problem)
            return self._choosers[key]

    def _chooser(self, problem: Gemm) -> _Ranked | None:
        for portfolios in self._fitting(problem):
            entries: dict[Key, Entry] = {}
            for each in portfolios:
                laid_out = _laid_out(each.entries, problem.layout)
                entries = {one.key: one for one in laid_out} | entries
            calls = list(self._calls([*entries.values()], problem))
            if calls and self._suits(portfolios[0], calls, problem):
                chooser = Chooser(calls, chip_of(self._device.limits), problem.itemsize)
                return _Ranked(portfolios[0], chooser, self._whose(portfolios))
        return None

    def _suits(self, portfolio: Portfolio, calls: Sequence[Calls], problem: Gemm) -> bool:
        """True if a portfolio suits this device: its own, or one of which most runs here.

        What is left of a set for wider vectors, say, is no set for narrower ones.
        """
        settings = portfolio.toolchain.get(SETTINGS)
        if settings is not None and settings != self._device.toolchain.get(SETTINGS):
            return False  # times of code that is not what is compiled here
        if portfolio.fingerprint.digest == self._device.fingerprint.digest:
            return True
        return sum(self._runs(one, problem) for one in calls) >= _MOST * len(calls)

    def _runs(self, calls: Calls, problem: Gemm) -> bool:
        """True if a program is valid here for any of the usual sizes."""
        apart = -(-len(calls.configurations) // _TRIED)
        return any(
            self._fits.valid(
                Candidate(calls.entry.family, configuration), replace(problem, m=m, n=n, k=k)
            )
            for configuration in calls.configurations[::apart]
            for m, n, k in _USUAL
        )

    def _calls(self, entries: Sequence[Entry], problem: Gemm) -> Iterable[Calls]:
        """Every way to call the programs whose families are as they were measured.

        Those with the most threads have all that are here: they may have been measured where
        there were more, or fewer.
        """
        limits, usual = self._device.limits, DTYPES[problem.dtype].accuracy
        most = max((threads_of(entry.configuration) for entry in entries), default=1)
        for entry in entries:
            family = self._families.get(entry.family)
            if family is None or family.digest != entry.family_digest:
                continue
            if entry.layout not in family.layouts or family.unsupported(problem) is not None:
                continue
            try:
                check_entry(entry, family)
            except SpaceError:
                continue
            configuration = entry.configuration
            if threads_of(configuration) == most > 1:
                configuration = on_all_threads(family, configuration, limits)
            try:
                units = Units(family, configuration, problem.dtype, limits)
                reserve = 1.0 if admits(usual, family.accuracy) else LOOSER_RESERVE
                yield Calls(entry, *units.variants(entry.calls), reserve)
            except SpaceError:  # not for a device like this
                continue

    def _chooser_of_points(self, problem: Gemm, default: str) -> Chooser | None:
        """Every family's presets, at what anything costs on a device of this kind, roughly."""
        book = PriceBook(self._families, problem.dtype, self._device.limits)
        offered: dict[Key, Calls] = {}
        for name, family in self._families.items():
            if family.work is None or family.unsupported(problem) is not None:
                continue
            taken = kernel_layout(family, problem.layout)
            flips = [own != stored for own, stored in zip(taken, problem.layout, strict=True)]
            for number, configuration in enumerate(self._points_of(family, problem)):
                program = book.program(Candidate(name, configuration), problem.layout)
                if program is None or program.key in offered:
                    continue
                if name != default:
                    program.prices = program.prices * RESERVE
                elif number:
                    program.prices = program.prices * OWN_RESERVE
                program.prices = with_copies(program.prices, *flips)
                entry = program.entry(family)
                offered[program.key] = Calls(entry, program.configurations, program.table)
        chip = chip_of(self._device.limits)
        return Chooser(list(offered.values()), chip, problem.itemsize) if offered else None

    def _points_of(self, family: KernelFamily, problem: Gemm) -> Iterator[Configuration]:
        """The default and the presets, in whatever they leave open as the device has it."""
        limits = self._device.limits
        spaces = [
            (usual, family.space(usual, limits))
            for usual in (replace(problem, m=m, n=n, k=k) for m, n, k in _USUAL)
        ]
        able = [usual for usual, space in spaces if space.size]
        yield from (family.default(usual, limits) for usual in able[:1])
        for preset in family.presets.values():
            for usual, space in spaces:
                placed = preset.placed(space) if space.size else preset.configuration
                if self._fits.valid(Candidate(family.name, placed), usual):
                    yield placed
                    break

    def _whose(self, portfolios: Sequence[Portfolio]) -> str:
        portfolio, own = portfolios[0], self._device.fingerprint
        where, programs = portfolio.fingerprint.name, sum(len(one.entries) for one in portfolios)
        is_own = portfolio.fingerprint == own
        whose = f"{where}'s model" if is_own else f"the model of another device, {where}"
        known = f"{programs} programs, measured on {portfolio.shapes} shapes"
        return f"{whose} ({known})"


def _alike(portfolio: Portfolio) -> tuple[str, str | None]:
    """Architecture and settings that programs were compiled with."""
    return portfolio.architecture, portfolio.toolchain.get(SETTINGS)


def _laid_out(entries: Sequence[Entry], layout: str) -> list[Entry]:
    """A portfolio's programs for a layout; those of the plain one where it has none of its own.

    Prices are learned likewise: a layout is like the plain one where nothing else is known of it.
    What has no binary is compiled, in the background as a rule.
    """
    return [entry for entry in entries if entry.layout == layout] or [
        replace(entry, layout=layout, binary=None, support=None)
        for entry in entries
        if entry.layout == PLAIN
    ]


def _kind(problem: Gemm) -> tuple[object, ...]:
    """The key of problems that differ in their sizes alone."""
    dtypes = problem.dtype, problem.result_dtype
    return (*dtypes, problem.accuracy, problem.threads, problem.layout)


class _Ranked(NamedTuple):
    """A portfolio, its choices for problems of one kind, and its description."""

    portfolio: Portfolio
    chooser: Chooser
    whose: str


def predictor_of(
    sources: Iterable[RecordSource],
    operation: str,
    target: str,
    families: Mapping[str, KernelFamily],
    device: Device,
) -> Predictor:
    """The predictor for what the sources hold.

    Raises:
        CacheError: a source cannot be read.
    """
    found = [head for source in sources for head in source.portfolio_heads(operation, target)]
    return Predictor(found, families, device)


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
