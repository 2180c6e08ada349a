"""The evaluator of every target: what is asked when, and what the answers mean."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from autotune.core.deadline import Deadline
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.backend import Backend, Prepared
from autotune.measuring.evaluator import Baseline, Effort, Finals, Report, silent
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Program,
    Redraw,
    Request,
    Series,
    Vendor,
    Visit,
    answers,
)
from autotune.measuring.noise import scatter
from autotune.measuring.processes import PREPARE_TIMEOUT_S, Failure, FailureKind
from autotune.measuring.rounds import CONFIRM_SHARE, faster, hold_rounds
from autotune.measuring.validity import Validity
from autotune.measuring.verdicts import judge_failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.operations.problem import Problem

SECOND_LOOK_SHARE = 1 / 6
"""Of the seconds of timed calls per trial, those for a finalist that is verified again, since the
rounds time it, and for the baseline looked at again."""


B = TypeVar("B", bound=Backend)


class TrialEvaluator(Generic[B]):
    """Evaluates candidates for one problem on one device (see `Evaluator`).

    Args:
        problem: what is computed.
        families: by name; candidates name them.
        device: kernels are measured on.
        backend: what the target adds.
        effort: how long and how exactly to measure.
        seed: seeded the operands; those of finals are drawn by the numbers after it.

    Attributes:
        device: the same.
        deadline: of the run that it works for.
        report: hears of compiling and of finals.
        batch: candidates to have prepared at a time.
        backend: the same.
    """

    def __init__(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        backend: B,
        effort: Effort,
        seed: int,
    ) -> None:
        self.device = device
        self.deadline = Deadline()
        self.report: Report = silent
        self.batch = backend.batch
        self._problem = problem
        self._families = families
        self.backend = backend
        self._effort = effort
        self._fresh = itertools.count(seed + 1)
        self._validity = Validity(families, problem, device.limits)
        self._measured: dict[str, tuple[Candidate, Measurement]] = {}

    @property
    def compiles_ahead(self) -> bool:
        """Whether compilers work while a candidate is measured."""
        return self.backend.compiles_ahead

    @property
    def finals_s(self) -> float:
        """The rounds, and what must be started for them."""
        return self._effort.finals_s + self.backend.start_s

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a prepared candidate has been compiled."""
        return self.backend.is_ready(candidate)

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile the valid ones that have not been compiled; see `Evaluator.prepare`."""
        valid = [each for each in candidates if self._validity.rejection(each) is None]
        self.backend.prepare(valid, self.deadline, self.report)

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Compile if need be, verify, then time; see `Evaluator.evaluate`.

        A candidate that was compiled to what another was gets that one's measurement.
        """
        prepared = self._prepared(candidate)
        if isinstance(prepared, Measurement):
            return prepared
        digest = prepared.program.digest
        twin, known = self._measured.get(digest, (candidate, None))
        if known is not None and twin != candidate:
            details = {**known.details, **prepared.details, "same_binary_as": str(twin)}
            return replace(known, details=details)
        measurement = self._measure(candidate, prepared, best_s, self._effort.budget_s)
        self._measured[digest] = (candidate, measurement)
        return measurement

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify, time in rounds (every candidate, then the baseline), and verify again.

        A median is over the medians of the rounds, whose times are independent as those of
        consecutive calls are not.
        """
        self.backend.begin_finals(self.deadline)
        self.prepare(candidates)
        found = [self._prepared(each) for each in candidates]
        measurements = [
            prepared
            if isinstance(prepared, Measurement)
            else self._measure(candidate, prepared, None, self._second_look_s)
            for candidate, prepared in zip(candidates, found, strict=True)
        ]
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
        vendor = self.backend.baselines.get(self._problem)
        seed = next(self._fresh)
        return hold_rounds(
            measurements,
            visits,
            baseline,
            None if vendor is None else functools.partial(self._visit, vendor[0], "ieee"),
            self._effort.finals_s,
            lambda position: self._confirm(*finalists[position], seed),
            deadline=self.deadline,
            report=self.report,
        )

    def baseline(self) -> Baseline | None:
        """The vendor library on the same operands, as it is fastest, measured once."""
        known = self.backend.baselines.get(self._problem) or self._fastest_vendor()
        if known is None:
            return None
        self.backend.baselines[self._problem] = known
        return known[1]

    def check_baseline(self) -> Baseline | None:
        """The vendor library once more; see `Evaluator.check_baseline`."""
        known = self.backend.baselines.get(self._problem)
        if known is None:
            return None
        vendor, baseline = known
        baseline = faster(baseline, self._visit(vendor, "ieee", self._second_look_s))
        self.backend.baselines[self._problem] = vendor, baseline
        return baseline

    def binary(self, candidate: Candidate) -> Binary | None:
        """What a measured candidate was compiled to; None where nothing can be kept of it."""
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

    def _fastest_vendor(self) -> tuple[Vendor, Baseline] | None:
        vendors = self._insist(DescribeBaseline())
        best: tuple[Vendor, Baseline] | None = None
        for vendor in vendors if isinstance(vendors, tuple) else ():
            turn = self._visit(vendor, "ieee", self._effort.budget_s)
            if isinstance(turn, Measurement):
                continue
            found = Baseline(
                vendor.name, turn.median_s, turn.interval_s, vendor.threads, vendor.details
            )
            if scatter("the library", turn.median_s, turn.interval_s):
                found = faster(found, self._visit(vendor, "ieee", self._effort.budget_s))
            if best is None or found.median_s < best[1].median_s:
                best = vendor, found
        return best

    @property
    def _second_look_s(self) -> float:
        return SECOND_LOOK_SHARE * self._effort.budget_s

    def _accuracy(self, candidate: Candidate) -> str:
        """The accuracy class that a candidate promises."""
        return self._families[candidate.family].accuracy

    def _prepared(self, candidate: Candidate) -> Prepared | Measurement:
        """What a candidate was compiled to, or the measurement that says why it was not."""
        rejection = self._validity.rejection(candidate)
        if rejection is not None:
            return Measurement(Outcome.REJECTED, reason=rejection)
        self.backend.prepare([candidate], self.deadline, self.report)
        return self.backend.prepared(candidate, self.deadline, self.report)

    def _measure(
        self, candidate: Candidate, prepared: Prepared, best_s: float | None, budget_s: float
    ) -> Measurement:
        request = Evaluate(prepared.program, self._accuracy(candidate), best_s, budget_s)
        measurement = _measurement(self._insist(request))
        return replace(measurement, details={**measurement.details, **prepared.details})

    def _visit(self, program: Program, accuracy: str, budget_s: float) -> Series | Measurement:
        """One turn of a program or a vendor library."""
        reply = self._insist(Visit(program, accuracy, budget_s))
        return reply if isinstance(reply, Series) else _measurement(reply)

    def _confirm(self, program: Program, accuracy: str, seed: int) -> Measurement:
        """What calls on fresh operands, all of them checked, say of a finalist."""
        request = Confirm(program, accuracy, CONFIRM_SHARE * self._effort.finals_s)
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
        reply = self.backend.ask(request, timeout_s or self._effort.timeout_s, self.deadline)
        if not isinstance(reply, Failure) and not answers(reply, request):
            told = f"answered {type(request).__name__} with {reply!r:.80}"
            reply = Failure(FailureKind.DIED, told, innocent=True)
            self.backend.renew()
        if isinstance(reply, Evaluated) and reply.lost:
            self.backend.renew()
        return reply


def _is_innocent(reply: object) -> bool:
    """Whether a fresh process, in which nothing else has run, may answer better."""
    match reply:
        case Evaluated():
            return reply.blameless
        case Failure():
            return reply.innocent
    return False


def _measurement(reply: Evaluated | Failure) -> Measurement:
    return judge_failure(reply) if isinstance(reply, Failure) else reply.measurement
