"""The CUDA evaluator: compile processes, one that owns the GPU, and what their ends mean."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, OutOfTimeError
from autotune.core.limits import CudaLimits
from autotune.core.measurement import Measurement, Outcome
from autotune.families.bound import Bound
from autotune.families.launch import (
    Binary,
    kernel_layout,
    plan_launch,
    plan_or_none,
    resident_blocks,
)
from autotune.families.rendering import render
from autotune.measuring.evaluator import Baseline, Effort, Finals, Report, Stage, silent
from autotune.measuring.processes import LOOK_S, PREPARE_TIMEOUT_S, Failure, FailureKind
from autotune.measuring.rounds import (
    CONFIRM_SHARE,
    Redraw,
    Series,
    faster,
    hold_rounds,
    judge_failure,
)
from autotune.measuring.sharing import SharedWorker
from autotune.measuring.validity import Validity
from autotune.targets.cpu.identity import read_cpu
from autotune.targets.cuda.compile.compiling import CompilePool, CompileRequest, Refused
from autotune.targets.cuda.compile.gate import gate
from autotune.targets.cuda.compile.nvrtc import Compiled, check_driver
from autotune.targets.cuda.device.identity import visible_device
from autotune.targets.cuda.launch.program import CudaProgram
from autotune.targets.cuda.launch.support_source import support_source
from autotune.targets.cuda.measure.baseline import cublas_mode
from autotune.targets.cuda.measure.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    GpuSettings,
    Request,
    Subject,
    Visit,
    cases_of,
)
from autotune.targets.cuda.measure.worker import measurement_worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem
    from autotune.targets.cuda.compile.compiling import CompileReply

DEFAULT_EFFORT = Effort(budget_s=0.15)

SECOND_LOOK_S = 0.02
"""Seconds of timed launches when a finalist is verified again; the rounds time it."""

_SUPPORT_FAMILY = "support"
_SUPPORT_TARGET = "cuda"


@dataclass(frozen=True, slots=True)
class _Ready:
    """A compiled candidate that may be launched."""

    program: CudaProgram
    bound: Bound
    details: dict[str, float | int | str]


class _Processes:
    """The processes of one evaluator, or of several for problems in turn.

    Args:
        key: evaluators that differ in it share nothing.
        compilers: what compiles.
        worker: what measures.
    """

    def __init__(self, key: object, compilers: CompilePool, worker: SharedWorker) -> None:
        self.key = key
        self.compilers = compilers
        self.worker = worker
        self.baselines: dict[Problem, Baseline] = {}

    def close(self) -> None:
        """End every process."""
        self.compilers.close()
        self.worker.close()


class CudaEvaluator:
    """Evaluates candidates of CUDA and Numba-CUDA families for one problem (see `Evaluator`).

    `prepare` returns at once: compilers run beside measurements, which they do not disturb, since
    the device does the timing.

    Args:
        problem: what is computed.
        families: by name; candidates name them.
        device: as `read_gpu` gives it.
        programs: where emitted sources and binaries go.
        effort: how long and how exactly to measure.
        workers: compile processes; None takes one per processor that this process may use.
        seed: seeds the operands.
        beside: an evaluator whose processes this one may use, and whose baseline if it is for the
            same problem; it is not closed before this one.

    Raises:
        MissingDependencyError: NVRTC, which compiles the evaluator's own kernels, is missing or
            newer than the driver.
    """

    def __init__(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None = None,
        workers: int | None = None,
        seed: int = 0,
        beside: CudaEvaluator | None = None,
    ) -> None:
        if not isinstance(device.limits, CudaLimits):
            raise AutotuneError(f"{device.fingerprint.name} is no CUDA device: use read_gpu()")
        major, minor = device.toolchain["cuda"].split(".")
        check_driver((int(major), int(minor)))
        self.device = device
        self.deadline = Deadline()
        self.report: Report = silent
        self._limits = device.limits
        self._problem = problem
        self._families = families
        self._programs = programs
        self._effort = effort or DEFAULT_EFFORT
        self._seed = seed
        self._fresh = itertools.count(seed + 1)
        self.batch = workers or read_cpu().limits.names()["max_threads"]
        targets = tuple(sorted({_SUPPORT_TARGET, *(each.target for each in families.values())}))
        key = (programs.folder, self._effort, self.batch, seed, device.fingerprint, targets)
        shares = beside is not None and beside._processes.key == key
        self._owner = not shares
        self._processes: _Processes = (
            beside._processes
            if beside and shares
            else _Processes(key, self._start_compilers(targets), self._make_worker())
        )
        self._support = self._compile_support()
        self._validity = Validity(families, problem, device.limits)
        self._compiles: dict[str, Future[CompileReply | Failure]] = {}
        self._pending: dict[Candidate, Future[CompileReply | Failure]] = {}
        self._measured: dict[str, tuple[Candidate, Measurement]] = {}
        self._baseline = self._processes.baselines.get(problem)

    @property
    def compiles_ahead(self) -> bool:
        """True: compilers do not disturb a measurement, since the device does the timing."""
        return True

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a candidate has been compiled, or needs no compiling to be rejected."""
        return candidate not in self._pending or self._pending[candidate].done()

    @property
    def finals_s(self) -> float:
        """The rounds: the worker that has measured goes on."""
        return self._effort.finals_s

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile, in the background, what has not been compiled; each distinct source once."""
        for candidate in candidates:
            if candidate not in self._pending and self._validity.rejection(candidate) is None:
                self._pending[candidate] = self._compile(candidate)
        if self._support.done():
            # Its start (context, operands, references) takes as long as the first compiles.
            self._processes.worker.begin(self._subject(), self.deadline)

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Compile if need be, verify, then time; see `Evaluator.evaluate`.

        A candidate whose binary and launch are another's gets that one's measurement.
        """
        ready = self._get_ready(candidate)
        if isinstance(ready, Measurement):
            return ready
        digest = ready.program.digest
        twin, known = self._measured.get(digest, (candidate, None))
        if known is not None and twin != candidate:
            details = {**known.details, **ready.details, "same_binary_as": str(twin)}
            return replace(known, details=details)
        measurement = self._measure(candidate, ready, best_s, self._effort.budget_s)
        self._measured[digest] = (candidate, measurement)
        return measurement

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify, time in rounds (every candidate, then cuBLAS, and again), and verify again."""
        self.prepare(candidates)
        readies = [self._get_ready(each) for each in candidates]
        measurements = [
            ready
            if isinstance(ready, Measurement)
            else self._measure(candidate, ready, None, SECOND_LOOK_S)
            for candidate, ready in zip(candidates, readies, strict=True)
        ]
        baseline = self.baseline()
        programs = {
            position: (ready.program, self._families[candidates[position].family].accuracy)
            for position, ready in enumerate(readies)
            if isinstance(ready, _Ready) and measurements[position].ok
        }
        visits = {
            position: functools.partial(self._visit, *program)
            for position, program in programs.items()
        }
        of_cublas = None if baseline is None else functools.partial(self._visit, None, "ieee")
        seed = next(self._fresh)
        return hold_rounds(
            measurements,
            visits,
            baseline,
            of_cublas,
            self._effort.finals_s,
            lambda position: self._confirm(*programs[position], seed),
            deadline=self.deadline,
            report=self.report,
        )

    def baseline(self) -> Baseline | None:
        """The vendor library, cuBLAS, on the same operands, measured once; None without it."""
        if self._baseline is None:
            version = self._ask(DescribeBaseline())
            if not isinstance(version, str):
                return None
            turn = self._visit(None, "ieee", self._effort.budget_s)
            if isinstance(turn, Failure):
                return None
            self._baseline = Baseline(
                name=f"cuBLAS {version} ({cublas_mode(self._problem.dtype)})",
                median_s=turn.median_s,
                interval_s=turn.interval_s,
                threads=1,
                details={"library": "cuBLAS", "version": version},
            )
            self._processes.baselines[self._problem] = self._baseline
        return self._baseline

    def check_baseline(self) -> Baseline | None:
        """CuBLAS once more; see `Evaluator.check_baseline`."""
        if self._baseline is not None:
            self._baseline = faster(self._baseline, self._visit(None, "ieee", SECOND_LOOK_S))
            self._processes.baselines[self._problem] = self._baseline
        return self._baseline

    def binary(self, candidate: Candidate) -> Binary | None:
        """The candidate's cubin and launch; None where it does not pass the gate."""
        ready = self._get_ready(candidate)
        if isinstance(ready, Measurement):
            return None
        program = ready.program
        return Binary(program.cubin, self._limits.architecture, program.plan, program.support)

    def close(self) -> None:
        """End every process and free the device, unless they are another evaluator's."""
        for compiling in self._compiles.values():
            compiling.cancel()  # those who come next need the compilers
        if self._owner:
            self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _get_ready(self, candidate: Candidate) -> _Ready | Measurement:
        """The program of a candidate, or the measurement that says why there is none."""
        rejection = self._validity.rejection(candidate)
        if rejection is not None:
            return Measurement(Outcome.REJECTED, reason=rejection)
        self.prepare([candidate])
        reply = self._await(self._pending[candidate])
        if isinstance(reply, Refused):
            return Measurement(Outcome.COMPILE_FAILED, reason=reply.reason)
        if isinstance(reply, Failure):
            timed_out = reply.kind is FailureKind.TIMED_OUT
            outcome = Outcome.TIMEOUT if timed_out else Outcome.COMPILE_FAILED
            return Measurement(outcome, reason=f"compiler: {reply.reason}")
        return self._admit(candidate, reply)

    def _admit(self, candidate: Candidate, compiled: Compiled) -> _Ready | Measurement:
        """Past the gate, or turned away with what the binary needs."""
        family = self._families[candidate.family]
        bound = Bound(family, candidate.configuration, self._problem, self._limits)
        point = bound.at(self._problem)
        plan = plan_launch(point)
        main = next(step for step in plan.steps if step.kernel == family.operation)
        resources = compiled.kernels[family.operation]
        details: dict[str, float | int | str] = {
            "compile_s": compiled.seconds,
            "registers": resources.registers,
            "shared_bytes": resources.shared_bytes + main.shared_bytes,
            "spill_bytes": compiled.spill_bytes.get(family.operation, 0),
        }
        refusal = gate(
            compiled,
            self._limits,
            threads=main.threads,
            dynamic_shared_bytes=main.shared_bytes,
            kernel=family.operation,
            resident_blocks=resident_blocks(point),
        )
        if refusal is not None:
            return Measurement(Outcome.REJECTED, reason=str(refusal), details=details)
        layout = kernel_layout(family, self._problem.layout)
        program = CudaProgram(
            compiled.cubin,
            plan,
            self._problem.dtype,
            self._problem.layout,
            layout,
            defined=self._problem.defined,
        )
        if any(program.flips):
            program = replace(program, support=self._support_cubin())
        return _Ready(program, bound, details)

    def _measure(
        self, candidate: Candidate, ready: _Ready, best_s: float | None, budget_s: float
    ) -> Measurement:
        family = self._families[candidate.family]
        plans = {}
        for case in cases_of(self._problem):
            sized = self._problem.with_sizes(*case.sizes)
            if (plan := plan_or_none(ready.bound, sized)) is not None:
                plans[case] = plan
        request = Evaluate(ready.program, plans, family.accuracy, best_s, budget_s)
        reply = self._ask(request)
        if isinstance(reply, Evaluated) and reply.blameless:
            # Another candidate may have done the damage. On a fresh device there is no other.
            reply = self._ask(request)
        if not isinstance(reply, Evaluated):
            return judge_failure(reply)
        details = {**reply.measurement.details, **ready.details}
        return replace(reply.measurement, details=details)

    def _visit(
        self, program: CudaProgram | None, accuracy: str, budget_s: float
    ) -> Series | Failure:
        reply: Series | Evaluated | Failure = self._ask_finalist(
            Visit(program, accuracy, budget_s)
        )
        if isinstance(reply, Evaluated):
            return Failure(FailureKind.WRONG, reply.measurement.reason)
        return reply

    def _confirm(self, program: CudaProgram, accuracy: str, seed: int) -> Measurement:
        """What launches on fresh operands, all of them checked, say of a finalist."""
        redrawn = self._ask_finalist(Redraw(seed), PREPARE_TIMEOUT_S)
        if isinstance(redrawn, Failure):
            return judge_failure(redrawn)
        budget_s = CONFIRM_SHARE * self._effort.finals_s
        reply: Evaluated | Failure = self._ask_finalist(Confirm(program, accuracy, budget_s))
        return judge_failure(reply) if isinstance(reply, Failure) else reply.measurement

    def _ask_finalist(self, request: Request, timeout_s: float | None = None) -> Any:
        reply = self._ask(request, timeout_s)
        if isinstance(reply, Failure):
            self._processes.worker.close(grace_s=0)  # its context may be dead
        return reply

    def _ask(self, request: Request, timeout_s: float | None = None) -> Any:
        worker, limit_s = self._processes.worker, timeout_s or self._effort.timeout_s
        reply = worker.call(self._subject(), request, limit_s, self.deadline)
        if isinstance(reply, Evaluated) and reply.lost:
            worker.close(grace_s=0)
        return reply

    def _await(self, future: Future[CompileReply | Failure]) -> CompileReply | Failure:
        """What a compiler comes to.

        Raises:
            OutOfTimeError: the run is over before that.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=self.deadline.within(LOOK_S))
            done = sum(each.done() for each in self._compiles.values())
            self.report(Stage("compiling", done, len(self._compiles)))
            if self.deadline.over:
                raise OutOfTimeError("the run was over before a compiler had answered")

    def _subject(self) -> Subject:
        return Subject(self._problem, self._support_cubin())

    def _start_compilers(self, targets: tuple[str, ...]) -> CompilePool:
        return CompilePool(self._programs, self.batch, self._effort.compile_timeout_s, targets)

    def _make_worker(self) -> SharedWorker:
        state = self.device.state
        visible = visible_device(
            int(state.get("ordinal", "0")), os.environ.get("CUDA_VISIBLE_DEVICES")
        )
        return SharedWorker(
            measurement_worker,
            self._effort,
            GpuSettings(
                ordinal=0,
                pci_bus_id=state.get("pci_bus_id", ""),
                multiprocessor_count=self._limits.multiprocessor_count,
                l2_bytes=self._limits.l2_bytes,
            ),
            self._seed,
            environment={"CUDA_VISIBLE_DEVICES": visible},
        )

    def _compile(self, candidate: Candidate) -> Future[CompileReply | Failure]:
        family = self._families[candidate.family]
        layout = kernel_layout(family, self._problem.layout)
        source = render(
            family,
            candidate.configuration,
            dtype=self._problem.dtype,
            layout=layout,
            out_dtype=self._problem.out_dtype,
        )
        if source.digest not in self._compiles:
            self._programs.write(source, family.name)
            self._compiles[source.digest] = self._processes.compilers.submit(
                CompileRequest(source, family.name, self._limits.architecture)
            )
        return self._compiles[source.digest]

    def _compile_support(self) -> Future[CompileReply | Failure]:
        source = support_source(self._problem.dtype, self._problem.out_dtype)
        return self._processes.compilers.submit(
            CompileRequest(source, _SUPPORT_FAMILY, self._limits.architecture)
        )

    def _support_cubin(self) -> bytes:
        reply = self._await(self._support)
        if not isinstance(reply, Compiled):
            raise AutotuneError(f"the evaluator's own kernels do not compile: {reply.reason}")
        return reply.cubin
