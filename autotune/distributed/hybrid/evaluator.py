"""The hybrid evaluator: candidates become programs, which one process that owns the GPUs runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.distributed.hybrid.machine import ChooseLocal, emit_program
from autotune.distributed.hybrid.rig import Setup, measurement_worker
from autotune.measuring.backend import Prepared, Processes, WorkerBackend
from autotune.measuring.effort import Report, Work
from autotune.measuring.evaluator import Effort, Evaluator
from autotune.measuring.messages import Reply
from autotune.measuring.sharing import SharedWorker, Subjects
from autotune.operations.problem import Gemm, only_gemm

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
