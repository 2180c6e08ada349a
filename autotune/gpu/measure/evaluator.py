"""The evaluator of GPUs: candidates compiled in the background, measured by who owns the GPU."""

from __future__ import annotations

import contextlib
import functools
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Configuration
from autotune.core.errors import AutotuneError, FamilyError, OutOfTimeError
from autotune.core.file_lock import Turns
from autotune.core.limits import limits_of
from autotune.core.measurement import Measurement, Outcome
from autotune.core.processors import usable_processors
from autotune.families.gpu.launch import Binary, architecture_of, kernel_layout
from autotune.families.gpu.launched import check_launches
from autotune.families.gpu.occupancy import occupancy
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.compiling import (
    CompileReply,
    CompileRequest,
    Refused,
    check_resources,
    compile_worker,
    has_arrays,
    read_kept,
)
from autotune.gpu.driver import used, vendor
from autotune.gpu.launch.code import SUPPORT_FAMILY, support_source
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.measure.harness import (
    GpuSettings,
    PlannedProgram,
    Subject,
    measurement_worker,
)
from autotune.gpu.vendor import Compiled
from autotune.measuring.backend import (
    Prepared,
    Processes,
    WorkerBackend,
    compile_details,
    judge_compile_failure,
)
from autotune.measuring.channel import LOOK_S
from autotune.measuring.effort import Effort, Stage, silent
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.failure import Failure
from autotune.measuring.harness import device_cases
from autotune.measuring.messages import Reply
from autotune.measuring.sharing import SharedWorker, WorkerPool
from autotune.operations.cases import hard_cases, special_cases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.rendering import Source
    from autotune.measuring.backend import Backend
    from autotune.measuring.effort import Report, Work
    from autotune.measuring.messages import Request

DEFAULT_EFFORT = Effort(budget_s=0.15)


class GpuEvaluator(Evaluator):
    """Evaluates candidates for one problem on a GPU (see `Evaluator`).

    `prepare` returns at once: compilers run beside measurements, which they do not disturb, since
    the device does the timing.

    Args:
        work: the task.
        beside: an evaluator whose processes this one may use, and whose baseline if it is for the
            same problem; it is not closed before this one.

    Raises:
        MissingDependencyError: the compiler of the evaluator's own kernels is missing, or newer
            than the driver.
    """

    def __init__(self, work: Work, beside: Evaluator | None = None) -> None:
        effort = work.effort or DEFAULT_EFFORT
        backend = GpuBackend(work, effort, None if beside is None else beside.backend)
        super().__init__(work.problem, work.families, work.device, backend, effort, work.seed)


class GpuBackend(WorkerBackend):
    """Compiles candidates and measures them; see `GpuEvaluator`."""

    compiles_ahead = True  # they do not disturb a measurement, since the device does the timing
    holds = True

    def __init__(self, work: Work, effort: Effort, beside: Backend | None) -> None:
        problem, device, programs = work.problem, work.device, work.programs
        self._limits = limits_of(device)
        vendor().check(device)
        own = vendor().support_target
        targets = tuple(sorted({own, *(family.target for family in work.families.values())}))
        workers = work.workers or usable_processors()

        def make(key: object) -> Processes:
            return Processes(
                key,
                _make_worker(device, effort, work.seed),
                WorkerPool(
                    compile_worker,
                    programs,
                    targets,
                    used(),
                    count=workers,
                    watched=True,
                    replies=CompileReply,
                    renewed=True,
                ),
            )

        key = (programs.folder, effort, workers, work.seed, device.fingerprint, targets)
        super().__init__(key, make, beside)
        self.batch = workers
        state = device.state
        self.turns = Turns(state.get("pci_bus_id") or state.get("ordinal", "0"))
        self._problem = problem
        self._families = work.families
        self._programs = programs
        self._effort = effort
        self._requests: dict[Candidate, CompileRequest] = {}
        self._asked: list[Future[CompileReply | Failure]] = []
        self._names: dict[Candidate, str] = {}  # of their sources
        self._admitted: dict[Candidate, Prepared | Measurement] = {}
        support = support_source(problem.dtype, problem.out_dtype)
        self._support = CompileRequest(support, SUPPORT_FAMILY, self._limits.architecture)
        self._compiling(self._support)
        self._support_cubin = b""

    @property
    def subject(self) -> Subject:
        """The problem, with the kernels that judge."""
        return Subject(self._problem, self._support_cubin)

    def is_ready(self, candidate: Candidate) -> bool:
        """Has a candidate been compiled, or does it need none to be rejected?"""
        return candidate not in self._requests or self._compiling(self._requests[candidate]).done()

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Compile, in the background, what has not been compiled; each distinct source once."""
        self.compile_ahead(candidates)
        # The start of what measures (context, operands, references) takes as long as compiles do.
        if self._compiling(self._support).done():
            self._await_support(run, report)
            self.processes.worker.begin(self.subject, run)
        else:
            self.processes.worker.begin(None, run)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> None:
        """The same, for a later `prepare`: the process that measures learns nothing of it."""
        for candidate in candidates:
            if candidate not in self._requests:
                self._requests[candidate] = self._request(candidate)
                self._compiling(self._requests[candidate])

    def prepared(
        self, candidate: Candidate, run: Deadline, report: Report
    ) -> Prepared | Measurement:
        """A compiled candidate that may be launched, or why there is none."""
        reply = self._await(self._compiling(self._requests[candidate]), run, report)
        if isinstance(reply, Refused):
            return Measurement(Outcome.COMPILE_FAILED, reason=reply.reason)
        if isinstance(reply, Failure):
            return judge_compile_failure(reply)
        self._await_support(run, report)
        if candidate not in self._admitted:
            self._admitted[candidate] = self._admit(candidate, reply)
        return self._admitted[candidate]

    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The worker's reply, or a `Failure`."""
        self._await_support(run, silent)
        return super().ask(request, timeout_s, run)

    def binary(self, candidate: Candidate) -> Binary | None:
        """A prepared candidate's cubin and launch; None where it does not pass the gate."""
        prepared = self._admitted.get(candidate)
        if not isinstance(prepared, Prepared) or not isinstance(prepared.program, PlannedProgram):
            return None
        program = prepared.program.program
        family = self._families[candidate.family]
        architecture = architecture_of(family, self._limits.architecture)
        return Binary(
            program.cubin, architecture, program.plan, program.support, program.kernel_layout
        )

    def close(self) -> None:
        """End the processes, unless they are another evaluator's."""
        for compiling in self._asked:
            compiling.cancel()  # those who come next need the compilers
        super().close()

    def _admit(self, candidate: Candidate, compiled: Compiled) -> Prepared | Measurement:
        """Past the gate, or turned away with what the binary needs."""
        family, configuration = self._families[candidate.family], candidate.configuration
        planner = Planner(family, configuration, self._problem.dtype, self._limits)
        plan = planner.plan(self._problem)
        cases = (*device_cases(self._problem), *hard_cases(self._problem, family.accuracy))
        sized = {case: self._problem.with_sizes(*case.sizes) for case in cases}
        found = {case: planner.find(problem) for case, problem in sized.items()}
        most = plan.blocks_at_once  # the binary is looked at for so many
        plans = {
            case: each
            for case, each in found.items()
            if each is not None and each.blocks_at_once <= most
        }
        for case in special_cases(self._problem, [case for case in plans if not case.hard]):
            plans[case] = planner.plan(self._problem.with_sizes(*case.sizes))
        try:
            for planned in (plan, *plans.values()):
                check_launches(family, planned, compiled.kernels)
        except FamilyError as error:
            return Measurement(Outcome.COMPILE_FAILED, reason=str(error))
        main = next(step for step in plan.steps if step.kernel == family.operation)
        resources = compiled.kernels[family.operation]
        details: dict[str, float | int | str] = {
            **compile_details(compiled.seconds, self._names[candidate]),
            "registers": resources.registers,
            "shared_bytes": resources.shared_bytes + main.shared_bytes,
            "spill_bytes": compiled.spill_bytes.get(family.operation, 0),
            "threads": main.threads,
            "occupancy": occupancy(
                self._limits,
                threads=main.threads,
                registers=max(1, resources.registers),
                shared_bytes=resources.shared_bytes + main.shared_bytes,
            ),
        }
        refusal = check_resources(
            compiled,
            self._limits,
            threads=main.threads,
            dynamic_shared_bytes=main.shared_bytes,
            kernel=family.operation,
            resident_blocks=planner.resident_blocks(self._problem),
            spill_limit=family.launch.spill_limit if family.launch else None,
            arrays=has_arrays(family),
        )
        if refusal is not None:
            return Measurement(Outcome.REJECTED, reason=str(refusal), details=details)
        layout = kernel_layout(family, self._problem.layout)
        types = self._problem.dtype, self._problem.layout, layout
        written = self._problem.out_dtype
        program = GpuProgram(
            compiled.cubin, plan, *types, defined=self._problem.defined, out_dtype=written
        )
        if program.copies:
            program = replace(program, support=self._support_cubin)
        return Prepared(PlannedProgram(program, plans), details)

    def _await(
        self, future: Future[CompileReply | Failure], run: Deadline, report: Report
    ) -> CompileReply | Failure:
        """A compiler's reply."""
        while True:
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=run.within(LOOK_S))
            asked = set(map(self._compiling, self._requests.values()))
            done = sum(compiling.done() for compiling in asked)
            report(Stage("compiling", done, len(asked)))
            if run.over:
                raise OutOfTimeError("the run was over before a compiler had answered")

    def _await_support(self, run: Deadline, report: Report) -> None:
        if not self._support_cubin:
            reply = self._await(self._compiling(self._support), run, report)
            if not isinstance(reply, Compiled):
                raise AutotuneError(f"the evaluator's own kernels do not compile: {reply.reason}")
            self._support_cubin = reply.cubin

    def _compiling(self, request: CompileRequest) -> Future[CompileReply | Failure]:
        """The compile of a source, whoever of those that share the compilers asked for it."""
        compiles = self.processes.compiles
        known = compiles.get(request.source.digest)
        if known is None or known.cancelled():  # by the one who asked for it
            known = compiles[request.source.digest] = self._submit(request)
            self._asked.append(known)
        return known

    def _request(self, candidate: Candidate) -> CompileRequest:
        family = self._families[candidate.family]
        layout = kernel_layout(family, self._problem.layout)
        problem, runtime = self._problem, family.runtime_parameters
        fixed = {k: v for k, v in candidate.configuration.items() if k not in runtime}
        some = {
            parameter.name: parameter.values[0]
            for parameter in family.parameters
            if parameter.runtime
        }
        source = _rendered(
            family, Configuration(fixed | some), problem.dtype, layout, problem.out_dtype
        )
        self._names[candidate] = self._programs.path(source, family.name).stem
        self._programs.write(source, family.name)
        architecture = architecture_of(family, self._limits.architecture)
        return CompileRequest(source, family.name, architecture)

    def _submit(self, request: CompileRequest) -> Future[CompileReply | Failure]:
        kept = read_kept(self._programs, request)
        if kept is None:
            return self.compilers.submit(request, self._effort.compile_timeout_s)
        # A compiler would find it too, but only after all that others have asked for.
        found: Future[CompileReply | Failure] = Future()
        found.set_result(kept)
        return found


@functools.lru_cache(maxsize=1024)
def _rendered(
    family: KernelFamily,
    configuration: Configuration,
    dtype: str,
    layout: str,
    out_dtype: str | None,
) -> Source:
    """A family's source, rendered once a process: problems of a run have programs in common."""
    return render(family, configuration, dtype=dtype, layout=layout, out_dtype=out_dtype)


def _make_worker(device: Device, effort: Effort, seed: int) -> SharedWorker:
    """The process that owns the GPU, which it sees as the only one."""
    bus = device.state.get("pci_bus_id", "")
    return SharedWorker(
        measurement_worker,
        effort,
        GpuSettings(used(), 0, bus, limits_of(device)),
        seed,
        # Threads of a BLAS that wait for processors which compile would take ten times as long.
        environment={**vendor().alone(device), "OPENBLAS_NUM_THREADS": "1"},
        replies=Reply,
    )
