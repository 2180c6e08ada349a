"""The evaluator of every target: which request is sent when, and what the replies mean."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from autotune.core.deadline import Deadline
from autotune.core.errors import InputError
from autotune.core.measurement import ERROR_NORM, Measurement, Outcome, Series
from autotune.measuring.backend import Prepared
from autotune.measuring.effort import (
    Baseline,
    Effort,
    Finals,
    Report,
    silent,
)
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Program,
    Redraw,
    Request,
    Vendor,
    Visit,
    answers,
)
from autotune.measuring.processes import PREPARE_TIMEOUT_S
from autotune.measuring.rounds import CONFIRM_SHARE, faster, hold_rounds, scatter
from autotune.measuring.sustained import LEAST_S, TURN_S, SustainedTurns, SustainedVisit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.measuring.backend import Backend
    from autotune.operations.problem import Problem
    from autotune.space import SearchSpace

LIBRARY_SHARE, LIBRARY_S = 0.25, 5.0
"""Of what remains of a run, what timing vendor libraries may take (but so many seconds in any
case), and what one call may for a library to take turns in finals. The rest is the candidates'."""

CHOOSING_SHARE = 0.5
"""Of the time of short turns, what remains of it where turns without a pause follow."""

SECOND_LOOK_SHARE = 1 / 6
"""Of the seconds of timed calls per trial, those for a finalist that is verified again, since the
rounds time it, and for the baseline looked at again."""


class Evaluator:
    """Turns candidates into measurements on one device, for one problem.

    A candidate's own faults (it does not compile, crashes, hangs, computes nonsense) come back as
    outcomes and cost one trial; only faults of the engine, the device or a family's files raise.
    Used as a context manager; `close` leaves no process behind.

    `prepare`, `evaluate`, `finals` and `baseline` raise OutOfTimeError where the deadline comes
    before what they wait for; a process that was at work is gone then, and the next request starts
    another.

    Args:
        problem: what is computed.
        families: by name; candidates name them.
        device: kernels are measured on.
        backend: what the target adds.
        effort: how long and how exactly to measure, and the objective.
        seed: seeded the operands; those of finals are drawn by the numbers after it.

    Attributes:
        deadline: of the run, which sets it.
        report: callback for compiling and finals; the run sets it.
        batch: candidates to have prepared at a time: enough to keep every compiler busy.

    Raises:
        InputError: the target does not observe what the objective needs.
    """

    def __init__(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        backend: Backend,
        effort: Effort,
        seed: int,
    ) -> None:
        needs = effort.objective.needs
        if needs not in ("", "error") and needs not in backend.observes:
            backend.close()
            raise InputError(
                f"objective {effort.objective.name!r} needs {needs!r} observed, which cannot be "
                f"on {device.fingerprint.name}: choose another objective, or let this process "
                "read the device's counters"
            )
        self.device = device
        self.backend = backend
        self.effort = effort
        self.deadline = Deadline()
        self.report: Report = silent
        self.samples = 0
        self.batch = backend.batch
        self._problem = problem
        self._families = families
        self._fresh = itertools.count(seed + 1)
        self._spaces: dict[str, SearchSpace] = {}
        self._measured: dict[str, tuple[Candidate, Measurement]] = {}
        self._alone = False  # no vendor library is known to be worth its time

    @property
    def compiles_ahead(self) -> bool:
        """True if compilers work while a candidate is measured; if not, `prepare` blocks."""
        return self.backend.compiles_ahead

    @property
    def finals_s(self) -> float:
        """Seconds that finals take beside verifying the finalists, as far as is known."""
        return self.backend.start_s + self._turns_s + self.holds * self.effort.sustained_s

    @property
    def holds(self) -> bool:
        """True if the best of the finals are held without a pause, as far as is known."""
        if not (self.backend.holds and self.effort.sustained_s):
            return False
        times = [found.median_s for _, found in self._measured.values() if found.ok]
        return LEAST_S <= min(filter(None, times), default=0.0) <= TURN_S

    @property
    def _turns_s(self) -> float:
        """Seconds of short turns: half of them choose who is held, where that decides."""
        return self.effort.finals_s * (CHOOSING_SHARE if self.holds else 1)

    def is_ready(self, candidate: Candidate) -> bool:
        """True if a prepared candidate has been compiled."""
        return self.backend.is_ready(candidate)

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile the valid candidates ahead of `evaluate`, on all cores; may block until done.

        Those that were compiled when the time ended are ready.
        """
        valid, backend = self._valid(candidates), self.backend
        if backend.compiles_ahead or all(map(backend.is_ready, valid)):
            backend.prepare(valid, self.deadline, self.report)
        else:
            with backend.turns.take(self.deadline, shared=True):
                backend.prepare(valid, self.deadline, self.report)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to compile the valid candidates while other problems are measured.

        Nothing is waited for; where compilers would disturb measurements nothing is begun.
        """
        self.backend.compile_ahead(self._valid(candidates))

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Compile if need be, verify, then time.

        A candidate that was compiled to what another was gets that one's measurement.

        Args:
            candidate: what to measure.
            best_s: median of the best so far, in seconds; None while there is none. Slower
                candidates are abandoned, if the objective follows time.
        """
        prepared = self._prepared(candidate)
        if isinstance(prepared, Measurement):
            return prepared
        digest = prepared.program.digest
        twin, known = self._measured.get(digest, (candidate, None))
        if known is not None and twin != candidate:
            details = {**known.details, **prepared.details, "same_binary_as": str(twin)}
            return replace(known, details=details)
        best_s = best_s if self.effort.objective.follows_time else None
        measurement = self._measure(candidate, prepared, best_s, self.effort.budget_s)
        self._measured[digest] = (candidate, measurement)
        return measurement

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify, time in rounds (every candidate, then the baseline), and verify again.

        The second time on operands that no call has seen. A median is over the medians of the
        rounds, whose times are independent as those of consecutive calls are not. There are as
        many rounds as the deadline allows, and at least one. On a GPU the best then take turns
        without a pause (`autotune.measuring.sustained`).
        """
        self.backend.begin_finals(self.deadline)
        self.prepare(candidates)
        found = [self._prepared(candidate) for candidate in candidates]
        begun_s = self.deadline.elapsed_s
        measurements = [
            prepared
            if isinstance(prepared, Measurement)
            else self._measure(candidate, prepared, None, self._second_look_s)
            for candidate, prepared in zip(candidates, found, strict=True)
        ]
        verifying_s = self.deadline.elapsed_s - begun_s
        baseline = self.baseline()
        finalists = {
            position: (prepared.program, self._accuracy(candidates[position]))
            for position, prepared in enumerate(found)
            if isinstance(prepared, Prepared) and measurements[position].ok
        }
        visits = {
            position: functools.partial(self._visit, *finalist)
            for position, finalist in finalists.items()
        }
        vendor, visit_vendor = self.backend.baselines.get(self._problem), None
        if vendor is not None and vendor[1].median_s <= LIBRARY_SHARE * self.deadline.remaining_s:
            visit_vendor = functools.partial(self._visit, vendor[0], "ieee")
        seed = next(self._fresh)
        return hold_rounds(
            measurements,
            visits,
            baseline,
            visit_vendor,
            self._turns_s,
            lambda position: self._confirm(*finalists[position], seed),
            confirming_s=2 * verifying_s,  # on operands that have to be drawn first
            sustained=self._sustained_turns(visits, visit_vendor),
            deadline=self.deadline,
            report=self.report,
            score=self._score,
            objective=self.effort.objective,
        )

    def baseline(self) -> Baseline | None:
        """The vendor library on the same operands, as it is fastest, measured once.

        None where there is none, or all take too long (`LIBRARY_SHARE`).
        """
        measured, problem = self.backend.baselines, self._problem
        if problem not in measured and not self._alone:
            if (found := self._fastest_vendor()) is not None:
                measured[problem] = found
            self._alone = found is None
        return measured[problem][1] if problem in measured else None

    def check_baseline(self) -> Baseline | None:
        """The vendor library, measured once more for a moment: the faster time stays.

        The best of a search is the fastest of many times; one time of the library's, taken in a
        bad moment, is no match for it.
        """
        known = self.backend.baselines.get(self._problem)
        if known is None:
            return None
        vendor, baseline = known
        baseline = faster(baseline, self._visit(vendor, "ieee", self._second_look_s))
        self.backend.baselines[self._problem] = vendor, baseline
        return baseline

    def binary(self, candidate: Candidate) -> Binary | None:
        """A measured candidate's binary; None where nothing can be kept of it."""
        return self.backend.binary(candidate)

    def close(self) -> None:
        """End every process and free the device, unless they are another evaluator's."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _sustained_turns(
        self,
        visits: Mapping[int, functools.partial[Series | Measurement]],
        visit_vendor: functools.partial[Series | Measurement] | None,
    ) -> SustainedTurns | None:
        """Turns without a pause of those who take turns, where the device is one for them."""
        if not (self.backend.holds and self.effort.sustained_s):
            return None
        held: dict[int | None, SustainedVisit] = {
            position: functools.partial(visit, sustained=True)
            for position, visit in visits.items()
        }
        if visit_vendor is not None:
            held[None] = functools.partial(visit_vendor, sustained=True)
        return SustainedTurns(held, self.effort.sustained_s, self.deadline, self.report)

    def _fastest_vendor(self) -> tuple[Vendor, Baseline] | None:
        vendors = self._insist(DescribeBaseline())
        best: tuple[Vendor, Baseline] | None = None
        share_s = max(LIBRARY_S, LIBRARY_SHARE * self.deadline.planned_s)
        until_s, took_s = self.deadline.elapsed_s + share_s, 0.0
        for vendor in vendors if isinstance(vendors, tuple) else ():
            begun_s = self.deadline.elapsed_s
            # Who is cut off costs a process, and operands that are drawn again.
            if min(until_s - begun_s, self.effort.timeout_s) <= max(vendor.about_s, took_s):
                continue
            turn = self._visit(vendor, "ieee", self.effort.budget_s, most_s=until_s - begun_s)
            took_s = self.deadline.elapsed_s - begun_s
            if isinstance(turn, Measurement):
                continue
            found = Baseline(
                vendor.name,
                turn.median_s,
                turn.interval_s,
                vendor.threads,
                vendor.details,
                error_norm=turn.observed.get(ERROR_NORM),
            )
            left_s = until_s - self.deadline.elapsed_s
            if scatter("the library", turn.median_s, turn.interval_s) and left_s > took_s:
                again = self._visit(vendor, "ieee", self.effort.budget_s, most_s=left_s)
                found = faster(found, again)
            if best is None or found.median_s < best[1].median_s:
                best = vendor, found
        return best

    @property
    def _second_look_s(self) -> float:
        return SECOND_LOOK_SHARE * self.effort.budget_s

    def _accuracy(self, candidate: Candidate) -> str:
        """The accuracy class that a candidate promises."""
        return self._families[candidate.family].accuracy

    def _valid(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return [candidate for candidate in candidates if self._rejection(candidate) is None]

    def _rejection(self, candidate: Candidate) -> str | None:
        """Why a candidate is not valid for the problem on the device; None where it is."""
        name = candidate.family
        if name not in self._spaces:
            self._spaces[name] = self._families[name].space(self._problem, self.device.limits)
        rejection = self._spaces[name].rejection(candidate.configuration)
        return None if rejection is None else str(rejection)

    def _prepared(self, candidate: Candidate) -> Prepared | Measurement:
        """The compiled candidate, or the measurement that says why there is none."""
        rejection = self._rejection(candidate)
        if rejection is not None:
            return Measurement(Outcome.REJECTED, reason=rejection)
        self.prepare([candidate])
        return self.backend.prepared(candidate, self.deadline, self.report)

    def _measure(
        self, candidate: Candidate, prepared: Prepared, best_s: float | None, budget_s: float
    ) -> Measurement:
        accuracy = self._accuracy(candidate)
        request = Evaluate(prepared.program, accuracy, best_s, budget_s, self.samples)
        found = _measurement(self._insist(request))
        found = replace(found, details={**found.details, **prepared.details})
        if found.median_s is None:
            return found
        observed = {
            name: value for name, value in found.details.items() if not isinstance(value, str)
        }
        interval_s = found.interval_s or (found.median_s, found.median_s)
        series = Series(found.median_s, interval_s, found.repeats, observed)
        return found.scored(self.effort.objective.name, self._score(series, found.error))

    def _score(self, series: Series, error: float | None) -> float | None:
        """The score of calls of a kernel with this verified error; None is the library's."""
        observed = {**series.observed, "flops": float(self._problem.flops)}
        if error is not None:
            observed["error"] = error
        return self.effort.objective.score(series, observed)

    def _visit(
        self,
        program: Program,
        accuracy: str,
        budget_s: float,
        *,
        sustained: bool = False,
        most_s: float = math.inf,
    ) -> Series | Measurement:
        """One turn of a program or a vendor library, which is cut off after `most_s` seconds."""
        visit = Visit(program, accuracy, budget_s, sustained)
        reply = self._insist(visit, min(most_s, self.effort.timeout_s))
        return reply if isinstance(reply, Series) else _measurement(reply)

    def _confirm(self, program: Program, accuracy: str, seed: int) -> Measurement:
        """The verification of a finalist by calls on fresh operands, all of them checked."""
        request = Confirm(program, accuracy, CONFIRM_SHARE * self.effort.finals_s)
        # A fresh process has its first operands: they are drawn again before a second try.
        for _ in range(2):
            reply = self._insist(Redraw(seed), PREPARE_TIMEOUT_S)
            if reply is None:
                reply = self._ask(request)
            if not _is_innocent(reply):
                break
        return _measurement(reply)

    def _insist(self, request: Request, timeout_s: float | None = None) -> Any:
        """The reply; a second one, of a fresh process, where another may be to blame."""
        reply = self._ask(request, timeout_s)
        return self._ask(request, timeout_s) if _is_innocent(reply) else reply

    def _ask(self, request: Request, timeout_s: float | None = None) -> Any:
        limit_s = timeout_s or self.effort.timeout_s
        with self.backend.turns.take(self.deadline):
            reply = self.backend.ask(request, limit_s, self.deadline)
        if not isinstance(reply, Failure) and not answers(reply, request):
            told = f"answered {type(request).__name__} with {reply!r:.80}"
            reply = Failure(FailureKind.DIED, told, innocent=True)
            self.backend.renew()
        if isinstance(reply, Evaluated) and reply.lost:
            self.backend.renew()
        return reply


def _is_innocent(reply: object) -> bool:
    """True if a fresh process, in which nothing else has run, may answer better."""
    match reply:
        case Evaluated():
            return reply.blameless
        case Failure():
            return reply.innocent
    return False


def _measurement(reply: Evaluated | Failure) -> Measurement:
    return reply.judge() if isinstance(reply, Failure) else reply.measurement
