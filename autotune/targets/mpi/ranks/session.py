"""What every rank does with a request: all handle the same one, in step."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import threadpoolctl

from autotune.core.errors import AutotuneError, CompileError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.program_cache import ProgramCache
from autotune.measuring.racing import Race
from autotune.measuring.rounds import Redraw, Series
from autotune.measuring.timing import time_calls, timed
from autotune.measuring.verdicts import AT_THE_END, CHANGED, IN_TURN, REPEATED, wrong_result
from autotune.operations.references import Case
from autotune.operations.verification import ProductCheck, Verdict
from autotune.targets.cpu.baseline import numpy_blas
from autotune.targets.cpu.messages import Evaluated
from autotune.targets.mpi.loading import MakePlan, load_product, load_program
from autotune.targets.mpi.messages import (
    Confirm,
    DescribeBlas,
    Evaluate,
    MeasureNetwork,
    MpiProgram,
    Refused,
    Request,
    Setup,
    Visit,
    VisitGpu,
    VisitNumpy,
)
from autotune.targets.mpi.ranks.network import measure_network
from autotune.targets.mpi.ranks.operands import PlacedCheck, Plan
from autotune.targets.mpi.ranks.timing import time_together, timed_together

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.targets.mpi.gpu.rank import GpuRank

CASES = (
    Case(1, 7, 1, alpha=-1.5, beta=2.0),
    Case(5, 2, 30, beta=1.0),
    Case(65, 127, 63, alpha=1.25, distribution="normal"),
)
"""Sizes that no grid divides, with fewer rows or columns than most grids have."""

CONTENTS = 2
"""Contents that the problem's operands take in turns: one uniform, one normal."""

FIRST_RUNS = 5
"""Runs after which a candidate may be abandoned: processes are held up by others more often than
one is, and the first run also opens connections."""


class Session:
    """One rank's part in answering requests. What `handle` returns on rank 0 is the answer.

    Args:
        comm: the ranks; all of them handle every request, in the same order.
    """

    def __init__(self, comm: Intracomm) -> None:
        self._comm = comm
        self._work: _Work | None = None

    def handle(self, request: Request) -> object:
        """Do what is asked."""
        match request:
            case Setup():
                self._work = _Work(self._comm, request)
                return None
            case DescribeBlas():
                return numpy_blas()
            case MeasureNetwork():
                return measure_network(self._comm)
            case Evaluate() if self._work is not None:
                return self._work.evaluate(request)
            case Visit() if self._work is not None:
                return self._work.visit(request)
            case Redraw() if self._work is not None:
                self._work.redraw(request.seed)
                return None
            case Confirm() if self._work is not None:
                return self._work.confirm(request)
            case VisitNumpy() if self._work is not None:
                return self._work.visit_numpy(request)
            case VisitGpu() if self._work is not None:
                return self._work.visit_gpu(request)
        return Refused(f"{type(request).__name__} came before Setup")


class _Work:
    """One problem: its operands, on rank 0, and the plans that multiply them."""

    def __init__(self, comm: Intracomm, setup: Setup) -> None:
        self._comm = comm
        self._setup = setup
        self._programs = ProgramCache(setup.programs)
        problem = setup.problem
        self._large = Case(problem.m, problem.n, problem.k)
        self._checks: dict[Case, ProductCheck] = {}
        if comm.rank == 0:
            rng = np.random.default_rng(setup.seed)
            for case in CASES:
                self._checks[case] = ProductCheck(case, problem, rng)
            self._checks[self._large] = ProductCheck(self._large, problem, rng, others=("normal",))
        self._seed = setup.seed

    def evaluate(self, request: Evaluate) -> Evaluated:
        """Correct first, then fast; see `autotune.measuring.evaluator.Evaluator.evaluate`."""
        make_plan = self._load(request.program)
        if isinstance(make_plan, str):
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=make_plan))
        worst = 0.0
        for case in CASES:
            with _Placed(self, case, make_plan) as placed:
                placed.prepare()
                placed.call()
                verdict = self._judge(placed, case, request.accuracy)
            if not verdict.right:
                return _wrong(verdict)
            worst = max(worst, verdict.error)
        with _Placed(self, self._large, make_plan) as placed:
            return self._time(placed, request, worst)

    def visit(self, request: Visit) -> Series | Evaluated:
        """Take one turn, on other operands than the turn before; its last call is checked."""
        effort = self._setup.effort
        make_plan = self._load(request.program)
        if isinstance(make_plan, str):
            raise CompileError(make_plan)
        with _Placed(self, self._large, make_plan) as placed:
            placed.turn()
            placed.prepare()
            timed_together(self._comm, placed.call)
            series = time_together(
                self._comm,
                placed.call,
                budget_s=request.budget_s,
                interval=effort.interval,
                deadline_s=request.budget_s,
                enough=lambda low_s: False,
            )
            verdict = self._judge(placed, self._large, request.accuracy)
        return series if verdict.right else _wrong(verdict, IN_TURN)

    def redraw(self, seed: int) -> None:
        """Change the problem's operands, unless they are of this seed."""
        check = self._checks.get(self._large)
        if check is not None and seed != self._seed:
            check.redraw(np.random.default_rng(seed))
        self._seed = seed

    def confirm(self, request: Confirm) -> Evaluated:
        """Verify again, one call on each content of the operands."""
        make_plan = self._load(request.program)
        if isinstance(make_plan, str):
            raise CompileError(make_plan)
        worst = 0.0
        with _Placed(self, self._large, make_plan) as placed:
            for _ in range(CONTENTS):
                verdict = self._call_on_others(placed, request.accuracy)
                if not verdict.right:
                    return _wrong(verdict, AT_THE_END)
                worst = max(worst, verdict.error)
        details: dict[str, float | int | str] = {"checked_calls": CONTENTS}
        return Evaluated(Measurement(Outcome.OK, error=worst, details=details))

    def placed(self, case: Case, plan: Plan, gpu: GpuRank | None) -> PlacedCheck:
        """A case's operands where a plan takes them."""
        check, setup = self._checks.get(case), self._setup
        dtype = setup.problem.dtype
        return PlacedCheck(self._comm, case, check, plan, setup.distributed, dtype, gpu)

    @property
    def comm(self) -> Intracomm:
        """The ranks."""
        return self._comm

    def _time(self, placed: PlacedCheck, request: Evaluate, worst: float) -> Evaluated:
        effort = self._setup.effort
        race = Race(request.best_s, effort.abandon_ratio)
        placed.prepare()
        times = [timed_together(self._comm, placed.call)]
        verdict = self._judge(placed, self._large, request.accuracy)
        if not verdict.right:
            return _wrong(verdict)
        worst = max(worst, verdict.error)
        runs = FIRST_RUNS if times[0] < effort.budget_s / FIRST_RUNS else 1
        while race.lost(times):
            if len(times) == runs:
                reason = race.reason(times)
                return Evaluated(
                    Measurement(Outcome.ABANDONED, min(times), None, runs, worst, reason)
                )
            times.append(timed_together(self._comm, placed.call))
        series = time_together(
            self._comm,
            placed.call,
            budget_s=request.budget_s,
            interval=effort.interval,
            deadline_s=max(0.0, effort.timeout_s / 2 - times[0]),
            enough=race.behind,
        )
        # A message that overtakes another shows now and then, not in every call.
        verdict = self._judge(placed, self._large, request.accuracy)
        if not verdict.right:
            return _wrong(verdict, REPEATED)
        verdict = self._call_on_others(placed, request.accuracy)
        if not verdict.right:
            return _wrong(verdict, CHANGED)
        worst = max(worst, verdict.error)
        return Evaluated(
            Measurement(Outcome.OK, series.median_s, series.interval_s, series.calls, worst)
        )

    def _call_on_others(self, placed: PlacedCheck, accuracy: str) -> Verdict:
        """A call on the next content of the operands, judged."""
        placed.turn()
        placed.prepare()
        placed.call()
        return self._judge(placed, self._large, accuracy)

    def _load(self, program: MpiProgram) -> MakePlan | str:
        """Loads a program on every rank; or why it cannot be, on any of them."""
        error, make_plan = "", None
        try:
            make_plan = load_program(program, self._programs, self._comm)
        except AutotuneError as refused:
            error = str(refused)
        errors = [text for text in self._comm.allgather(error) if text]
        return errors[0] if errors or make_plan is None else make_plan

    def _judge(self, placed: PlacedCheck, case: Case, accuracy: str) -> Verdict:
        """Rank 0's judgement, on every rank."""
        placed.collect()
        check = self._checks.get(case)
        verdict: Verdict = self._comm.bcast(None if check is None else check.judge(accuracy), 0)
        return verdict

    def visit_numpy(self, request: VisitNumpy) -> Series:
        """Take one turn of the baseline."""
        check = self._checks.get(self._large)
        if check is None:  # the other ranks go back to sleep
            return Series(math.nan, (math.nan, math.nan), 0)
        call = functools.partial(np.matmul, check.a, check.b, out=check.c)
        with threadpoolctl.threadpool_limits(limits=request.threads, user_api="blas"):
            first_s = timed(call)
            return time_calls(
                call,
                expected_s=first_s,
                budget_s=request.budget_s,
                interval=self._setup.effort.interval,
                deadline_s=request.budget_s,
            )

    def visit_gpu(self, request: VisitGpu) -> Series:
        """Take one turn of what one GPU does alone."""
        gpu = load_product(request.local, self._programs, self._comm)
        check = self._checks.get(self._large)
        if check is None:  # the other ranks go back to sleep
            return Series(math.nan, (math.nan, math.nan), 0)
        a, b, c = map(gpu.upload, (check.a, check.b, check.c))

        def call() -> None:
            gpu(a, b, c)
            gpu.synchronize()

        call()
        return time_calls(
            call,
            expected_s=timed(call),
            budget_s=request.budget_s,
            interval=self._setup.effort.interval,
            deadline_s=request.budget_s,
        )


class _Placed:
    """A plan made for a case, and freed again by all ranks."""

    def __init__(self, work: _Work, case: Case, make_plan: MakePlan) -> None:
        self._work = work
        self._case = case
        self._gpu = make_plan.gpu
        self._plan = make_plan(work.comm, *case.sizes)

    def __enter__(self) -> PlacedCheck:
        return self._work.placed(self._case, self._plan, self._gpu)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:  # what fails on one rank is not met by the others
            self._plan.free()


def _wrong(verdict: Verdict, when: str = "") -> Evaluated:
    return Evaluated(wrong_result(verdict, when), damaged=verdict.damaged)
