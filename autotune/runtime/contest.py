"""Contests: a few kernels and the library take turns in calls, until the fastest is known.

All of them are right, so that a program may as well measure while it computes. On a GPU the
second call of a shape takes all turns, some milliseconds; elsewhere a call is a turn, and nothing
waits for a measurement. None is made in a capture, and what wins is kept in the user's cache as a
light record (`autotune.store.TuningRecord.is_light`). ``AUTOTUNE_TURNS=0`` leaves to the library
whatever is not known to be faster.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.core.errors import AutotuneError, OperandError, UnavailableError
from autotune.core.forking import LOADING
from autotune.core.version import __version__
from autotune.runtime.contestants import MARGIN, Contestant, compare
from autotune.runtime.product_log import warn_once
from autotune.serving.background import Job, background, is_wanted
from autotune.store import BaselineRecord, EffortRecord, TuningCache, TuningRecord
from autotune.store.record import IN_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.operations.problem import Problem
    from autotune.serving.background import Workers
    from autotune.serving.clock import Clock, Reading
    from autotune.serving.kernel import Kernel
    from autotune.serving.loading import Contender

VARIABLE = "AUTOTUNE_TURNS"
"""0 has nothing measured in the calls of a program."""

FEWEST = 3
"""Timed calls of each that decide where all of one are faster than all of another."""

ENOUGH = 7
"""Timed calls of each that decide in any case."""

MOST_CALLS = 30
"""Calls of each after which the library stays: clocks may be of no use."""

MARGIN_OF_POWER = 1.10
"""Speed relative to the library's, from which on a kernel takes its place, of products on tensor
cores that take a GPU more than `BRIEF_S` and more than `INTENSE` operations for each element:
alone they run at clocks that power does not allow in a second of work, and libraries take less of
it. Of others it is `MARGIN`."""

BRIEF_S = 50e-6

MARGIN_OF_BRIEF = 1.06
"""The same, by turns in calls, of products in 16 bits that take no more: in a stream our kernels
begin while others end, which saves little in a graph. By turns five products were 1.05 to 1.19
times as good as in a graph, each behind another kernel (H200)."""

INTENSE = 256

MOST_FLOPS = 1e11
"""Operations of the largest product of which all turns are taken in one call: some
milliseconds."""

OF_CACHE = 4
"""Operands that take at most one part in so many of a GPU's level-2 cache may stay there, beside
those of other layers, until a program needs them again: a kernel must then be the faster one
whether they do or not."""

_MOST_ROUNDS = 2 * (ENOUGH + 1)
"""Turns of each in one call: a slow host spoils some."""

_UNTIMED = 1
"""Calls before any is timed: a shape that is used once costs nothing."""

_HOPELESS = 2.0
"""Times the library's best time, at which a kernel is out after one timed call."""

_log = logging.getLogger(__name__)


def is_faster(
    ratio: float,
    seconds: float,
    problem: Problem,
    target: str,
    *,
    in_turns: bool,
    held: bool = False,
) -> bool:
    """True if a kernel is so much faster than the library that it may take its place.

    Args:
        ratio: its speed, relative to the library's.
        seconds: its time.
        problem: what both computed.
        target: where.
        in_turns: whether they took turns in calls of a program.
        held: whether both were held without a pause, so that power has had its say.
    """
    on_tensor_cores = problem.dtype != "float32" or problem.accuracy != "ieee"
    itemsize = DTYPES[problem.dtype].itemsize
    least = MARGIN if in_turns else 1.0
    if target != "cpu" and on_tensor_cores:
        if seconds <= BRIEF_S and itemsize == 2 and in_turns:
            least = MARGIN_OF_BRIEF
        elif seconds > BRIEF_S and problem.flops > INTENSE * problem.traffic / itemsize:
            least = MARGIN if held else MARGIN_OF_POWER
    return ratio >= least


class Contest:
    """Calls of one product in one way, by kernels or by the library; any thread may make them.

    Args:
        problem: what is computed.
        target: where.
        library: the library's name and version.
        contenders: the kernels, the most promising first.
        clock: times calls; None where nothing is to be timed, and the library computes.
        kept: whether the outcome is stored.
        used: called in every call.

    Attributes:
        target: where it is computed.
        counts: whether every call is counted, the library's too.
        over: whether it is known what computes.
        winner: the kernel that does; None is the library.
    """

    def __init__(
        self,
        problem: Problem,
        target: str,
        library: str,
        contenders: Sequence[Contender],
        clock: Clock | None,
        *,
        kept: bool = True,
        used: Callable[[], None] | None = None,
    ) -> None:
        self._problem = problem
        self.target = target
        self._library = library
        self._count = len(contenders)
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._kept = kept
        self._used = used
        self._contestants = [Contestant(None), *map(Contestant, contenders)]
        self._ticks = itertools.count()
        self._turn = itertools.count()
        self._together = itertools.count()
        self._is_settling = False
        self._inside = threading.local()
        self._begun = False
        self.counts = used is not None
        self.over = clock is None or not contenders
        self.winner: Kernel | None = None

    @classmethod
    def won_by(cls, problem: Problem, target: str, kernel: Kernel) -> Contest:
        """A contest that is over: a kernel is known to be faster."""
        made = cls(problem, target, "", (), None)
        made.winner = kernel
        return made

    @property
    def is_librarys(self) -> bool:
        """True if the library may be called without asking here, for now or for good."""
        return self.winner is None and not self.counts and (self.over or self._is_waiting)

    @property
    def _is_waiting(self) -> bool:
        """True if kernels that take part are being compiled."""
        return any(one.waiting for one in self._contestants)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have a function called whenever `winner` or `is_librarys` has changed."""
        self._listeners.append(changed)

    def call(
        self,
        ours: Callable[[Kernel], Any],
        theirs: Callable[[], Any],
        like: Any,
        *,
        twice: bool = False,
    ) -> Any:
        """Compute the product by the one whose turn it is.

        Args:
            ours: computes by a kernel.
            theirs: computes by the library.
            like: an operand.
            twice: whether either may be called once more: they write to memory of their own.

        Raises:
            OperandError: it was a kernel's turn, which cannot take the operands as they are.
        """
        if self.over and self.winner is not None:
            return ours(self.winner)
        if self._used is not None:
            self._used()
        # While another entry times the library, a product that comes by here is part of that.
        if self.over or getattr(self._inside, "is_timing", False):
            return theirs()
        assert self._clock is not None
        if next(self._ticks) < _UNTIMED or not self._are_ready() or not self._clock.runs(like):
            return theirs()
        if twice and not self._clock.waits and self._problem.flops <= MOST_FLOPS:
            if not next(self._together):
                self._take_turns(ours, theirs, like)
                return theirs() if self.winner is None else ours(self.winner)
            if self._is_settling:  # in another thread
                return theirs()
        running = [one for one in self._contestants if not one.is_out]
        one = running[next(self._turn) % len(running)]
        time = functools.partial(self._clock.time, like=like, twice=twice)
        result = self._time(one, ours, theirs, time)
        self._judge()
        return result

    def best(self) -> Kernel:
        """The kernel that computes where the library must not.

        Raises:
            CompileError: the compiler refuses it.
        """
        if self.winner is not None:
            return self.winner
        kernels = self._contestants[1:]
        return next((one for one in kernels if not one.is_out), kernels[0]).load()

    def _take_turns(
        self, ours: Callable[[Kernel], Any], theirs: Callable[[], Any], like: Any
    ) -> None:
        """Take turns until it is known who is the fastest: a program is captured after few calls.

        Operands come from memory, as those of other layers do; those of small programs come from
        a cache as well. Where this fails, turns are taken call by call.
        """
        clock, contender = self._clock, self._contestants[1].contender
        assert clock is not None
        assert contender is not None
        cache = int(contender.found.device.limits.names()["l2_bytes"])
        again = OF_CACHE * self._problem.traffic <= cache

        def time(call: Callable[[], Any]) -> tuple[None, Reading]:
            seconds = clock.time_cold(call, like, again=again)
            return None, lambda: seconds

        self._is_settling = True
        try:
            for _ in range(_MOST_ROUNDS):
                for one in [one for one in self._contestants if not one.is_out]:
                    self._time(one, ours, theirs, time)
                self._judge()
                if self.over:
                    return
        except (AutotuneError, MemoryError, RuntimeError) as error:
            _log.debug("turns are taken call by call: %s", error)
        finally:
            self._is_settling = False
        for one in self._contestants:
            one.pending.clear()
            one.times.clear()

    def _time(
        self,
        contestant: Contestant,
        ours: Callable[[Kernel], Any],
        theirs: Callable[[], Any],
        time: Callable[[Callable[[], Any]], tuple[Any, Reading]],
    ) -> Any:
        call = theirs
        if contestant.contender is not None:
            try:
                call = functools.partial(ours, contestant.load())
            except AutotuneError as error:  # the library does as well
                if isinstance(error, UnavailableError):
                    warn_once(f"products are left to their libraries: {error}")
                contestant.drop(error)
                return theirs()
        self._inside.is_timing = True
        try:
            result, reading = time(call)
        except OperandError:
            raise
        except AutotuneError as error:
            if contestant.contender is None:
                raise
            contestant.drop(error)
            return theirs()
        finally:
            self._inside.is_timing = False
        contestant.calls += 1
        if contestant.calls > 1:  # the first one loads and warms up
            contestant.pending.append(reading)
        return result

    def _are_ready(self) -> bool:
        """True if all kernels that take part have been compiled; has it done, at first."""
        if not self._begun:
            with LOADING:
                if not self._begun:
                    self._begin()
        return not self._is_waiting

    def _begin(self) -> None:
        jobs = {}
        for number, one in enumerate(self._contestants[1:]):
            assert one.contender is not None
            job = one.contender.job
            if job is not None and is_wanted(None):
                one.waiting, jobs[one] = True, job
            elif job is not None and number:  # one is compiled in the call: no more waiting
                one.is_out = True
        self._begun = True
        if jobs:
            self._report()
        for one, job in jobs.items():
            if not background().submit(job, functools.partial(self._end_compiling, one)):
                one.waiting = self._begun = False  # no thread: a later call tries again
        if not self._begun:
            self._report()

    def _end_compiling(self, contestant: Contestant, failure: str) -> None:
        with LOADING:
            contestant.is_out, contestant.waiting = bool(failure), False
            if not self._is_waiting:
                self._report()

    def _report(self) -> None:
        for changed in [*self._listeners]:
            changed()

    def _judge(self) -> None:
        """Decide, where enough is known.

        What several threads must not do at once is done under the lock that a fork waits for.
        """
        if not LOADING.acquire(blocking=False):
            return
        try:
            if not self.over:
                self._decide()
        finally:
            LOADING.release()

    def _decide(self) -> None:
        for one in self._contestants:
            one.read()
        library, *kernels = self._contestants
        for one in kernels:
            if one.times and library.times:
                one.is_out |= min(one.times)[0] > _HOPELESS * min(library.times)[0]
        running = [one for one in kernels if not one.is_out]
        if not running:
            self._end(None)
            return
        count = min(len(one.times) for one in (library, *running))
        if count >= FEWEST:
            fastest = max(running, key=lambda one: compare(one, library).ratio)
            least = compare(fastest, library)
            if least.is_clear or count >= ENOUGH:
                won = is_faster(least.ratio, least.ours, self._problem, self.target, in_turns=True)
                self._end(fastest.kernel if won else None)
        if not self.over and min(one.calls for one in (library, *running)) > MOST_CALLS:
            self._end(None, known=False)

    def _end(self, winner: Kernel | None, *, known: bool = True) -> None:
        if winner is not None and self._used is not None:
            winner.hear(self._used)
        self.winner, self.over = winner, True
        library, *kernels = self._contestants
        timed = [one for one in kernels if one.times]
        if self._kept and known and timed and library.times:
            self._store(max(timed, key=lambda one: compare(one, library).ratio))
        self._report()
        # Few are needed any more, and there may be thousands of shapes.
        self._listeners.clear()
        del self._contestants[2:]

    def _store(self, fastest: Contestant) -> None:
        """Store a kernel's times beside the library's, in the background.

        Without a place for them they are measured again.
        """
        assert fastest.contender is not None
        found, problem = fastest.contender.found, self._problem
        least = compare(fastest, self._contestants[0])
        ours, theirs = least.ours, least.theirs
        record = TuningRecord(
            fingerprint=found.device.fingerprint,
            operation=problem.operation,
            problem=problem.key(),
            target=self.target,
            candidate=found.candidate,
            family_digest=found.family.digest,
            space_digest=found.family.digest,
            median_s=ours,
            interval_s=least.interval,
            gflops=problem.flops / ours / 1e9,
            ties=0,
            baseline=BaselineRecord(self._library, theirs, theirs / ours),
            effort=EffortRecord(self._count, sum(map(sum, fastest.times)), IN_CALLS),
            toolchain=dict(found.device.toolchain),
            state=dict(found.device.state),
            version=__version__,
        )

        def write(workers: Workers) -> None:
            try:
                TuningCache(found.shared.place.create().database).add(record)
            except AutotuneError as error:
                _log.debug("what was measured in calls is not kept: %s", error)

        job = Job(("light record", record.id), f"a record of {record.candidate}", write)
        background().submit(job, lambda failure: None)
