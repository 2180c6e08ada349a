"""Programs that drive GPUs by host threads, before operands on the host or on the GPUs."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autotune.core.errors import CompileError, LaunchError
from autotune.core.measurement import Measurement, Outcome
from autotune.distributed.hybrid.baseline import Library, open_library
from autotune.distributed.hybrid.loading import HybridProgram, make_plan
from autotune.distributed.hybrid.operands import PlacedCheck
from autotune.distributed.hybrid.products import machine_with
from autotune.families.program_cache import ProgramCache
from autotune.gpu.driver import describe, driver_errors
from autotune.gpu.nvidia.cublas import CublasError
from autotune.measuring.evaluator import Effort
from autotune.measuring.messages import Evaluated, Vendor
from autotune.measuring.plausibility import UNKNOWN
from autotune.measuring.rig import OTHER_CONTENTS, ClockedBench, Pace
from autotune.measuring.sharing import Subjects
from autotune.measuring.trial import Trials
from autotune.operations.cases import PRODUCT_CASES, Case, special_cases
from autotune.operations.verification import ProductCheck

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from autotune.distributed.grid import Span
    from autotune.distributed.hybrid.loading import Plan
    from autotune.distributed.hybrid.machine import Machine
    from autotune.distributed.hybrid.products import LocalKernel
    from autotune.measuring.messages import Program
    from autotune.operations.problem import Gemm

MakeMachine: TypeAlias = Callable[["LocalKernel"], "Machine"]
"""The GPUs, with the kernel that each of them multiplies with."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a rig is made for, whatever the problem.

    Attributes:
        operands: "host", "device" or "blocks".
        devices: GPUs to use at most.
        effort: how long and how exactly to measure.
        programs: folder of emitted programs and binaries.
        seed: seeds the operands.
    """

    operands: str
    devices: int
    effort: Effort
    programs: Path
    seed: int


def measurement_worker(setup: Setup, problem: Gemm) -> Subjects:
    """Entry of the worker that measures: owns the GPUs and the operands of a problem."""

    def measuring(problem: Gemm) -> Trials:
        programs = ProgramCache(setup.programs)

        def machine(local: LocalKernel) -> Machine:
            return machine_with(local, setup.devices, programs)

        def library(check: ProductCheck) -> Library:
            return open_library(check, problem.dtype, setup.operands, setup.devices)

        rig = HybridRig(problem, setup, machine, library, driver_errors())
        return Trials(rig, setup.effort)

    return Subjects(measuring, problem, weigh=lambda each: 1, limit=1)


class HybridRig:
    """The operands of a problem, where programs take them; see `autotune.measuring.rig.Rig`.

    Args:
        problem: what is computed; its layout is "nn".
        setup: what else there is to know.
        make_machine: opens the GPUs.
        find_library: opens what programs are compared with, on a check's operands.
        errors: what the driver of the GPUs raises.
    """

    pace = Pace()
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
        self._find_library = find_library
        self._errors = errors
        rng = np.random.default_rng(setup.seed)
        cases = (*PRODUCT_CASES, *special_cases(problem, PRODUCT_CASES))
        self.small = [ProductCheck(case, problem, rng) for case in cases]
        large = Case(problem.m, problem.n, problem.k)
        self.large = ProductCheck(large, problem, rng, others=OTHER_CONTENTS)
        self._seed = setup.seed
        self._placed: tuple[list[tuple[Span, Span]], PlacedCheck] | None = None
        self._kept: dict[str, _Loaded] = {}
        self._opened: Library | None = None

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
        bench = _StillBench(self.large, self._library().call, self.setup.effort.interval)
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
        known: tuple[type[Exception], ...] = (LaunchError, CublasError)
        if isinstance(error, known):
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
        operands = self.setup.operands
        return PlacedCheck(check, self.problem.dtype, operands, self._spans(plan))

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
        return ClockedBench(
            placed, functools.partial(placed.call, plan), self.setup.effort.interval
        )

    def _spans(self, plan: Plan) -> list[tuple[Span, Span]]:
        return plan.blocks() if self.setup.operands == "blocks" else []

    def _library(self) -> Library:
        if self._opened is None:
            self._opened = self._find_library(self.large)
        return self._opened


class _Loaded:
    """A program before the operands of a rig."""

    def __init__(self, rig: HybridRig, program: HybridProgram) -> None:
        self._rig = rig
        self._program = program
        self._plan: Plan | None = None

    @property
    def cases(self) -> Sequence[ProductCheck]:
        return self._rig.small

    @contextlib.contextmanager
    def place(self, case: ProductCheck) -> Iterator[ClockedBench]:
        plan = self._rig.plan(self._program, case.case)
        placed = self._rig.place(case, plan)
        yield self._rig.bench(placed, plan)
        placed.free()
        plan.free()

    def problem(self) -> AbstractContextManager[ClockedBench]:
        if self._plan is None:
            self._plan = self._rig.plan(self._program, self._rig.large.case)
        placed = self._rig.place_problem(self._plan)
        return contextlib.nullcontext(self._rig.bench(placed, self._plan))

    def probe(self, best_s: float | None) -> None:
        """None: what a program does besides multiplying does not shrink with the sizes."""

    def free(self) -> None:
        """Give threads, streams and memory back."""
        if self._plan is not None:
            self._plan.free()


class _StillBench(ClockedBench):
    """Calls on operands that keep their content: others judge by the one that is placed."""

    def turn(self) -> None:
        """Nothing."""
