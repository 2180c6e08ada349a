"""A survey: the programs worth knowing, timed on problems of all kinds, so that a model can learn.

Every problem is visited a few times. At each visit the price book says which of the programs that
were not timed on it promise most, and those are tried: verified and timed as trials of a search
are, with little effort each. The first visits find out which programs a portfolio would be made
of; the others try those, where they are expected to be good. Where compilers do not disturb
measurements they work on what comes next meanwhile.

`queue` compiles, `learning` learns; here problems are visited.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement
from autotune.measuring.channel import LOOK_S
from autotune.measuring.effort import Effort
from autotune.operations.problem import Gemm
from autotune.surveying.learning import Learning
from autotune.surveying.pool import worth_knowing
from autotune.surveying.queue import AHEAD, CandidateQueue, Until

if TYPE_CHECKING:
    from autotune.measuring.evaluator import Evaluator
    from autotune.model import Entry, Program
    from autotune.tuning.context import DeviceContext
    from autotune.tuning.settings import Run

EFFORT = Effort(budget_s=0.03, interval=0.03, abandon_ratio=2.5, timeout_s=10.0)
"""Little for each trial: a model averages over many, and what is slow teaches, too."""

VISITS = (14, 14, 10)
"""Programs that are tried at the first visit to a problem, at the second, and at all others."""

_PATIENCE = 2.0
"""Times its share of the time that is left, what compiling may take at a visit."""

_LAST_S = 10.0
"""For a program of the portfolio that has no binary yet."""

Watch: TypeAlias = Callable[[Gemm, int, float], None]
"""``watch(problem, visit, left_s)``: called before each visit."""


class Survey:
    """Visits problems of one dtype, and learns.

    Args:
        context: where it is held.
        run: settings of its evaluators.
        host: an evaluator of the context's, whose processes are used.
        problems: to be visited.
        study: what measurements are stored under; one of the same families, whenever it was.
        further: as many more of them are visited as often as nothing is left to be tried.
        watch: called before each visit.

    Attributes:
        learning: what has been learned.
        queue: programs that are compiled, and were.
    """

    def __init__(
        self,
        context: DeviceContext,
        run: Run,
        host: Evaluator,
        problems: Sequence[Gemm],
        study: str,
        further: Sequence[Gemm] = (),
        watch: Watch | None = None,
    ) -> None:
        self._context = context
        self._run = run
        self._host = host
        self._problems = list(problems)
        self._further = list(further)
        self._lot = len(problems)
        self._study = study
        self._watch = watch
        self._visits = 0
        self.learning = Learning(context, problems[0].dtype)
        self.queue = CandidateQueue(context, run, host, self.learning, self._problems)

    def hold(self, until: Until) -> None:
        """Visit the problems, as often and as long as there is time."""
        context, queue = self._context, self.queue
        queue.add(
            worth_knowing(
                self._problems, context.target, context.device, context.families, self._run.seed
            )
        )
        self.learning.book.learn()
        new = queue.compile(until)
        ahead = self._host.compiles_ahead
        try:
            plain, others = _by_layout(self._problems)
            # What is learned from the plain layout says what others are to be tried with.
            tried = self._visit_all(0, plain if ahead and plain else [*plain, *others], until)
            for number in itertools.count(1):
                if not (new or tried):
                    tried = self._add_further()
                    plain, others = _by_layout(self._problems)
                if until.over or not (new or tried):
                    break
                queue.keep_the_best()
                if ahead:
                    if not tried:
                        time.sleep(LOOK_S)  # for what is being compiled there is something to try
                    new = self._compile_meanwhile(number, others, until)
                else:
                    new = queue.compile(until)
                # Others come as soon as they can, and go last where compilers are slow.
                order = [*others, *plain] if ahead else [*plain, *others]
                tried = self._visit_all(number, order, until)
        finally:
            queue.close()

    def complete(self, wanted: Sequence[Entry], stopped: Callable[[], bool]) -> None:
        """Try once more what is wanted and was tried by earlier runs alone: binaries are kept."""
        for problem, candidate, program in self.learning.unkept(wanted):
            if not stopped():
                self._visit(problem, [(candidate, program)], Until(Deadline(_LAST_S), stopped))

    def _add_further(self) -> int:
        """Take as many more problems as there were at first, now that nothing is left to be tried.

        Returns:
            How many there are.
        """
        added, self._further = self._further[: self._lot], self._further[self._lot :]
        self._problems.extend(added)  # the queue sees them
        return len(added)

    def _compile_meanwhile(self, number: int, others: Sequence[Gemm], until: Until) -> int:
        """Have programs compiled for other layouts, then new ones; how many are being."""
        self.queue.collect()
        wanted: defaultdict[str, dict[Candidate, None]] = defaultdict(dict)
        for problem in others if not self.queue.busy else ():
            promising = self.learning.promising(
                problem, self.queue.pool, _programs(number), varied=False
            )
            for _, program in promising:
                if program.key not in self.queue.compiled:
                    key = program.key
                    wanted[key.layout][Candidate(key.family, key.configuration)] = None
        return self.queue.compile_meanwhile(wanted, until.deadline)

    def _visit_all(self, number: int, problems: Sequence[Gemm], until: Until) -> int:
        """Visit each problem once in a round; how many there was something to try for."""
        rounds, tried = max(len(VISITS) - number, 1), 0
        for place, problem in enumerate(self._in_order(problems)):
            # What one visit must not do is use up the time of all that follow.
            share_s = until.deadline.remaining_s / (rounds * len(problems) - place)
            new = math.ceil(_PATIENCE * share_s / self.queue.compile_s)
            chosen = self._choose(problem, _programs(number), new, varied=number == 0)
            if until.over:
                break
            if chosen:
                tried += 1
                self._visits += 1
                if self._watch is not None:
                    self._watch(problem, self._visits, until.deadline.remaining_s)
                self._visit(problem, chosen, until)
        self.learning.book.learn()
        return tried

    def _in_order(self, problems: Sequence[Gemm]) -> Iterator[Gemm]:
        """Problems, those later whose layout has programs that are being compiled."""
        left = list(problems)
        while left:
            self.queue.collect()
            busy = self.queue.busy
            problem = next((problem for problem in left if problem.layout not in busy), None)
            if problem is None:  # those of the plain layout have been visited, and can be again
                problem = next((problem for problem in left if problem.layout == AHEAD), left[0])
            left.remove(problem)
            yield problem

    def _choose(
        self, problem: Gemm, count: int, new: int, *, varied: bool
    ) -> list[tuple[Candidate, Program]]:
        """The most promising calls for a problem, and so many of them that are not compiled.

        Where compilers work meanwhile, those that are: others are asked for, and not waited for.
        """
        pool, compiled = self.queue.pool, self.queue.compiled
        if self._host.compiles_ahead:
            ready = list(self.learning.promising(problem, pool, count, varied=varied, of=compiled))
            if ready:
                return ready
        promising = list(self.learning.promising(problem, pool, count, varied=varied))
        ready = [call for call in promising if call[1].key in compiled]
        return ready + [call for call in promising if call not in ready][:new]

    def _visit(
        self, problem: Gemm, chosen: Sequence[tuple[Candidate, Program]], until: Until
    ) -> None:
        """Try calls on a problem."""
        best_s: float | None = None
        rows: list[tuple[Candidate, Measurement]] = []
        with (
            suppress(OutOfTimeError),  # what has been measured stands
            self._context.evaluator(problem, self._run, self._host) as evaluator,
        ):
            evaluator.deadline = until.deadline
            # Where compilers would disturb measurements, few are waited for at a time.
            step = len(chosen) if evaluator.compiles_ahead else evaluator.batch
            for number, (candidate, program) in enumerate(chosen):
                if until.over:
                    break
                if number % step == 0:
                    evaluator.prepare([call for call, _ in chosen[number : number + step]])
                measurement = evaluator.evaluate(candidate, best_s)
                rows.append((candidate, measurement))
                self.queue.compiled.add(program.key)
                self.learning.note(evaluator, candidate, program, problem, measurement)
                if measurement.ok and measurement.median_s is not None:
                    best_s = min(best_s or math.inf, measurement.median_s)
        if rows:
            self._context.keep(self._study, problem, rows)


def _by_layout(problems: Sequence[Gemm]) -> tuple[list[Gemm], list[Gemm]]:
    """Those of the plain layout, and the others."""
    plain = [problem for problem in problems if problem.layout == AHEAD]
    return plain, [problem for problem in problems if problem.layout != AHEAD]


def _programs(number: int) -> int:
    """Programs that are tried at a visit of a round."""
    return VISITS[min(number, len(VISITS) - 1)]
