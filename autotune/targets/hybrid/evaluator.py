"""The hybrid evaluator: candidates become programs, which one process that owns the GPUs runs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from autotune.core.deadline import Deadline
from autotune.core.measurement import Measurement, Outcome
from autotune.families.local import local_problem
from autotune.families.rendering import render
from autotune.measuring.evaluator import Baseline, Effort, Finals, Report, silent
from autotune.measuring.processes import PREPARE_TIMEOUT_S, Failure, FailureKind, WorkerProcess
from autotune.measuring.rounds import Redraw, Series, faster, hold_rounds, judge_failure
from autotune.measuring.validity import Validity
from autotune.targets.hybrid.loading import HybridProgram
from autotune.targets.hybrid.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Request,
    Setup,
    Visit,
)
from autotune.targets.hybrid.products import LocalKernel
from autotune.targets.hybrid.worker import Evaluated, measurement_worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Gemm

ChooseLocal: TypeAlias = Callable[["Gemm"], LocalKernel]
"""The kernel that a GPU multiplies its part of a problem with."""

DEFAULT_EFFORT = Effort(budget_s=0.5, timeout_s=60.0, finals_s=5.0)

SECOND_LOOK_S = 0.05
"""Seconds of timed calls when a finalist is verified again; the rounds time it."""


class HybridEvaluator:
    """Evaluates candidates of hybrid families for one problem (see `Evaluator`).

    Args:
        problem: what is computed; its layout is "nn".
        families: by name; candidates name them.
        device: the GPUs, as `device_of` gives them.
        programs: where emitted programs go.
        operands: where the operands are: "host", "device" or "blocks".
        choose_local: which kernel a GPU multiplies with.
        effort: how long and how exactly to measure.
        seed: seeds the operands.
    """

    def __init__(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        operands: str,
        choose_local: ChooseLocal,
        *,
        effort: Effort | None = None,
        seed: int = 0,
    ) -> None:
        self.device = device
        self.deadline = Deadline()
        self.report: Report = silent
        self.batch = 1
        self._problem = problem
        self._families = families
        self._effort = effort or DEFAULT_EFFORT
        self._choose_local = functools.cache(choose_local)
        self._validity = Validity(families, problem, device.limits)
        self._baseline: Baseline | None = None
        gpus = device.limits.names()["gpus"]
        setup = Setup(problem, operands, gpus, self._effort, programs.folder, seed)
        self._worker = WorkerProcess(measurement_worker, setup)
        self._fresh = itertools.count(seed + 1)

    @property
    def compiles_ahead(self) -> bool:
        """False: programs are text, and the kernel in them was compiled when it was tuned."""
        return False

    def is_ready(self, candidate: Candidate) -> bool:
        """Always: there is nothing to compile."""
        return True

    @property
    def finals_s(self) -> float:
        """The rounds: the worker that has measured goes on."""
        return self._effort.finals_s

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Start the worker: operands and references of a large problem take their time."""
        self._worker.spawn()

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Have the worker verify and time a candidate; see `Evaluator.evaluate`."""
        return self._evaluate(candidate, best_s, self._effort.budget_s)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify, time in rounds (every candidate, then the baseline), and verify again."""
        measurements = [self._evaluate(each, None, SECOND_LOOK_S) for each in candidates]
        baseline = self.baseline()
        visits = {
            position: functools.partial(self._visit, each)
            for position, each in enumerate(candidates)
            if measurements[position].ok
        }
        of_baseline = None if baseline is None else functools.partial(self._visit, None)
        seed = next(self._fresh)
        return hold_rounds(
            measurements,
            visits,
            baseline,
            of_baseline,
            self._effort.finals_s,
            lambda position: self._confirm(candidates[position], seed),
            deadline=self.deadline,
            report=self.report,
        )

    def baseline(self) -> Baseline | None:
        """On the host's operands cuBLASXt, on others cuBLAS on one GPU; None without it."""
        if self._baseline is None:
            name = self._ask(DescribeBaseline())
            if not isinstance(name, str):
                return None
            turn = self._visit(None, self._effort.budget_s)
            if isinstance(turn, Failure):
                return None
            self._baseline = Baseline(
                name=name,
                median_s=turn.median_s,
                interval_s=turn.interval_s,
                threads=1,
                details={"library": name.partition(" ")[0]},
            )
        return self._baseline

    def check_baseline(self) -> Baseline | None:
        """The library once more; see `Evaluator.check_baseline`."""
        if self._baseline is not None:
            self._baseline = faster(self._baseline, self._visit(None, SECOND_LOOK_S))
        return self._baseline

    def binary(self, candidate: Candidate) -> None:
        """Nothing: programs are text, and the kernel in them has a record of its own."""

    def close(self) -> None:
        """End the worker and free the GPUs."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _evaluate(
        self, candidate: Candidate, best_s: float | None, budget_s: float
    ) -> Measurement:
        rejection = self._validity.rejection(candidate)
        if rejection is not None:
            return Measurement(Outcome.REJECTED, reason=rejection)
        return self._measure(Evaluate(*self._program(candidate), best_s, budget_s))

    def _visit(self, candidate: Candidate | None, budget_s: float) -> Series | Failure:
        if candidate is None:
            request = Visit(None, "ieee", budget_s)
        else:
            request = Visit(*self._program(candidate), budget_s)
        reply: Series | Evaluated | Failure = self._ask(request)
        if isinstance(reply, Evaluated):
            return Failure(FailureKind.WRONG, reply.measurement.reason)
        return reply

    def _confirm(self, candidate: Candidate, seed: int) -> Measurement:
        """What calls on fresh operands say of a finalist."""
        redrawn = self._ask(Redraw(seed), PREPARE_TIMEOUT_S)
        if isinstance(redrawn, Failure):
            return judge_failure(redrawn)
        return self._measure(Confirm(*self._program(candidate)))

    def _measure(self, request: Evaluate | Confirm) -> Measurement:
        reply: Evaluated | Failure = self._ask(request)
        return judge_failure(reply) if isinstance(reply, Failure) else reply.measurement

    def _ask(self, request: Request, timeout_s: float | None = None) -> Any:
        reply = self._worker.call(request, timeout_s or self._effort.timeout_s, self.deadline)
        if isinstance(reply, Failure) or (isinstance(reply, Evaluated) and reply.lost):
            self._worker.close(grace_s=0)  # a context may be dead, or memory damaged
        return reply

    def _program(self, candidate: Candidate) -> tuple[HybridProgram, str]:
        """A candidate's program, and the accuracy class that it promises."""
        family = self._families[candidate.family]
        source = render(family, candidate.configuration, dtype=self._problem.dtype)
        wanted = local_problem(family, candidate.configuration, self._problem, self.device.limits)
        return HybridProgram(source, family.name, self._choose_local(wanted)), family.accuracy
