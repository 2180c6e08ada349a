"""The MPI evaluator: candidates become programs, which a set of ranks verifies and times."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement, Outcome
from autotune.cpu.compiling import Compiled, compile_worker
from autotune.distributed.mpi.messages import GpuProduct, LocalProduct, MpiProgram, Refused, Setup
from autotune.families.local import local_problem
from autotune.families.rendering import render
from autotune.measuring.backend import Backend, Baselines, Prepared
from autotune.measuring.evaluator import Effort, Evaluator, Stage
from autotune.measuring.pool import WorkerPool
from autotune.measuring.processes import START_TIMEOUT_S, Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.core.device import Device
    from autotune.distributed.mpi.ranks.world import Ranks
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Report
    from autotune.measuring.messages import Request
    from autotune.operations.problem import Gemm

ChooseLocal: TypeAlias = Callable[["Gemm"], LocalProduct | GpuProduct]
"""The kernel that a rank multiplies its part of a problem with."""

BATCH = 4
"""Candidates whose local kernels are compiled together."""

_RENEWALS = 2.0
"""Ranks are started anew for the finals where that takes at most one part in so many of the time
that is left."""


class MpiEvaluator(Evaluator):
    """Evaluates candidates of MPI families for one problem (see `Evaluator`).

    Args:
        problem: what is computed; its layout is "nn".
        families: by name; candidates name them.
        device: the ranks, as `device_of` gives them.
        programs: where emitted programs go.
        ranks: those that verify and time; closed with the evaluator.
        choose_local: which kernel a rank multiplies with.
        effort: how long and how exactly to measure.
        seed: seeds the operands.
    """

    def __init__(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        ranks: Ranks,
        choose_local: ChooseLocal,
        *,
        effort: Effort | None = None,
        seed: int = 0,
    ) -> None:
        effort = effort or Effort()
        limits = device.limits.names()
        setup = Setup(
            problem,
            effort,
            programs.folder,
            bool(limits["distributed"]),
            seed,
            limits["cores"] // limits["nodes"],
            gpu=str(device.fingerprint.fields.get("gpu") or ""),
        )
        backend = MpiBackend(setup, families, device, programs, ranks, choose_local)
        super().__init__(problem, families, device, backend, effort, seed)


class MpiBackend(Backend):
    """Compiles local kernels and asks ranks; see `autotune.measuring.backend.Backend`.

    Args:
        setup: what the ranks are to measure.
        families: by name.
        device: the ranks.
        programs: where emitted programs go.
        ranks: those that verify and time; closed with this.
        choose_local: which kernel a rank multiplies with.
    """

    batch = BATCH
    compiles_ahead = False  # a compiler running beside a measurement would disturb it

    def __init__(
        self,
        setup: Setup,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        ranks: Ranks,
        choose_local: ChooseLocal,
    ) -> None:
        self.baselines: Baselines = {}
        self._setup = setup
        self._families = families
        self._limits = device.limits
        self._programs = programs
        self._ranks = ranks
        self._choose_local = functools.cache(choose_local)
        self._compilers = WorkerPool(
            compile_worker, count=1, watched=True, replies=Compiled, renewed=True
        )
        self._compiled: dict[str, str] = {}
        self._is_set_up = False
        self._setup_s = 0.0

    @property
    def start_s(self) -> float:
        """What starting ranks and giving them the problem took."""
        return self._setup_s

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether the kernel that ranks multiply with has been compiled."""
        local = self._local(candidate)
        return isinstance(local, GpuProduct) or local.source.digest in self._compiled

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Compile the local kernels that have not been compiled; the programs need none of it."""
        new = {
            local.source.digest: local
            for local in map(self._local, candidates)
            if isinstance(local, LocalProduct) and local.source.digest not in self._compiled
        }
        paths = [self._programs.write(local.source, local.family) for local in new.values()]
        replies: list[Compiled | Failure | None] = self._compilers.run(
            paths,
            self._setup.effort.compile_timeout_s,
            run,
            lambda answered: report(Stage("compiling", answered, len(paths))),
        )
        for digest, reply in zip(new, replies, strict=True):
            if reply is not None:
                error = reply.error if isinstance(reply, Compiled) else reply.reason
                self._compiled[digest] = error
        if None in replies:
            raise OutOfTimeError("the run was over before all local kernels were compiled")

    def prepared(
        self, candidate: Candidate, run: Deadline, report: Report
    ) -> Prepared | Measurement:
        """A candidate's program with its local kernel, or why that did not compile."""
        local = self._local(candidate)
        error = self._compiled[local.source.digest] if isinstance(local, LocalProduct) else ""
        if error:
            return Measurement(Outcome.COMPILE_FAILED, reason=f"local kernel: {error}")
        family = self._families[candidate.family]
        source = render(family, candidate.configuration, dtype=self._setup.problem.dtype)
        return Prepared(MpiProgram(source, family.name, local))

    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The ranks' reply, or a `Failure`; those that have not heard of the problem are told."""
        reply = self._asked(request, timeout_s, run)
        if isinstance(reply, Refused):
            # Ranks that were lost between two requests have been started anew, without a word.
            self._is_set_up = False
            reply = self._asked(request, timeout_s, run)
        if isinstance(reply, Refused):
            return Failure(FailureKind.RAISED, reply.reason)
        return reply

    def renew(self) -> None:
        """Have the next request handled by ranks that have done nothing else, where possible."""
        self._ranks.renew()
        self._is_set_up = False

    def begin_finals(self, run: Deadline) -> None:
        """Ranks without a trial behind them, where there is time to start them."""
        if run.remaining_s > _RENEWALS * self._setup_s:
            self.renew()

    def close(self) -> None:
        """End the ranks and the compiler."""
        self._compilers.close()
        self._ranks.close()

    def _asked(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """As `ask`; ranks refuse what comes before they have heard of the problem."""
        if not self._is_set_up:
            # Operands and references of a large problem take their time.
            begun_s = run.elapsed_s
            reply = self._ranks.call(self._whole_setup(), START_TIMEOUT_S, run)
            if isinstance(reply, Failure):
                return reply
            self._is_set_up = True
            self._setup_s = run.elapsed_s - begun_s
        try:
            reply = self._ranks.call(request, timeout_s, run)
        except OutOfTimeError:
            self._is_set_up = False
            raise
        if isinstance(reply, Failure):
            self._is_set_up = False
        return reply

    def _whole_setup(self) -> Setup:
        """With what one GPU multiplies with alone, where ranks have one each."""
        if not self._setup.gpu:
            return self._setup
        alone = self._choose_local(replace(self._setup.problem, threads=None))
        assert isinstance(alone, GpuProduct)
        return replace(self._setup, alone=alone)

    def _local(self, candidate: Candidate) -> LocalProduct | GpuProduct:
        family = self._families[candidate.family]
        wanted = local_problem(family, candidate.configuration, self._setup.problem, self._limits)
        return self._choose_local(wanted)
