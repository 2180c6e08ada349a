"""The hybrid evaluator: candidates become programs, which one process that owns the GPUs runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from autotune.distributed.hybrid.loading import HybridProgram
from autotune.distributed.hybrid.products import LocalKernel
from autotune.distributed.hybrid.rig import Setup, measurement_worker
from autotune.families.local import local_problem
from autotune.families.rendering import render
from autotune.measuring.backend import Prepared, Processes, WorkerBackend
from autotune.measuring.evaluator import Effort, Evaluator
from autotune.measuring.messages import Reply
from autotune.measuring.sharing import SharedWorker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.core.device import Device
    from autotune.core.measurement import Measurement
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Report
    from autotune.measuring.sharing import Subjects
    from autotune.operations.problem import Gemm

ChooseLocal: TypeAlias = Callable[["Gemm"], LocalKernel]
"""The kernel that a GPU multiplies its part of a problem with."""

DEFAULT_EFFORT = Effort(budget_s=0.5, timeout_s=60.0, finals_s=5.0)


class HybridEvaluator(Evaluator):
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
        entry: of the process that owns the GPUs.
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
        entry: Callable[[Setup, Gemm], Subjects] = measurement_worker,
    ) -> None:
        effort = effort or DEFAULT_EFFORT
        gpus = device.limits.names()["gpus"]
        setup = Setup(operands, gpus, effort, programs.folder, seed)
        worker = SharedWorker(entry, setup, replies=Reply)
        backend = HybridBackend(problem, families, device, choose_local, worker)
        super().__init__(problem, families, device, backend, effort, seed)


class HybridBackend(WorkerBackend):
    """Emits programs and measures them; see `autotune.measuring.backend.Backend`.

    Args:
        problem: what is computed.
        families: by name.
        device: the GPUs.
        choose_local: which kernel a GPU multiplies with.
        worker: the process that owns the GPUs.
    """

    batch = 1
    compiles_ahead = False  # programs are text; the kernel in them was compiled when it was tuned

    def __init__(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        choose_local: ChooseLocal,
        worker: SharedWorker,
    ) -> None:
        super().__init__(None, lambda key: Processes(key, worker), None)
        self._problem = problem
        self._families = families
        self._limits = device.limits
        self._choose_local = functools.cache(choose_local)

    @property
    def subject(self) -> Gemm:
        """The problem."""
        return self._problem

    def is_ready(self, candidate: Candidate) -> bool:
        """Always: there is nothing to compile."""
        return True

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Start the worker: operands and references of a large problem take their time."""
        self.processes.worker.begin(self._problem, run)

    def prepared(
        self, candidate: Candidate, run: Deadline, report: Report
    ) -> Prepared | Measurement:
        """A candidate's program, with the kernel within a GPU."""
        family = self._families[candidate.family]
        source = render(family, candidate.configuration, dtype=self._problem.dtype)
        wanted = local_problem(family, candidate.configuration, self._problem, self._limits)
        return Prepared(HybridProgram(source, family.name, self._choose_local(wanted)))
