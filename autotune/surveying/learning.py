"""Knowledge that a survey gains: the price book, programs that were tried or are broken."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from autotune.core.configuration import Candidate
from autotune.core.errors import SpaceError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.gpu.planning import planner_of
from autotune.measuring.trial import BRIEF_S
from autotune.model import PriceBook, Sizes, Timed, check_entry, is_modelled, on_all_threads
from autotune.operations.problem import Gemm, gemm_from_key

if TYPE_CHECKING:
    from autotune.families.gpu.launch import Binary
    from autotune.measuring.evaluator import Evaluator
    from autotune.model import Entry, Key, Portfolio, Program
    from autotune.tuning.context import DeviceContext

CURIOSITY = 0.15
"""Exploration bonus of a program that was never timed, as a logarithm of time; of two programs
with equal expectations the one that was timed less often is tried."""

VARIETY = 0.3
"""Penalty of each further program of a family, as a logarithm of time, where it is chosen what to
compile and what to try at first visits: of several families that may be the fastest all are
tried."""

ABANDONED_WEIGHT = 0.3
"""Weight of the time of a program that was abandoned after its first runs."""

_WEIGHTS = {Outcome.OK: 1.0, Outcome.ABANDONED: ABANDONED_WEIGHT}

Named = TypeVar("Named", Candidate, "Key")


class Learning:
    """Knowledge of programs on problems of one dtype.

    Args:
        context: where the survey is held.
        dtype: of the problems.

    Attributes:
        book: cost coefficients of the programs.
        tried: programs that were tried, by problem.
        binaries: of the programs that were tried, where any are kept.
    """

    def __init__(self, context: DeviceContext, dtype: str) -> None:
        self.book = PriceBook(context.families, dtype, context.device.limits)
        self.tried: defaultdict[Gemm, set[Key]] = defaultdict(set)
        self.binaries: dict[Key, Binary] = {}
        self._context = context
        self._began_with: set[Key] = set()
        self._broken: set[Key] = set()
        self._recalled: dict[Key, tuple[Gemm, Candidate]] = {}

    def take(self, portfolio: Portfolio) -> Iterator[Candidate]:
        """Begin with a portfolio; its programs, which are to be tried.

        Its prices hold until they are. Programs of fewer threads than there are now come with all
        of them, too.
        """
        families, limits = self._context.families, self._context.device.limits
        # Prices of measurements that are recalled would be counted twice.
        recalled = {key.family for key in self._recalled}
        common = {n: prices for n, prices in portfolio.families.items() if n not in recalled}
        self.book.begin_with(common)
        for entry in portfolio.entries:
            family = families.get(entry.family)
            if family is None or family.digest != entry.family_digest:
                continue
            try:
                check_entry(entry, family)
            except SpaceError:  # a stranger's: there is no such program
                continue
            if entry.key not in self._recalled:
                self.book.take(entry)
            self._began_with.add(entry.key)
            yield Candidate(entry.family, entry.configuration)
            yield Candidate(entry.family, on_all_threads(family, entry.configuration, limits))

    def recall(self, study: str) -> Iterator[Candidate]:
        """Learn from measurements of earlier runs, of the same families; their programs."""
        for row in self._context.store.measurements(study=study):
            problem = gemm_from_key(row.problem)
            program = self.book.program(row.candidate, problem.layout)
            if program is None:
                continue
            self.tried[problem].add(program.key)
            if (told := _timed(row.candidate, problem, row.measurement, program)) is not None:
                self.book.note(told)
                self._recalled.setdefault(program.key, (problem, row.candidate))
            yield row.candidate

    def note(
        self,
        evaluator: Evaluator,
        candidate: Candidate,
        program: Program,
        problem: Gemm,
        measurement: Measurement,
    ) -> None:
        """Learn from a trial."""
        self.tried[problem].add(program.key)
        told = _timed(candidate, problem, measurement, program)
        if told is not None:
            self.book.note(told)
            if program.key not in self.binaries:
                binary = evaluator.binary(candidate)
                if binary is not None:
                    self.binaries[program.key] = binary
        elif measurement.outcome not in (Outcome.REJECTED, Outcome.ABANDONED):
            self._broken.add(program.key)

    def at_prices_of_now(self, entries: Iterable[Entry], *, timed: bool) -> Iterator[Entry]:
        """Entries of an earlier portfolio that it began with, at new prices where timed.

        With `timed` those that were timed only.
        """
        for entry in entries:
            if entry.key in self._began_with:
                candidate = Candidate(entry.family, entry.configuration)
                program = self.book.program(candidate, entry.layout)
                if program is not None and program.timed:
                    yield program.entry(self._context.families[entry.family])
                elif not timed:
                    yield entry

    def unkept(self, entries: Iterable[Entry]) -> Iterator[tuple[Gemm, Candidate, Program]]:
        """Entries that earlier runs alone have tried, of which there is no binary."""
        for entry in entries:
            if entry.key in self._recalled and entry.key not in self.binaries:
                problem, candidate = self._recalled[entry.key]
                program = self.book.program(candidate, problem.layout)
                if program is not None:
                    yield problem, candidate, program

    def promising(
        self,
        problem: Gemm,
        pool: Iterable[Candidate],
        count: int,
        *,
        varied: bool,
        of: Container[Key] | None = None,
    ) -> Iterator[tuple[Candidate, Program]]:
        """Calls of programs that were not tried on a problem, the most promising first.

        So many of a pool at most, where `of` is given of these programs alone; with `varied`
        families take turns, see `VARIETY`.
        """
        sizes, unfit = Sizes.of(problem), self.tried[problem] | self._broken
        programs: dict[Key, Program] = {}
        expected: dict[Key, float] = {}
        for candidate in pool:
            if not is_modelled(self._context.families[candidate.family], problem):
                continue
            program = self.book.program(candidate, problem.layout)
            if program is None or program.key in unfit or program.key in programs:
                continue
            if of is None or program.key in of:
                _, seconds = program.expected(sizes)
                bonus = CURIOSITY / (1 + len(program.timed))
                expected[program.key] = math.log(seconds) - bonus
                programs[program.key] = program
        found = 0
        order = in_variety(expected) if varied else sorted(expected, key=expected.__getitem__)
        for program in map(programs.__getitem__, order):
            if (call := self.call(program, problem)) is not None:
                yield call, program
                found += 1
                if found == count:
                    return

    def call(self, program: Program, problem: Gemm) -> Candidate | None:
        """The call of a program that is expected to be fastest of those valid for a problem."""
        family = self._context.families[program.key.family]
        if family.unsupported(problem) is not None:
            return None
        limits = self._context.device.limits
        for configuration in program.ranked(Sizes.of(problem)):
            if planner_of(family, configuration, problem.dtype, limits).valid(problem):
                return Candidate(family.name, configuration)
        return None


def in_variety(expected: Mapping[Named, float]) -> list[Named]:
    """The fastest first by the logarithms of seconds expected, families in turns by `VARIETY`."""
    taken: defaultdict[str, int] = defaultdict(int)
    found: dict[Named, float] = {}
    for named in sorted(expected, key=expected.__getitem__):
        found[named] = expected[named] + VARIETY * taken[named.family]
        taken[named.family] += 1
    return sorted(found, key=found.__getitem__)


def _timed(
    candidate: Candidate, problem: Gemm, measurement: Measurement, program: Program
) -> Timed | None:
    """The lesson of a trial; None where it gave no time.

    Nor does a brief first call by itself: it may have waited for memory and for code.
    """
    if measurement.median_s is None or measurement.outcome not in _WEIGHTS:
        return None
    if measurement.repeats == 1 and measurement.median_s < BRIEF_S:
        return None
    found = (measurement.details.get(name) for name in ("registers", "shared_bytes"))
    registers, shared = (None if value is None else int(value) for value in found)
    return Timed(
        candidate,
        Sizes.of(problem),
        measurement.median_s,
        program.units.resident(registers, shared),
        _WEIGHTS[measurement.outcome],
    )
