"""Calls in which a few kernels and the library take turns, until it is known which is fastest.

All of them are right, so that a program may as well measure while it computes. Nothing waits for
a measurement, none is made in a capture, and what wins is kept in the user's cache as a light
record (`autotune.store.TuningRecord.is_light`). ``AUTOTUNE_TURNS=0`` leaves to the library
whatever is not known to be faster.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.core import session
from autotune.core.errors import AutotuneError, OperandError, UnavailableError
from autotune.core.forking import LOADING
from autotune.core.statistics import median, median_interval
from autotune.core.switches import is_on
from autotune.core.version import __version__
from autotune.serving.background import Job, background, is_wanted
from autotune.store import BaselineRecord, EffortRecord, TuningCache, TuningRecord
from autotune.store.record import IN_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.operations.problem import Gemm
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
"""Calls of each after which the library stays where nothing was decided: clocks may be of no
use."""

MARGIN = 1.02
"""Times that a kernel must be faster than the library to take its place."""

MARGIN_OF_POWER = 1.10
"""The same of products on tensor cores that take a GPU more than `BRIEF_S`: alone they run at
clocks that power does not allow in a second of work, and libraries take less of it."""

BRIEF_S = 50e-6

_UNTIMED = 1
"""Calls before any is timed: a shape that is used once costs nothing."""

_HOPELESS = 2.0
"""Times the library's best time, at which a kernel is out after one timed call."""

_log = logging.getLogger(__name__)


def are_wanted() -> bool:
    """Whether calls may be measured.

    Raises:
        InputError: the variable is neither 0 nor 1.
    """
    return is_on(VARIABLE)


def is_faster(ratio: float, seconds: float, problem: Gemm, target: str, least: float) -> bool:
    """Whether a kernel is so much faster than the library that it may take its place.

    Args:
        ratio: its speed, relative to the library's.
        seconds: its time.
        problem: what both computed.
        target: where.
        least: the ratio that is wanted where power decides nothing.
    """
    on_tensor_cores = problem.dtype != "float32" or problem.accuracy != "ieee"
    if target != "cpu" and on_tensor_cores and seconds > BRIEF_S:
        least = max(least, MARGIN_OF_POWER)
    return ratio >= least


class _Runner:
    """One of those that take turns.

    Args:
        contender: the kernel; None is the library.
    """

    __slots__ = ("calls", "contender", "is_out", "kernel", "pending", "times", "waiting")

    def __init__(self, contender: Contender | None) -> None:
        self.contender = contender
        self.kernel: Kernel | None = None
        self.times: list[tuple[float, ...]] = []
        self.pending: deque[Reading] = deque()
        self.calls = 0
        self.is_out = False
        self.waiting = False

    def load(self) -> Kernel:
        """The kernel, loaded when it is first needed."""
        if self.kernel is None:
            assert self.contender is not None
            self.kernel = self.contender.load()
        return self.kernel

    def drop(self, error: AutotuneError) -> None:
        """Let the kernel take no part any more."""
        assert self.contender is not None
        _log.debug("%s takes no part: %s", self.contender.found.candidate, error)
        self.is_out = True

    def read(self) -> None:
        """Take the times that are known by now."""
        while self.pending:
            try:
                seconds = self.pending[0]()
            except AutotuneError:  # of the driver: it is said where the program waits for it
                seconds = (math.nan,)
            if seconds is None:
                return
            self.pending.popleft()
            if not any(map(math.isnan, seconds)):
                self.times.append(seconds)


class _Compared(NamedTuple):
    """A kernel beside the library, in the first or in the second call of a pair.

    Attributes:
        ratio: its speed relative to the library's.
        ours: its median, in seconds.
        theirs: the library's.
        interval: 95% confidence interval of its median.
        is_clear: whether all times of one are below all of the other.
    """

    ratio: float
    ours: float
    theirs: float
    interval: tuple[float, float]
    is_clear: bool


def _least(runner: _Runner, library: _Runner) -> _Compared:
    """A kernel beside the library where it does worse: a program may call in either way."""
    found = []
    for call in range(2):
        ours, theirs = (
            [each[call] for each in one.times if len(each) > call] for one in (runner, library)
        )
        if not (ours and theirs):
            break
        faster, slower = max(ours) * MARGIN < min(theirs), max(theirs) < min(ours)
        own, other = median(ours), median(theirs)
        interval = median_interval(ours)
        found.append(_Compared(other / own, own, other, interval, faster or slower))
    least = min(found)
    all_clear = all(each.is_clear for each in found)
    return least._replace(is_clear=all_clear or (least.is_clear and least.ratio < 1))


class Turns:
    """The calls of one product in one way, by kernels or by the library.

    Any thread may make them.

    Args:
        problem: what is computed.
        target: where.
        library: the library's name and version.
        contenders: the kernels, the most promising first.
        clock: times calls; None where nothing is to be timed, and the library computes.
        kept: whether the outcome is stored.
        used: hears of every call.

    Attributes:
        target: where it is computed.
        counts: whether every call is heard of, the library's too.
        over: whether it is known what computes.
        winner: the kernel that does; None is the library.
    """

    def __init__(
        self,
        problem: Gemm,
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
        self._runners = [_Runner(None), *map(_Runner, contenders)]
        self._ticks = itertools.count()
        self._turn = itertools.count()
        self._inside = threading.local()
        self._begun = False
        self.counts = used is not None
        self.over = clock is None or not contenders
        self.winner: Kernel | None = None

    @classmethod
    def won_by(cls, problem: Gemm, target: str, kernel: Kernel) -> Turns:
        """Turns that are over: a kernel is known to be faster."""
        made = cls(problem, target, "", (), None)
        made.winner = kernel
        return made

    @property
    def is_librarys(self) -> bool:
        """Whether the library may be called without asking here, for now or for good."""
        return self.winner is None and not self.counts and (self.over or self._is_waiting)

    @property
    def _is_waiting(self) -> bool:
        """Whether kernels that take part are being compiled."""
        return any(each.waiting for each in self._runners)

    def hear(self, changed: Callable[[], None]) -> None:
        """Have somebody told whenever `winner` or `is_librarys` has changed."""
        self._listeners.append(changed)

    def call(
        self,
        ours: Callable[[Kernel], Any],
        theirs: Callable[[], Any],
        like: Any,
        *,
        twice: bool = False,
    ) -> Any:
        """The product, by whoever's turn it is.

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
        if self.over:
            return theirs()
        if getattr(self._inside, "is_timing", False):
            return theirs()  # the library's turn of another entry, which came by here
        assert self._clock is not None
        early = next(self._ticks) < _UNTIMED
        if early or not self._are_ready() or not self._clock.runs(like):
            return theirs()
        running = [each for each in self._runners if not each.is_out]
        runner = running[next(self._turn) % len(running)]
        result = self._timed(runner, ours, theirs, like, twice)
        self._judge()
        return result

    def best(self) -> Kernel:
        """The kernel that computes where the library must not.

        Raises:
            CompileError: the compiler refuses it.
        """
        if self.winner is not None:
            return self.winner
        first = next((each for each in self._runners[1:] if not each.is_out), self._runners[1])
        return first.load()

    def _timed(
        self,
        runner: _Runner,
        ours: Callable[[Kernel], Any],
        theirs: Callable[[], Any],
        like: Any,
        twice: bool,
    ) -> Any:
        clock, call = self._clock, theirs
        assert clock is not None
        if runner.contender is not None:
            try:
                kernel = runner.load()
            except AutotuneError as error:  # the library does as well
                if isinstance(error, UnavailableError):
                    _warn(str(error))
                runner.drop(error)
                return theirs()
            call = lambda: ours(kernel)  # noqa: E731 - either of two calls
        self._inside.is_timing = True
        try:
            result, reading = clock.time(call, like, twice=twice)
        except OperandError:
            raise
        except AutotuneError as error:
            if runner.contender is None:
                raise
            runner.drop(error)
            return theirs()
        finally:
            self._inside.is_timing = False
        runner.calls += 1
        if runner.calls > 1:  # the first one loads and warms up
            runner.pending.append(reading)
        return result

    def _are_ready(self) -> bool:
        """Whether all kernels that take part have been compiled; has it done, at first."""
        if not self._begun:
            self._begin()
        return not self._is_waiting

    def _begin(self) -> None:
        with LOADING:
            if self._begun:
                return
            jobs = {}
            for number, runner in enumerate(self._runners[1:]):
                assert runner.contender is not None
                job = runner.contender.job
                if job is not None and is_wanted(None):
                    runner.waiting, jobs[runner] = True, job
                elif job is not None and number:  # one is compiled in the call: no more waiting
                    runner.is_out = True
            self._begun = True
            if jobs:
                self._tell()
            for runner, job in jobs.items():
                if not background().submit(job, functools.partial(self._compiled, runner)):
                    runner.waiting = self._begun = False  # no thread: a later call tries again
            if not self._begun:
                self._tell()

    def _compiled(self, runner: _Runner, failure: str) -> None:
        """A kernel has been compiled, or cannot be."""
        with LOADING:
            runner.is_out, runner.waiting = bool(failure), False
            if not self._is_waiting:
                self._tell()

    def _tell(self) -> None:
        for each in [*self._listeners]:
            each()

    def _judge(self) -> None:
        """Decide, where enough is known.

        What several threads must not do at once is done under the lock that a fork waits for.
        """
        if not LOADING.acquire(blocking=False):
            return
        try:
            if self.over:
                return
            for each in self._runners:
                each.read()
            library, *kernels = self._runners
            for each in kernels:
                if each.times and library.times:
                    each.is_out |= min(each.times)[0] > _HOPELESS * min(library.times)[0]
            running = [each for each in kernels if not each.is_out]
            if not running:
                self._end(None)
                return
            if min(len(each.times) for each in (library, *running)) >= FEWEST:
                self._compare(library, running)
            if not self.over and min(each.calls for each in (library, *running)) > MOST_CALLS:
                self._end(None, known=False)
        finally:
            LOADING.release()

    def _compare(self, library: _Runner, running: Sequence[_Runner]) -> None:
        """Decide between the library and the fastest kernel, if the difference is clear by now."""
        fastest = max(running, key=lambda each: _least(each, library).ratio)
        least = _least(fastest, library)
        count = min(len(each.times) for each in (library, *running))
        if least.is_clear or count >= ENOUGH:
            won = is_faster(least.ratio, least.ours, self._problem, self.target, MARGIN)
            self._end(fastest.kernel if won else None)

    def _end(self, winner: Kernel | None, *, known: bool = True) -> None:
        if winner is not None and self._used is not None:
            winner.hear(self._used)
        self.winner, self.over = winner, True
        if self._kept and known:
            library, *kernels = self._runners
            timed = [each for each in kernels if each.times]
            if timed and library.times:
                fastest = max(timed, key=lambda each: _least(each, library).ratio)
                _keep(self._record(fastest), fastest)
        self._tell()
        # Few are needed any more, and there may be thousands of shapes.
        self._listeners.clear()
        del self._runners[2:]

    def _record(self, runner: _Runner) -> TuningRecord:
        """What was measured of the fastest kernel, beside the library."""
        assert runner.contender is not None
        found, problem = runner.contender.found, self._problem
        least = _least(runner, self._runners[0])
        ours, theirs = least.ours, least.theirs
        return TuningRecord(
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
            effort=EffortRecord(self._count, sum(map(sum, runner.times)), IN_CALLS),
            toolchain=dict(found.device.toolchain),
            state=dict(found.device.state),
            version=__version__,
        )


@session.cached()
def _warn(reason: str) -> None:
    """Say once, and not for every shape, why libraries compute."""
    _log.warning("products are left to their libraries: %s", reason)


def _keep(record: TuningRecord, runner: _Runner) -> None:
    """Have a record stored in the background; without a place for it, it is measured again."""
    assert runner.contender is not None
    place = runner.contender.found.shared.place

    def write(workers: Workers) -> None:
        try:
            TuningCache(place.create().database).add(record)
        except AutotuneError as error:
            _log.debug("what was measured in calls is not kept: %s", error)

    job = Job(("light record", record.id), f"a record of {record.candidate}", write)
    background().submit(job, lambda failure: None)
