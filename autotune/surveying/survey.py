"""A survey: the programs worth knowing, timed on problems of all kinds, so that a model can learn.

Every problem is visited a few times. At each visit the price book says which of the programs that
were not timed on it promise most, and those are tried: verified and timed as trials of a search
are, with little effort each. The first visits find out which programs a portfolio would be made
of; the others try those, where they are expected to be good. Where compilers do not disturb
measurements they work on what comes next meanwhile.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, SpaceError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.gpu.planning import planner_of
from autotune.measuring.evaluator import Effort
from autotune.measuring.trial import BRIEF_S
from autotune.model import (
    LARGEST,
    PriceBook,
    Sizes,
    Timed,
    build,
    check_entry,
    is_modelled,
    on_all_threads,
)
from autotune.operations.problem import Gemm, gemm_from_key
from autotune.serving.target import Work
from autotune.surveying.pool import worth_knowing

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Evaluator
    from autotune.model import Entry, Key, Portfolio, Program, Units
    from autotune.serving.target import Target
    from autotune.store import TuningCache

EFFORT = Effort(budget_s=0.03, interval=0.03, abandon_ratio=2.5, timeout_s=10.0)
"""Little for each trial: a model averages over many, and what is slow teaches, too."""

VISITS = (14, 14, 10)
"""Programs that are tried at the first visit to a problem, at the second, and at all others."""

DRAFTED = 112
"""Programs that are compiled in a turn, of all that might be worth knowing."""

CURIOSITY = 0.15
"""Of two programs with equal expectations the one that was timed less often is tried: what counts
for one that never was, as a logarithm of time."""

VARIETY = 0.3
"""Where it is chosen what to compile, and what to try at first visits, each further program of a
family counts as so much slower, as a logarithm of time: of several families that may be the
fastest each is tried."""

ABANDONED_WEIGHT = 0.3
"""What the time of a program that was abandoned after its first runs counts for."""

Watch: TypeAlias = Callable[[Gemm, int, float], None]
"""``watch(problem, visit, left_s)``: called before each visit."""


def timed(
    candidate: Candidate,
    problem: Gemm,
    measurement: Measurement,
    units: Units,
) -> Timed | None:
    """What a trial teaches; None where it gave no time.

    Nor does a brief first call by itself: it may have waited for memory and for code.
    """
    if measurement.median_s is None or measurement.outcome not in _TIMED:
        return None
    if measurement.repeats == 1 and measurement.median_s < BRIEF_S:
        return None
    details = measurement.details
    registers, shared = (details.get(name) for name in ("registers", "shared_bytes"))
    return Timed(
        candidate,
        Sizes.of(problem),
        measurement.median_s,
        units.resident(
            None if registers is None else int(registers), None if shared is None else int(shared)
        ),
        _TIMED[measurement.outcome],
    )


_TIMED = {Outcome.OK: 1.0, Outcome.ABANDONED: ABANDONED_WEIGHT}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a survey is held.

    Attributes:
        target: where programs run.
        device: as the target read it.
        families: by name.
        store: where measurements go.
        programs: where sources and binaries go.
        workers: compile workers.
        seed: of operands and lots.
    """

    target: Target
    device: Device
    families: Mapping[str, KernelFamily]
    store: TuningCache
    programs: ProgramCache
    workers: int | None
    seed: int

    def evaluator(self, problem: Gemm, beside: Evaluator | None = None) -> Evaluator:
        """One for a problem, with the processes of another one."""
        work = Work(
            problem, self.families, self.device, self.programs, EFFORT, self.workers, self.seed
        )
        return self.target.evaluator(work, beside)


@dataclass(slots=True)
class _Asked:
    """What compilers are at work on.

    Attributes:
        layout: that it is compiled for.
        evaluator: whose compilers they are, of a usual problem.
        calls: by program, the call of it that was asked for; those that are not ready.
    """

    layout: str
    evaluator: Evaluator
    calls: dict[Candidate, Candidate]

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a program has been compiled."""
        return self.evaluator.is_ready(self.calls[candidate])


class Survey:
    """Measures problems of one dtype, and learns.

    Args:
        place: where it is held.
        host: an evaluator of the place's, whose processes are used.
        problems: to be visited.
        study: what measurements are stored under; one of the same families, whenever it was.
        further: as many more of them are visited as often as nothing is left to be tried.

    Attributes:
        book: what has been learned.
        binaries: of the programs that were tried, where any are kept.
    """

    def __init__(
        self,
        place: Place,
        host: Evaluator,
        problems: Sequence[Gemm],
        study: str,
        further: Sequence[Gemm] = (),
    ) -> None:
        self._place = place
        self._host = host
        self._problems = list(problems)
        self._further = list(further)
        self._study = study
        dtype = problems[0].dtype
        self.book = PriceBook(place.families, dtype, place.device.limits)
        self.binaries: dict[Key, Binary] = {}
        self._began_with: set[Key] = set()
        self._waiting: dict[Candidate, None] = {}
        self._pool: list[Candidate] = []
        self._visits = 0
        self._tried: defaultdict[Gemm, set[Key]] = defaultdict(set)
        self._compiled: set[Key] = set()
        self._compile_s = 1.0
        self._broken: set[Key] = set()
        self._recalled: dict[Key, tuple[Gemm, Candidate]] = {}
        self._asked: list[_Asked] = []
        self._new: list[Candidate] = []

    def take(self, portfolio: Portfolio | None) -> None:
        """Begin with what is known: its programs are tried, and its prices hold till they are.

        Programs of fewer threads than there are now are also tried with all of them.
        """
        if portfolio is None:
            return
        # Prices of measurements that are recalled would be counted twice.
        recalled = {key.family for key in self._recalled}
        self.book.begin_with(
            {name: each for name, each in portfolio.families.items() if name not in recalled}
        )
        for entry in portfolio.entries:
            family = self._place.families.get(entry.family)
            if family is not None and family.digest == entry.family_digest:
                try:
                    check_entry(entry, family)
                except SpaceError:  # a stranger's: there is no such program
                    continue
                if entry.key not in self._recalled:
                    self.book.take(entry)
                self._began_with.add(entry.key)
                limits = self._place.device.limits
                wider = on_all_threads(family, entry.configuration, limits)
                for configuration in (entry.configuration, wider):
                    self._waiting[Candidate(entry.family, configuration)] = None

    def recall(self) -> None:
        """Learn from what earlier runs of this study have measured, of the same families."""
        for each in self._place.store.measurements(study=self._study):
            problem = gemm_from_key(each.problem)
            program = self.book.program(each.candidate, problem.layout)
            if program is None:
                continue
            self._tried[problem].add(program.key)
            self._waiting[each.candidate] = None
            told = timed(each.candidate, problem, each.measurement, program.units)
            if told is not None:
                self.book.note(told)
                self._recalled.setdefault(program.key, (problem, each.candidate))

    def hold(
        self, deadline: Deadline, stopped: Callable[[], bool], watch: Watch | None = None
    ) -> None:
        """Visit the problems, as often and as long as there is time.

        Args:
            deadline: until when.
            stopped: whether somebody wants an end.
            watch: hears of each visit.
        """
        place = self._place
        known = worth_knowing(
            self._problems, place.target, place.device, place.families, place.seed
        )
        self._waiting |= dict.fromkeys(known)
        self.book.learn()
        plain, others = _by_layout(self._problems)
        lot = len(self._problems)
        new = self._compile(self._draft(), deadline, stopped)
        ahead = self._host.compiles_ahead
        try:
            # What is learned from the plain layout says what others are to be tried with.
            first = plain if ahead and plain else [*plain, *others]
            tried = self._turn(0, first, deadline, stopped, watch)
            for turn in itertools.count(1):
                if not (new or tried):  # nothing is left to be tried on these
                    added, self._further = self._further[:lot], self._further[lot:]
                    self._problems += added
                    plain, others = _by_layout(self._problems)
                    tried = len(added)
                if stopped() or deadline.over or not (new or tried):
                    break
                self._keep_the_best()
                if ahead:
                    if not tried:
                        time.sleep(_LOOK_S)  # for what is being compiled there is something to try
                    new = self._ask(turn, others, deadline)
                else:
                    new = self._compile(self._draft(), deadline, stopped)
                # Others come as soon as they can, and go last where compilers are slow.
                order = [*others, *plain] if ahead else [*plain, *others]
                tried = self._turn(turn, order, deadline, stopped, watch)
        finally:
            for each in self._asked:  # what compilers have not done by now is dropped
                each.evaluator.close()
            self._asked = []

    def at_prices_of_now(self, entries: Iterable[Entry], *, timed: bool) -> Iterator[Entry]:
        """Of programs of an earlier portfolio those that it began with; new prices where timed.

        Args:
            entries: the earlier portfolio's.
            timed: whether only such are wanted.
        """
        for each in entries:
            if each.key in self._began_with:
                candidate = Candidate(each.family, each.configuration)
                program = self.book.program(candidate, each.layout)
                if program is not None and program.timed:
                    yield program.entry(self._place.families[each.family])
                elif not timed:
                    yield each

    def complete(self, wanted: Sequence[Entry], stopped: Callable[[], bool]) -> None:
        """Try once more what is wanted and was tried by earlier runs alone: binaries are kept."""
        for each in wanted:
            if each.key in self._recalled and each.key not in self.binaries:
                problem, candidate = self._recalled[each.key]
                program = self.book.program(candidate, problem.layout)
                if program is not None and not stopped():
                    self._visit(problem, [(candidate, program)], Deadline(_LAST_S), stopped)

    def _turn(
        self,
        turn: int,
        problems: Sequence[Gemm],
        deadline: Deadline,
        stopped: Callable[[], bool],
        watch: Watch | None,
    ) -> int:
        """Visit each problem once; how many there was something to try for."""
        turns = max(len(VISITS) - turn, 1)
        count, tried = _visited(turn), 0
        for number, problem in enumerate(self._in_order(problems)):
            # What one visit must not do is use up the time of all that follow.
            share_s = deadline.remaining_s / (turns * len(problems) - number)
            new = math.ceil(_PATIENCE * share_s / self._compile_s)
            chosen = self._chosen(problem, count, new, varied=turn == 0)
            if stopped() or deadline.over:
                break
            if chosen:
                tried += 1
                self._visits += 1
                if watch is not None:
                    watch(problem, self._visits, deadline.remaining_s)
                self._visit(problem, chosen, deadline, stopped)
        self.book.learn()
        return tried

    def _in_order(self, problems: Sequence[Gemm]) -> Iterator[Gemm]:
        """Problems, those later whose layout has programs that are being compiled."""
        left = list(problems)
        while left:
            self._collect()
            busy = {each.layout for each in self._asked}
            problem = next((each for each in left if each.layout not in busy), None)
            if problem is None:  # those of the plain layout have been visited, and can be again
                problem = next((each for each in left if each.layout == AHEAD), left[0])
            left.remove(problem)
            yield problem

    def _ask(self, turn: int, others: Sequence[Gemm], deadline: Deadline) -> int:
        """Have programs compiled meanwhile, unless some are: for other layouts, then new ones.

        Returns:
            How many are being compiled.
        """
        self._collect()
        if not self._asked:
            wanted: defaultdict[str, dict[Candidate, None]] = defaultdict(dict)
            for problem in others:
                for _, program in self._promising(problem, _visited(turn), varied=False):
                    if program.key not in self._compiled:
                        key = program.key
                        wanted[key.layout][Candidate(key.family, key.configuration)] = None
            wanted[AHEAD] = dict.fromkeys(self._draft())
            for layout, drafted in wanted.items():
                for usual, calls in self._groups(drafted, layout):
                    evaluator = self._place.evaluator(usual, self._host)
                    self._asked.append(_Asked(layout, evaluator, calls))
                    evaluator.deadline = deadline
                    with suppress(OutOfTimeError):  # what has been measured stands
                        evaluator.prepare(list(calls.values()))
        return sum(len(each.calls) for each in self._asked)

    def _collect(self) -> None:
        """Take what compilers have done."""
        for asked in self._asked:
            for each in [each for each in asked.calls if asked.is_ready(each)]:
                del asked.calls[each]
                program = self.book.program(each, asked.layout)
                if program is not None:
                    self._compiled.add(program.key)
                if each in self._waiting:
                    del self._waiting[each]
                    self._pool.append(each)
                    self._new.append(each)
            if not asked.calls:
                asked.evaluator.close()
        self._asked = [each for each in self._asked if each.calls]

    def _draft(self) -> list[Candidate]:
        """The programs to be compiled next: those expected to be good.

        Problems choose in turns: each its first, then each its second, and so on.
        """
        programs = {each: self.book.program(each, AHEAD) for each in self._waiting}
        wanted = []
        for problem in self._problems:
            sizes = replace(Sizes.of(problem), layout=AHEAD)
            expected = {
                each: program.expected(sizes)[1]
                for each, program in programs.items()
                if program is not None
            }
            wanted.append(_varied({each: math.log(expected[each]) for each in expected}))
        turns = itertools.chain.from_iterable(zip(*wanted, strict=True))
        return list(itertools.islice(dict.fromkeys(turns), DRAFTED))

    def _keep_the_best(self) -> None:
        """Leave in the pool what a portfolio would be made of, were it half as large again.

        And what came into it while problems were visited: it has not met most of them.
        """
        built = build(self.book, self._place.families, most=LARGEST * 3 // 2, fewest=1, loss=0.0)
        programs = (Candidate(each.family, each.configuration) for each in built.entries)
        self._pool = list(dict.fromkeys((*programs, *self._new))) or self._pool
        self._new = []

    def _compile(
        self, drafted: Sequence[Candidate], deadline: Deadline, stopped: Callable[[], bool]
    ) -> int:
        """Have programs compiled and in the pool, as many as there is time for; how many.

        A visit would wait for the slowest of its own, and where compilers are slow the first
        visits would use up the time of all others.
        """
        begun_s = deadline.elapsed_s
        until = Deadline(_COMPILE_SHARE * deadline.remaining_s)
        ready: list[Candidate] = []
        # Small groups first: what a group takes beyond its share is then lost to nobody.
        groups = sorted(self._groups(drafted, AHEAD), key=lambda each: len(each[1]))
        for number, (usual, able) in enumerate(groups):
            if stopped() or until.over:
                break
            left = sum(len(calls) for _, calls in groups[number:])
            own = Deadline(until.remaining_s * len(able) / left)
            ready += self._compiled_of(usual, able, own, deadline, stopped)
        programs = (self.book.program(each, AHEAD) for each in ready)
        self._compiled |= {each.key for each in programs if each is not None}
        if ready:
            self._compile_s = (deadline.elapsed_s - begun_s) / len(ready)
        # Where there was no time for any, visits wait for a few.
        added = ready if ready or self._pool else drafted[:_FEWEST]
        for each in added:
            del self._waiting[each]
        self._pool += added
        return len(added)

    def _groups(
        self, drafted: Iterable[Candidate], layout: str
    ) -> Iterator[tuple[Gemm, dict[Candidate, Candidate]]]:
        """Usual problems of a layout, and what of a draft is to be compiled for each.

        By the call that is expected to be fastest there: what is free has its lowest values in a
        draft, which need not be valid together.
        """
        left = list(drafted)
        for m, n, k in _USUAL:
            usual = replace(self._problems[0], m=m, n=n, k=k, layout=layout)
            able: dict[Candidate, Candidate] = {}
            for each in left:
                program = self.book.program(each, layout)
                call = None if program is None else self._call(program, usual)
                if call is not None:
                    able[each] = call
            left = [each for each in left if each not in able]
            if able:
                yield usual, able

    def _call(self, program: Program, problem: Gemm) -> Candidate | None:
        """The call of a program that is expected to be fastest of those valid for a problem."""
        name = program.key.family
        if self._place.families[name].unsupported(problem) is not None:
            return None
        calls = (Candidate(name, each) for each in program.ranked(Sizes.of(problem)))
        return next((each for each in calls if self._valid(each, problem)), None)

    def _compiled_of(
        self,
        usual: Gemm,
        calls: Mapping[Candidate, Candidate],
        until: Deadline,
        deadline: Deadline,
        stopped: Callable[[], bool],
    ) -> list[Candidate]:
        """Have programs compiled by calls of theirs; those that are when the time is over.

        What is being compiled then is waited for: a compiler that is stopped has to begin anew.
        """
        with self._place.evaluator(usual, self._host) as evaluator:
            evaluator.deadline = deadline
            wanted = list(calls.values())
            step = len(wanted) if evaluator.compiles_ahead else evaluator.batch
            with suppress(OutOfTimeError):
                for first in range(0, len(wanted), step):
                    if stopped() or until.over:
                        break
                    evaluator.prepare(wanted[first : first + step])
                while not all(map(evaluator.is_ready, wanted)):
                    if stopped() or until.over:
                        break
                    time.sleep(_LOOK_S)
            return [each for each, call in calls.items() if evaluator.is_ready(call)]

    def _chosen(
        self, problem: Gemm, count: int, new: int, *, varied: bool
    ) -> list[tuple[Candidate, Program]]:
        """The most promising calls for a problem, and so many of them that are not compiled.

        Where compilers work meanwhile, those that are: others are asked for, and not waited for.
        """
        if self._host.compiles_ahead:
            ready = list(self._promising(problem, count, varied=varied, of=self._compiled))
            if ready:
                return ready
        promising = list(self._promising(problem, count, varied=varied))
        ready = [each for each in promising if each[1].key in self._compiled]
        return ready + [each for each in promising if each not in ready][:new]

    def _visit(
        self,
        problem: Gemm,
        chosen: Sequence[tuple[Candidate, Program]],
        deadline: Deadline,
        stopped: Callable[[], bool],
    ) -> None:
        place, best_s = self._place, None
        rows: list[tuple[Candidate, Measurement]] = []
        try:
            with place.evaluator(problem, self._host) as evaluator:
                evaluator.deadline = deadline
                # Where compilers would disturb measurements, few are waited for at a time.
                step = len(chosen) if evaluator.compiles_ahead else evaluator.batch
                for number, (candidate, program) in enumerate(chosen):
                    if stopped() or deadline.over:
                        break
                    if number % step == 0:
                        evaluator.prepare([each for each, _ in chosen[number : number + step]])
                    measurement = evaluator.evaluate(candidate, best_s)
                    rows.append((candidate, measurement))
                    self._learn(evaluator, candidate, program, problem, measurement)
                    if measurement.ok and measurement.median_s is not None:
                        best_s = min(best_s or math.inf, measurement.median_s)
        except OutOfTimeError:
            pass  # what has been measured stands
        if rows:
            fingerprint = place.device.fingerprint
            place.store.add_measurements(
                self._study, fingerprint, problem, place.target.name, rows
            )

    def _learn(
        self,
        evaluator: Evaluator,
        candidate: Candidate,
        program: Program,
        problem: Gemm,
        measurement: Measurement,
    ) -> None:
        self._tried[problem].add(program.key)
        self._compiled.add(program.key)
        each = timed(candidate, problem, measurement, program.units)
        if each is not None:
            self.book.note(each)
            if program.key not in self.binaries:
                binary = evaluator.binary(candidate)
                if binary is not None:
                    self.binaries[program.key] = binary
        elif measurement.outcome not in (Outcome.REJECTED, Outcome.ABANDONED):
            self._broken.add(program.key)

    def _promising(
        self, problem: Gemm, count: int, *, varied: bool, of: Container[Key] | None = None
    ) -> Iterator[tuple[Candidate, Program]]:
        """Calls of programs that were not tried here, the most promising first.

        Args:
            problem: what is to be computed.
            count: how many, at most.
            varied: whether families take turns, see `VARIETY`.
            of: programs that may be chosen; None allows all.
        """
        sizes = Sizes.of(problem)
        programs: dict[Key, Program] = {}
        expected: dict[Key, float] = {}
        for candidate in self._pool:
            family = self._place.families[candidate.family]
            if not is_modelled(family, problem):
                continue
            program = self.book.program(candidate, problem.layout)
            if program is None or program.key in self._tried[problem]:
                continue
            if of is not None and program.key not in of:
                continue
            if program.key in programs or program.key in self._broken:
                continue
            _, seconds = program.expected(sizes)
            unknown = CURIOSITY / (1 + len(program.timed))
            expected[program.key] = math.log(seconds) - unknown
            programs[program.key] = program
        found = 0
        order = _varied(expected) if varied else sorted(expected, key=expected.__getitem__)
        for program in map(programs.__getitem__, order):
            call = self._call(program, problem)
            if call is not None:
                yield call, program
                found += 1
                if found == count:
                    return

    def _valid(self, candidate: Candidate, problem: Gemm) -> bool:
        family = self._place.families[candidate.family]
        configuration, limits = candidate.configuration, self._place.device.limits
        return planner_of(family, configuration, problem.dtype, limits).valid(problem)


def _by_layout(problems: Sequence[Gemm]) -> tuple[list[Gemm], list[Gemm]]:
    """Those of the plain layout, and the others."""
    plain = [each for each in problems if each.layout == AHEAD]
    return plain, [each for each in problems if each.layout != AHEAD]


def _visited(turn: int) -> int:
    """Programs that are tried at a visit of a turn."""
    return VISITS[min(turn, len(VISITS) - 1)]


Named = TypeVar("Named", Candidate, "Key")


def _varied(expected: Mapping[Named, float]) -> list[Named]:
    """What is expected to be fastest first, families in turns as `VARIETY` says.

    Args:
        expected: logarithms of seconds.
    """
    taken: defaultdict[str, int] = defaultdict(int)
    found: dict[Named, float] = {}
    for each in sorted(expected, key=expected.__getitem__):
        found[each] = expected[each] + VARIETY * taken[each.family]
        taken[each.family] += 1
    return sorted(found, key=found.__getitem__)


_FEW = (4, 12)

_USUAL = (
    (2048, 2048, 2048),
    *((few, 2048, 2048) for few in _FEW),
    *((2048, 2048, few) for few in _FEW),
    (64, 64, 64),
)
"""Rows, reduction and columns of problems, for one of which almost any program is valid."""

AHEAD = "nn"
"""The layout that programs are compiled for before the first visit: most problems have it."""

_COMPILE_SHARE = 0.3
"""Of the time, what compiling ahead may take."""

_FEWEST = 8
"""Programs that the first visits have to choose from."""

_LOOK_S = 0.1

_PATIENCE = 2.0
"""Times its share of the time that is left, what compiling may take at a visit."""

_LAST_S = 10.0
"""For a program of the portfolio that has no binary yet."""
