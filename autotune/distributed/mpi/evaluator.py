"""A set of ranks as a device, and the evaluator whose programs it verifies and times."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, TypeAlias

from autotune.core import session
from autotune.core.check import Check, Status, attempt
from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import OutOfTimeError
from autotune.core.file_lock import Turns
from autotune.core.installing import install_hint
from autotune.core.limits import MpiLimits
from autotune.core.measurement import Measurement, Outcome
from autotune.cpu.compiling import Compiled, compile_worker
from autotune.distributed.mpi.messages import (
    GpuProduct,
    LocalProduct,
    MpiProgram,
    RankSet,
    Refused,
    Setup,
)
from autotune.distributed.mpi.processes import (
    SIZE_NAMES,
    VARIABLE,
    ask_apart,
    find_mpiexec,
    number_in,
    parse_library,
    patience_s,
)
from autotune.distributed.mpi.ranks.world import Ranks
from autotune.families.local import local_problem
from autotune.families.rendering import render
from autotune.measuring.backend import Backend, Baselines, Prepared
from autotune.measuring.effort import Effort, Report, Stage, Work
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.messages import Request
from autotune.measuring.processes import START_TIMEOUT_S
from autotune.measuring.sharing import WorkerPool
from autotune.operations.problem import Gemm, only_gemm
from autotune.serving.examining import Apart

_START_S = 60.0
_RANKS = 2


def device_of(ranks: RankSet, local: Device, *, distributed: bool) -> Device:
    """The device that a set of ranks is.

    Where the operands are belongs to its identity: what is best for operands that have to travel
    from rank 0 is not what is best for those in place.

    Args:
        ranks: as they describe themselves.
        local: multiplies within rank 0: the CPU of its node, or its GPU; the others' are alike.
        distributed: operands are kept in blocks by all ranks, instead of whole by rank 0.
    """
    plural = "" if ranks.ranks == 1 else "s"
    fields = {
        **local.fingerprint.fields,
        "ranks": ranks.ranks,
        "nodes": ranks.nodes,
        "cores": ranks.cores,
        "mpi": ranks.library,
        "transport": ranks.transport,
        "operands": "distributed" if distributed else "root",
    }
    limits = MpiLimits(ranks.ranks, ranks.nodes, ranks.cores, int(distributed))
    if (gpus := ranks.gpus) is not None:
        on_gpus = {
            "gpus": gpus.count,
            "cuda_aware": int(gpus.cuda_aware),
            "nccl": int(gpus.nccl),
        }
        fields = {**fields, "gpu": gpus.name, **on_gpus}
        limits = replace(limits, **on_gpus)
    name = f"{ranks.ranks} rank{plural} on {local.fingerprint.name}"
    return replace(
        local,
        fingerprint=DeviceFingerprint("mpi", name, fields),
        limits=limits,
        toolchain={**local.toolchain, "mpi": f"{ranks.library} {ranks.version}".strip()},
    )


def expected(ranks: int, cores: int) -> RankSet:
    """The set that so many ranks started here will be, as far as is known before they are.

    Args:
        ranks: number of ranks.
        cores: hardware threads of this machine.

    Raises:
        MissingDependencyError: mpi4py or mpiexec is missing, or the MPI library does not load.
    """
    return RankSet(ranks, 1, cores, *parse_library(_library_version()))


@session.cached()
def _library_version() -> str:
    find_mpiexec()
    return ask_apart(
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())",
        "mpi4py does not find its MPI library",
        f": {install_hint('mpi')}",
    )


def examine() -> Iterator[Check]:
    """Look at mpi4py, the launcher, the MPI library, and at ranks that meet.

    Nothing of it keeps a CPU or a GPU from working, so that all of it is notes.
    """
    hint = install_hint("mpi")
    if importlib.util.find_spec("mpi4py") is None:
        yield Check.note("mpi4py", "not installed", hint)
        return
    if os.environ.get(VARIABLE):
        yield attempt(VARIABLE, _patience, Status.NOTE)
    launcher = attempt("mpiexec", lambda: Check.ok("mpiexec", str(find_mpiexec())), Status.NOTE)
    yield launcher
    if launcher.status is not Status.OK:
        return
    with Apart() as apart:
        found = attempt("MPI", lambda: apart(library), Status.NOTE, hint)
    yield found
    if found.status is not Status.OK:
        return
    if (number_in(SIZE_NAMES, os.environ) or 1) > 1:
        yield Check.ok("ranks", "this process is one of several")
    else:
        yield attempt("ranks", _ranks, Status.NOTE)


def library() -> Check:
    """The library that mpi4py loads."""
    ranks = expected(1, 1)
    version = metadata.version("mpi4py")
    return Check.ok("MPI", f"mpi4py {version} loads {ranks.library} {ranks.version}".rstrip())


def _ranks() -> Check:
    """Start ranks that meet; they end with the process that started them."""
    from autotune.distributed.mpi.ranks.world import World

    limit_s = min(_START_S, patience_s(_START_S))
    try:
        with World(_RANKS) as world:
            world.describe(Deadline(limit_s))
    except OutOfTimeError:
        return Check.note(
            "ranks",
            f"{_RANKS} ranks did not meet within {limit_s:g} s",
            "see whether `mpiexec -n 2 hostname` ends; mpiexec and mpi4py's library must be of "
            "one MPI",
        )
    return Check.ok("ranks", f"{_RANKS} ranks start and meet")


def _patience() -> Check:
    return Check.ok(VARIABLE, f"ranks wait {patience_s():g} s for each other")


ChooseLocal: TypeAlias = Callable[[Gemm], LocalProduct | GpuProduct]
"""The kernel that a rank multiplies its part of a problem with."""

_RENEWALS = 2.0
"""Ranks are started anew for the finals where that takes at most one part in so many of the time
that is left."""


class MpiEvaluator(Evaluator):
    """Evaluates candidates of MPI families for one problem (see `Evaluator`).

    Args:
        work: the task; the problem's layout is "nn".
        ranks: verify and time; closed with the evaluator.
        choose_local: chooses the kernel that a rank multiplies with.
    """

    def __init__(self, work: Work, ranks: Ranks, choose_local: ChooseLocal) -> None:
        effort = work.effort or Effort()
        backend = MpiBackend(work, effort, ranks, choose_local)
        super().__init__(work.problem, work.families, work.device, backend, effort, work.seed)


class MpiBackend(Backend):
    """Compiles local kernels, a few together, and asks ranks.

    A compiler running beside a measurement would disturb it. Nothing of a candidate is kept:
    programs are text, and Numba keeps its binaries in its own file cache.
    """

    batch = 4

    def __init__(
        self, work: Work, effort: Effort, ranks: Ranks, choose_local: ChooseLocal
    ) -> None:
        limits = work.device.limits.names()
        self.baselines: Baselines = {}
        self.turns = Turns("cpu")
        self._work = work
        self._setup = Setup(
            only_gemm(work.problem, "target mpi"),
            effort,
            work.programs.folder,
            bool(limits["distributed"]),
            work.seed,
            limits["cores"] // limits["nodes"],
            gpu=str(work.device.fingerprint.fields.get("gpu") or ""),
        )
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
        """Seconds that starting ranks and giving them the problem took."""
        return self._setup_s

    def is_ready(self, candidate: Candidate) -> bool:
        """True if the kernel that ranks multiply with has been compiled."""
        local = self._local(candidate)
        return isinstance(local, GpuProduct) or local.source.digest in self._compiled

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Compile the local kernels that have not been compiled; the programs need none of it."""
        new = {
            local.source.digest: local
            for local in map(self._local, candidates)
            if isinstance(local, LocalProduct) and local.source.digest not in self._compiled
        }
        paths = [self._work.programs.write(local.source, local.family) for local in new.values()]
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
        family = self._work.families[candidate.family]
        source = render(family, candidate.configuration, dtype=self._setup.problem.dtype)
        return Prepared(MpiProgram(source, family.name, local))

    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The ranks' reply, or a `Failure`; ranks without the problem are given it first."""
        reply = self._ask(request, timeout_s, run)
        if isinstance(reply, Refused):
            # Ranks that were lost between two requests have been started anew, without a word.
            self._is_set_up = False
            reply = self._ask(request, timeout_s, run)
        if isinstance(reply, Refused):
            return Failure(FailureKind.RAISED, reply.reason)
        return reply

    def renew(self) -> None:
        """Have the next request handled by ranks that have done nothing else, where possible."""
        self._ranks.renew()
        self._is_set_up = False

    def begin_finals(self, run: Deadline) -> None:
        """Take ranks without a trial behind them, where there is time to start them."""
        if run.remaining_s > _RENEWALS * self._setup_s:
            self.renew()

    def close(self) -> None:
        """End the ranks and the compiler."""
        self._compilers.close()
        self._ranks.close()

    def _ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The reply of ranks, which refuse requests before they have the problem."""
        if not self._is_set_up:
            # Operands and references of a large problem take their time.
            begun_s = run.elapsed_s
            setup = self._setup
            if setup.gpu:  # and one of them multiplies alone, as the baseline
                alone = self._choose_local(replace(setup.problem, threads=None))
                assert isinstance(alone, GpuProduct)
                setup = replace(setup, alone=alone)
            reply = self._ranks.call(setup, START_TIMEOUT_S, run)
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

    def _local(self, candidate: Candidate) -> LocalProduct | GpuProduct:
        family = self._work.families[candidate.family]
        limits = self._work.device.limits
        wanted = local_problem(family, candidate.configuration, self._setup.problem, limits)
        return self._choose_local(wanted)
