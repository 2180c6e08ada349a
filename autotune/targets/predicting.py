"""Which program of a portfolio serves a problem that was never tuned, by the device's model."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate
from autotune.core.errors import SpaceError
from autotune.families.bound import Bound
from autotune.model import Candidate as Row
from autotune.model import Chooser, Sizes, places_of, unit_of, variants
from autotune.operations.problem import Gemm, multiplies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.model import Choice, Entry, Portfolio
    from autotune.operations.problem import Problem
    from autotune.store import RecordSource

_TRIED = 32
"""Choices that are looked at for one that is valid; restrictions turn few away."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A candidate that a model chose.

    Attributes:
        candidate: family and configuration.
        entry: its program in the portfolio.
        portfolio: which one.
        seconds: predicted time of a call.
        spread: standard deviation of the prediction's logarithm.
        reason: what is predicted, how sure that is, and by whose model.
    """

    candidate: Candidate
    entry: Entry
    portfolio: Portfolio
    seconds: float
    spread: float
    reason: str


class Predictor:
    """Chooses for problems of one operation on one device; from any thread.

    The device's own portfolio speaks, or the one of the device most like it.

    Args:
        portfolios: those there are, the preferred first.
        families: by name.
        device: where kernels run.
    """

    def __init__(
        self,
        portfolios: Iterable[Portfolio],
        families: Mapping[str, KernelFamily],
        device: Device,
    ) -> None:
        self._families = families
        self._device = device
        own = device.fingerprint
        # Sorting keeps the order of preference among equals.
        self._portfolios = sorted(
            (each for each in portfolios if each.fingerprint.kind == own.kind),
            key=lambda each: -each.fingerprint.likeness(own),
        )
        self._lock = threading.Lock()
        self._choosers: dict[tuple[object, ...], _Ranked | None] = {}
        self._bound: dict[tuple[str, Entry, Candidate], Bound] = {}

    def choose(self, problem: Problem) -> Prediction | None:
        """The candidate whose predicted time is least, of those valid; None without a model."""
        if not isinstance(problem, Gemm) or not multiplies(problem.defined):
            return None
        key = (
            problem.dtype,
            problem.result_dtype,
            problem.accuracy,
            problem.threads,
            problem.layout,
        )
        with self._lock:
            if key not in self._choosers:
                self._choosers[key] = self._ranked(problem)
            ranked = self._choosers[key]
            if ranked is None:
                return None
            sizes = Sizes(problem.m, problem.n, problem.k, problem.itemsize, problem.layout)
            for _, choice in zip(range(_TRIED), ranked.chooser.ranked(sizes), strict=False):
                candidate = Candidate(choice.entry.family, choice.configuration)
                if self._valid(problem, choice.entry, candidate):
                    return self._prediction(ranked.portfolio, candidate, choice)
        return None

    def _ranked(self, problem: Gemm) -> _Ranked | None:
        """The first portfolio that has programs for problems like this."""
        for portfolio in self._portfolios:
            if (
                (portfolio.dtype, portfolio.out_dtype) != (problem.dtype, problem.result_dtype)
                or portfolio.accuracy != problem.accuracy
                or portfolio.threads != problem.threads
            ):
                continue
            rows = list(self._rows(portfolio.entries, problem))
            if rows:
                return _Ranked(portfolio, Chooser(rows, places_of(self._device.limits)))
        return None

    def _rows(self, entries: Sequence[Entry], problem: Gemm) -> Iterable[Row]:
        """Every way to call the programs whose families are as they were measured."""
        for entry in entries:
            family = self._families.get(entry.family)
            if family is None or family.digest != entry.family_digest:
                continue
            if entry.layout != problem.layout or family.unsupported(problem) is not None:
                continue
            for configuration in variants(family, entry.configuration):
                try:
                    tile, parts = unit_of(
                        family, configuration, problem.dtype, self._device.limits
                    )
                except SpaceError:  # not for a device like this
                    continue
                yield Row(entry, configuration, tile, parts)

    def _valid(self, problem: Gemm, entry: Entry, candidate: Candidate) -> bool:
        key = (problem.dtype, entry, candidate)
        try:
            if key not in self._bound:
                family = self._families[candidate.family]
                self._bound[key] = Bound(
                    family, candidate.configuration, problem, self._device.limits
                )
            return self._bound[key].at(problem).valid
        except SpaceError:
            return False

    def _prediction(
        self, portfolio: Portfolio, candidate: Candidate, choice: Choice
    ) -> Prediction:
        where = portfolio.fingerprint.name
        whose = (
            f"{where}'s model"
            if portfolio.fingerprint == self._device.fingerprint
            else (f"the model of another device, {where}")
        )
        reason = (
            f"predicted {_duration(choice.seconds)} within {choice.spread:.0%} by {whose} "
            f"({len(portfolio.entries)} programs, measured on {portfolio.shapes} shapes)"
        )
        return Prediction(
            candidate, choice.entry, portfolio, choice.seconds, choice.spread, reason
        )


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A portfolio and its choices for problems of one kind."""

    portfolio: Portfolio
    chooser: Chooser


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
    found = [each for source in sources for each in source.portfolios(operation, target)]
    return Predictor(found, families, device)


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
