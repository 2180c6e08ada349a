"""Programs that drive GPUs by host threads: judged before operands of the host or of the GPUs."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import CompileError, LaunchError
from autotune.core.measurement import Measurement, Outcome
from autotune.distributed.grid import Span
from autotune.distributed.hybrid.baseline import Library, open_library
from autotune.distributed.hybrid.machine import (
    ChooseLocal,
    HybridProgram,
    Machine,
    Plan,
    emit_program,
    machine_with,
    make_plan,
)
from autotune.distributed.machine import LocalKernel
from autotune.families.program_cache import ProgramCache
from autotune.gpu.driver import describe, driver_errors
from autotune.gpu.measure.memory import GuardedMatrix
from autotune.gpu.nvidia.cublas import CublasError
from autotune.measuring.backend import Prepared, Processes, WorkerBackend
from autotune.measuring.effort import Effort, Report, Work
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.harness import OTHER_CONTENTS, ClockedBench, FirstRuns
from autotune.measuring.messages import Evaluated, Program, Reply, Vendor
from autotune.measuring.sharing import SharedWorker, Subjects
from autotune.measuring.timing import UNKNOWN
from autotune.measuring.trial import Trials
from autotune.operations.cases import PRODUCT_CASES, Case, special_cases
from autotune.operations.problem import Gemm, only_gemm
from autotune.operations.references import Matrix
from autotune.operations.verification import ProductCheck, Verdict

MakeMachine: TypeAlias = Callable[["LocalKernel"], "Machine"]
"""The GPUs, with the kernel that each of them multiplies with."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The circumstances of a harness, whatever the problem.

    Attributes:
        operands: "host", "device" or "blocks".
        devices: GPUs to use at most.
        programs: folder of emitted programs and binaries.
    """

    operands: str
    devices: int
    effort: Effort
    programs: Path
    seed: int


def measurement_worker(setup: Setup, problem: Gemm) -> Subjects:
    """Entry of the worker that measures: owns the GPUs and the operands of a problem."""
    programs = ProgramCache(setup.programs)

    def measuring(problem: Gemm) -> Trials:
        harness = HybridHarness(
            problem,
            setup,
            lambda local: machine_with(local, setup.devices, programs),
            lambda check: open_library(check, problem.dtype, setup.operands, setup.devices),
            driver_errors(),
        )
        return Trials(harness, setup.effort)

    return Subjects(measuring, problem, weigh=lambda subject: 1, limit=1)


class HybridHarness:
    """Operands of a problem, where programs take them; see `autotune.measuring.harness.Harness`.

    Args:
        problem: what is computed; its layout is "nn".
        setup: its circumstances.
        make_machine: opens the GPUs.
        find_library: opens the library to compare with, on a check's operands.
        errors: exceptions of the GPUs' driver.
    """

    first_runs = FirstRuns()
    ceiling = UNKNOWN

    def __init__(
        self,
        problem: Gemm,
        setup: Setup,
        make_machine: MakeMachine,
        find_library: Callable[[ProductCheck], Library],
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self.problem = problem
        self.setup = setup
        self._programs = ProgramCache(setup.programs)
        self._machine = functools.cache(make_machine)
        self._errors = errors
        rng = np.random.default_rng(setup.seed)
        cases = (*PRODUCT_CASES, *special_cases(problem, PRODUCT_CASES))
        self.small = [ProductCheck(case, problem, rng) for case in cases]
        large = Case(problem.m, problem.n, problem.k)
        self.large = ProductCheck(large, problem, rng, others=OTHER_CONTENTS)
        self._seed = setup.seed
        self._placed: tuple[list[tuple[Span, Span]], PlacedCheck] | None = None
        self._kept: dict[str, _Loaded] = {}

        @functools.cache
        def library() -> Library:
            opened = find_library(self.large)
            opened.call()  # loads code and takes memory, for which a turn is too short
            return opened

        self._library = library

    def now(self) -> float:
        """Seconds from a fixed point."""
        return time.monotonic()

    @contextlib.contextmanager
    def load(self, program: Program, *, keep: bool) -> Iterator[_Loaded]:
        """Load a program, whose plans are made when they are asked for."""
        assert isinstance(program, HybridProgram)
        if not keep:  # the rounds are over
            for loaded in self._kept.values():
                loaded.free()
            self._kept.clear()
        loaded = self._kept.get(program.digest) or _Loaded(self, program)
        if keep:
            self._kept[program.digest] = loaded
        yield loaded  # after an error nothing is given back: the process ends
        if not keep:
            loaded.free()

    def vendor(self, vendor: Vendor) -> AbstractContextManager[ClockedBench]:
        """The library, on operands of its own.

        Raises:
            CublasError: there is none that works.
        """
        bench = _StillBench(self.large, self._library().call)
        return contextlib.nullcontext(bench)

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        if seed != self._seed:
            self._seed = seed
            rng = np.random.default_rng(seed)
            for check in (*self.small, self.large):
                check.redraw(rng)
            if self._placed is not None:
                self._placed[1].store()

    def vendors(self) -> tuple[Vendor, ...]:
        """On the host's operands cuBLASXt, on others cuBLAS on one GPU."""
        failures: tuple[type[Exception], ...] = (CublasError, *self._errors)
        try:
            name = self._library().name
        except failures:
            return ()
        return (Vendor(name, 1, {"library": name.partition(" ")[0]}),)

    def failure(self, error: Exception) -> Evaluated | None:
        """Whatever is raised is the program's fault; its threads may still be at work."""
        if isinstance(error, CompileError):
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=str(error)))
        if isinstance(error, (LaunchError, CublasError)):
            reason = str(error)
        elif isinstance(error, self._errors):
            reason = describe(error)
        else:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        lost = not isinstance(error, CublasError)
        return Evaluated(Measurement(Outcome.LAUNCH_FAILED, reason=reason), lost=lost)

    def plan(self, program: HybridProgram, case: Case) -> Plan:
        """A program's plan for a case's sizes."""
        machine = self._machine(program.local)
        return make_plan(program, machine, self._programs, *case.sizes)

    def place(self, check: ProductCheck, plan: Plan) -> PlacedCheck:
        """A check's operands where a plan takes them."""
        return PlacedCheck(check, self.problem.dtype, self.setup.operands, self._spans(plan))

    def place_problem(self, plan: Plan) -> PlacedCheck:
        """The problem's own operands where a plan takes them; they stay for the next one."""
        spans = self._spans(plan)
        if self._placed is None or self._placed[0] != spans:
            if self._placed is not None:
                self._placed[1].free()
            self._placed = spans, self.place(self.large, plan)
        return self._placed[1]

    def bench(self, placed: PlacedCheck, plan: Plan) -> ClockedBench:
        """A plan before placed operands."""
        return ClockedBench(placed, functools.partial(placed.call, plan))

    def _spans(self, plan: Plan) -> list[tuple[Span, Span]]:
        return plan.blocks() if self.setup.operands == "blocks" else []


class _Loaded:
    """A program before the operands of a harness."""

    def __init__(self, harness: HybridHarness, program: HybridProgram) -> None:
        self._harness = harness
        self._program = program
        self._plan: Plan | None = None

    @property
    def cases(self) -> Sequence[ProductCheck]:
        return self._harness.small

    @contextlib.contextmanager
    def place(self, case: ProductCheck) -> Iterator[ClockedBench]:
        plan = self._harness.plan(self._program, case.case)
        placed = self._harness.place(case, plan)
        yield self._harness.bench(placed, plan)
        placed.free()
        plan.free()

    def problem(self) -> AbstractContextManager[ClockedBench]:
        if self._plan is None:
            self._plan = self._harness.plan(self._program, self._harness.large.case)
        placed = self._harness.place_problem(self._plan)
        return contextlib.nullcontext(self._harness.bench(placed, self._plan))

    def probe(self, best_s: float | None) -> None:
        """None: what a program does besides multiplying does not shrink with the sizes."""

    def free(self) -> None:
        if self._plan is not None:
            self._plan.free()


class _StillBench(ClockedBench):
    """Calls on operands that keep their content: others judge by the one that is placed."""

    def turn(self) -> None:
        """Nothing."""


class GuardedBlock(GuardedMatrix):
    """Rows of a matrix, in a GPU's memory, with so many guard elements after each."""

    def __init__(self, device: int, rows: Span, columns: int, dtype: str, padding: int) -> None:
        super().__init__(device, (rows[1] - rows[0], columns), dtype, padding)
        self._rows = slice(*rows)

    def store(self, whole: Matrix) -> None:
        """Take its rows of a matrix of the host; all around them becomes guard."""
        self.write(whole[self._rows])

    def load(self, whole: Matrix) -> bool:
        """Give a matrix of the host its rows; True if the guards are what they were."""
        whole[self._rows], intact = self.read()
        return intact


class PlacedCheck:
    """A check whose operands are where a plan takes them.

    Args:
        check: the operands on the host, and what C must be.
        dtype: element type.
        operands: "host", "device" or "blocks".
        spans: with blocks, for every GPU the rows of A and C, and those of B.
    """

    def __init__(
        self, check: ProductCheck, dtype: str, operands: str, spans: list[tuple[Span, Span]]
    ) -> None:
        self._check = check
        self._operands = operands
        case = check.case
        m, n, k = case.sizes
        if operands == "device":
            spans = [((0, m), (0, n))]
        elif operands == "host":
            spans = []
        self._a, self._b, self._c = (
            [
                GuardedBlock(device, span[which], columns, dtype, case.padding)
                for device, span in enumerate(spans)
            ]
            for which, columns in ((0, n), (1, k), (0, k))
        )
        self.store()

    @property
    def contents(self) -> int:
        """Number of contents that A and B have in turns."""
        return self._check.contents

    def store(self) -> None:
        """Put A and B where they belong."""
        for blocks, whole in ((self._a, self._check.a), (self._b, self._check.b)):
            for block in blocks:
                block.store(whole)

    def turn(self) -> None:
        """Put the next content of A and B there."""
        self._check.turn()
        self.store()

    def prepare(self) -> None:
        """Put C into its state before a call."""
        self._check.prepare()
        for block in self._c:
            block.store(self._check.c)

    def call(self, plan: Plan) -> None:
        """Multiply."""
        check = self._check
        scalars = check.arguments[3:]
        if self._operands == "host":
            plan.from_host(check.a, check.b, check.c, *scalars)
            return
        a, b, c = ([block.matrix for block in blocks] for blocks in (self._a, self._b, self._c))
        if self._operands == "device":
            plan.from_device(a[0], b[0], c[0], *scalars)
        else:
            plan.on_blocks(a, b, c, *scalars)

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory, A and B too, and the result of a call that followed `prepare`."""
        check = self._check
        whole = (("A", self._a, check.a), ("B", self._b, check.b), ("C", self._c, check.c))
        for name, blocks, matrix in whole:
            for block in blocks:
                if not block.load(matrix):
                    flaw = f"{check.case}: wrote outside {name} on GPU {block.matrix.device}"
                    return Verdict(math.inf, flaw, damaged=True)
        return check.judge(accuracy)

    judge_again = judge
    """After one of many calls A and B are compared as well: they are not read-only here."""

    def run(self, plan: Plan, accuracy: str) -> Verdict:
        """Prepare, call and judge."""
        self.prepare()
        self.call(plan)
        return self.judge(accuracy)

    def free(self) -> None:
        """Give the GPUs' memory back."""
        for block in (*self._a, *self._b, *self._c):
            block.free()


DEFAULT_EFFORT = Effort(budget_s=0.5, timeout_s=60.0, finals_s=5.0)


class HybridEvaluator(Evaluator):
    """Evaluates candidates of hybrid families for one problem (see `Evaluator`).

    Args:
        work: the task; the problem's layout is "nn".
        operands: where the operands are: "host", "device" or "blocks".
        choose_local: chooses the kernel that a GPU multiplies with.
        entry: of the process that owns the GPUs.
    """

    def __init__(
        self,
        work: Work,
        operands: str,
        choose_local: ChooseLocal,
        entry: Callable[[Setup, Gemm], Subjects] = measurement_worker,
    ) -> None:
        effort = work.effort or DEFAULT_EFFORT
        gpus = work.device.limits.names()["gpus"]
        setup = Setup(operands, gpus, effort, work.programs.folder, work.seed)
        worker = SharedWorker(entry, setup, replies=Reply)
        backend = HybridBackend(work, choose_local, worker)
        super().__init__(work.problem, work.families, work.device, backend, effort, work.seed)


class HybridBackend(WorkerBackend):
    """Emits programs, and measures them in the process that owns the GPUs.

    They are text, and the kernel in them was compiled when it was tuned.
    """

    batch = 1

    def __init__(self, work: Work, choose_local: ChooseLocal, worker: SharedWorker) -> None:
        super().__init__(None, lambda key: Processes(key, worker), None)
        self._work = work
        self._problem = only_gemm(work.problem, "target hybrid")
        self._choose_local = functools.cache(choose_local)

    @property
    def subject(self) -> Gemm:
        """The problem."""
        return self._problem

    def is_ready(self, candidate: Candidate) -> bool:
        """True: there is nothing to compile."""
        return True

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Start the worker: operands and references of a large problem take their time."""
        self.processes.worker.begin(self._problem, run)

    def prepared(self, candidate: Candidate, run: Deadline, report: Report) -> Prepared:
        """A candidate's program, with the kernel within a GPU."""
        family, limits = self._work.families[candidate.family], self._work.device.limits
        chosen = candidate.configuration
        return Prepared(emit_program(family, chosen, self._problem, limits, self._choose_local))
