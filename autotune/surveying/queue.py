"""Candidates of a survey on their way: drafted, compiled, collected into a pool."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.measuring.channel import LOOK_S
from autotune.model import LARGEST, Sizes, build
from autotune.operations.problem import Gemm
from autotune.surveying.learning import in_variety

if TYPE_CHECKING:
    from autotune.measuring.evaluator import Evaluator
    from autotune.model import Key
    from autotune.surveying.learning import Learning
    from autotune.tuning.context import DeviceContext
    from autotune.tuning.settings import Run

DRAFTED = 112
"""Programs that are compiled in a round, of all that might be worth knowing."""

AHEAD = "nn"
"""The layout that programs are compiled for before the first visit: most problems have it."""

_FEW = (4, 12)

_USUAL = (
    (2048, 2048, 2048),
    *((few, 2048, 2048) for few in _FEW),
    *((2048, 2048, few) for few in _FEW),
    (64, 64, 64),
)
"""Rows, reduction and columns of problems, for one of which almost any program is valid."""

_COMPILE_SHARE = 0.3
"""Of the time, what compiling ahead may take."""

_FEWEST = 8
"""Programs that the first visits have to choose from."""


@dataclass(frozen=True, slots=True)
class Until:
    """An end: of the time, or by somebody's request."""

    deadline: Deadline
    stopped: Callable[[], bool]

    @property
    def over(self) -> bool:
        """Nothing more is begun."""
        return self.stopped() or self.deadline.over


@dataclass(slots=True)
class _Batch:
    """Programs that compilers are at work on.

    Attributes:
        layout: that they are compiled for.
        evaluator: whose compilers they are, of a usual problem.
        calls: by program, the call of it that was asked for; those that are not ready.
    """

    layout: str
    evaluator: Evaluator
    calls: dict[Candidate, Candidate]


class CandidateQueue:
    """Programs worth knowing, on their way to the pool that visits choose from.

    The survey's `problems` may become more.

    Attributes:
        pool: programs that visits choose from.
        compiled: programs that have been compiled.
        compile_s: seconds that a program takes to compile.
    """

    def __init__(
        self,
        context: DeviceContext,
        run: Run,
        host: Evaluator,
        learning: Learning,
        problems: Sequence[Gemm],
    ) -> None:
        self.pool: list[Candidate] = []
        self.compiled: set[Key] = set()
        self.compile_s = 1.0
        self._context = context
        self._run = run
        self._host = host
        self._learning = learning
        self._problems = problems
        self._waiting: dict[Candidate, None] = {}
        self._batches: list[_Batch] = []
        self._new: list[Candidate] = []

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Let programs wait to be drafted."""
        self._waiting |= dict.fromkeys(candidates)

    def close(self) -> None:
        """Drop what compilers have not done by now."""
        for batch in self._batches:
            batch.evaluator.close()
        self._batches = []

    @property
    def busy(self) -> set[str]:
        """Layouts for which programs are being compiled."""
        return {batch.layout for batch in self._batches}

    def draft(self) -> list[Candidate]:
        """The programs to be compiled next: those expected to be good.

        Problems choose in turns: each its first, then each its second, and so on.
        """
        programs = {
            candidate: self._learning.book.program(candidate, AHEAD) for candidate in self._waiting
        }
        wanted = []
        for problem in self._problems:
            sizes = replace(Sizes.of(problem), layout=AHEAD)
            expected = {
                candidate: math.log(program.expected(sizes)[1])
                for candidate, program in programs.items()
                if program is not None
            }
            wanted.append(in_variety(expected))
        turns = itertools.chain.from_iterable(zip(*wanted, strict=True))
        return list(itertools.islice(dict.fromkeys(turns), DRAFTED))

    def compile(self, until: Until) -> int:
        """Have drafted programs compiled and in the pool, as many as there is time for; how many.

        A visit would wait for the slowest of its own, and where compilers are slow the first
        visits would use up the time of all others.
        """
        drafted, deadline = self.draft(), until.deadline
        begun_s = deadline.elapsed_s
        end = Until(Deadline(_COMPILE_SHARE * deadline.remaining_s), until.stopped)
        ready: list[Candidate] = []
        # Small groups first: what a group takes beyond its share is then lost to nobody.
        groups = sorted(self._groups(drafted, AHEAD), key=lambda group: len(group[1]))
        for number, (usual, calls) in enumerate(groups):
            if end.over:
                break
            left = sum(len(calls) for _, calls in groups[number:])
            own = Until(Deadline(end.deadline.remaining_s * len(calls) / left), until.stopped)
            ready += self._compile_calls(usual, calls, own, deadline)
        self._note_compiled(ready, AHEAD)
        if ready:
            self.compile_s = (deadline.elapsed_s - begun_s) / len(ready)
        # Where there was no time for any, visits wait for a few.
        added = ready if ready or self.pool else drafted[:_FEWEST]
        for candidate in added:
            del self._waiting[candidate]
        self.pool += added
        return len(added)

    def compile_meanwhile(
        self, wanted: Mapping[str, Iterable[Candidate]], deadline: Deadline
    ) -> int:
        """Have programs compiled while others are measured, by layout; how many are now.

        Nothing is asked for while compilers are at work on what was asked for before.
        """
        if not self._batches:
            for layout, programs in [*wanted.items(), (AHEAD, self.draft())]:
                for usual, calls in self._groups(programs, layout):
                    evaluator = self._context.evaluator(usual, self._run, self._host)
                    self._batches.append(_Batch(layout, evaluator, calls))
                    evaluator.deadline = deadline
                    with suppress(OutOfTimeError):  # what has been measured stands
                        evaluator.prepare(list(calls.values()))
        return sum(len(batch.calls) for batch in self._batches)

    def collect(self) -> None:
        """Take what compilers have done."""
        for batch in self._batches:
            is_ready = batch.evaluator.is_ready
            ready = [candidate for candidate, call in batch.calls.items() if is_ready(call)]
            self._note_compiled(ready, batch.layout)
            for candidate in ready:
                del batch.calls[candidate]
                if candidate in self._waiting:
                    del self._waiting[candidate]
                    self.pool.append(candidate)
                    self._new.append(candidate)
            if not batch.calls:
                batch.evaluator.close()
        self._batches = [batch for batch in self._batches if batch.calls]

    def keep_the_best(self) -> None:
        """Prune the pool to 1.5 times a portfolio, keeping newcomers, which few problems tried."""
        book, families = self._learning.book, self._context.families
        built = build(book, families, most=LARGEST * 3 // 2, fewest=1, loss=0.0)
        programs = (Candidate(entry.family, entry.configuration) for entry in built.entries)
        self.pool = list(dict.fromkeys((*programs, *self._new))) or self.pool
        self._new = []

    def _note_compiled(self, candidates: Iterable[Candidate], layout: str) -> None:
        programs = (self._learning.book.program(candidate, layout) for candidate in candidates)
        self.compiled |= {program.key for program in programs if program is not None}

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
            calls: dict[Candidate, Candidate] = {}
            for candidate in left:
                program = self._learning.book.program(candidate, layout)
                call = None if program is None else self._learning.call(program, usual)
                if call is not None:
                    calls[candidate] = call
            left = [candidate for candidate in left if candidate not in calls]
            if calls:
                yield usual, calls

    def _compile_calls(
        self, usual: Gemm, calls: Mapping[Candidate, Candidate], until: Until, deadline: Deadline
    ) -> list[Candidate]:
        """Have programs compiled by calls of theirs; those that are when the time is over.

        What is being compiled then is waited for: a compiler that is stopped has to begin anew.
        """
        with self._context.evaluator(usual, self._run, self._host) as evaluator:
            evaluator.deadline = deadline
            wanted = list(calls.values())
            step = len(wanted) if evaluator.compiles_ahead else evaluator.batch
            with suppress(OutOfTimeError):
                for first in range(0, len(wanted), step):
                    if until.over:
                        break
                    evaluator.prepare(wanted[first : first + step])
                while not all(map(evaluator.is_ready, wanted)) and not until.over:
                    time.sleep(LOOK_S)
            return [candidate for candidate, call in calls.items() if evaluator.is_ready(call)]
