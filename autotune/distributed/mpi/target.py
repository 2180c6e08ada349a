"""The target `mpi`: ranks to tune on, and kernels of communicators."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.core.dtypes import DTYPES
from autotune.core.errors import AutotuneError, FamilyError, InputError
from autotune.core.limits import MpiLimits
from autotune.core.processors import affinity_count, usable_processors
from autotune.core.suggestions import must_be
from autotune.distributed.grid import check_layout, described_gpu
from autotune.serving.reports import Doctor, Estimates
from autotune.serving.target import Joined, Option, Placement, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.core.check import Check
    from autotune.core.configuration import Candidate, Value
    from autotune.core.device import Device, DeviceFingerprint
    from autotune.distributed.mpi.messages import GpuProduct, LocalProduct, RankSet
    from autotune.distributed.mpi.ranks.world import Ranks
    from autotune.families.family import KernelFamily, Language
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Gemm, Problem
    from autotune.serving.kernel import BoundKernel, Kernel, Request
    from autotune.serving.reports import Forecast
    from autotune.serving.target import Work

PLACEMENTS = ("root", "distributed")
"""Where operands are: whole on rank 0, or in blocks on all ranks."""

MOST_RANKS = 1 << 20
"""More than any MPI library starts here; their grids are still counted in a moment."""

LOCALS = ("cpu", "cuda")
"""A rank multiplies on cores of its node, or on a GPU of its own."""

_ON_RANKS = {
    "cpu": (
        ("gpus == 0", "blocks are in the memory of GPUs, and this family multiplies on CPUs"),
    ),
    "cuda": (("gpus > 0", "this family multiplies on GPUs: tune with --local cuda"),),
}
"""Demands on the ranks of families that leave their local products to a target."""


class _Doctor(Doctor):
    def examine(self) -> Iterator[Check]:
        """The MPI library, its launcher, and whether two ranks meet."""
        from autotune.distributed.mpi.evaluator import examine

        return examine()


class _Estimates(Estimates):
    def forecast(
        self, problem: Problem, device: Device, cache: str | None = None
    ) -> Forecast | None:
        """The process grids that a model of communication favours, for ranks on CPUs."""
        from autotune.distributed.mpi.forecast import predicted_grids

        return predicted_grids(problem, device, cache)


class MpiTarget(Target):
    """Emitted mpi4py programs on a set of ranks.

    Args:
        ranks: number to start on this machine; None starts one for each core, or each GPU.
        operands: where the operands of the tuned kernel are; one of `PLACEMENTS`.
        attached: ranks that run already, whose rank 0 this process is; then none are started.
        local: a rank multiplies on it; one of `LOCALS`.
        comm: an mpi4py communicator to load kernels for; every rank of it loads them.

    Raises:
        InputError: `ranks` is less than 1 or more than `MOST_RANKS`, or `operands` or `local` is
            unknown.
    """

    name: ClassVar[str] = "mpi"
    doctor: ClassVar[Doctor] = _Doctor()
    estimates: ClassVar[Estimates] = _Estimates()
    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("ranks", "ranks to start here (default: one per core)", int),
        Option(
            "local",
            "what a rank multiplies on: cpu, or cuda, a GPU of its own (default cpu)",
            metavar="TARGET",
            choices=LOCALS,
        ),
        Option(
            "operands",
            "root, whole on rank 0 (the default), or distributed, in blocks on all ranks",
            metavar="WHERE",
            choices=PLACEMENTS,
        ),
        Option("comm", "communicator that a kernel is loaded for", object, decides=True),
    )

    def __init__(
        self,
        ranks: int | None = None,
        operands: str = "root",
        attached: Ranks | None = None,
        local: str = "cpu",
        comm: Any = None,
    ) -> None:
        if ranks is not None and ranks < 1:
            raise InputError(f"ranks must be at least 1, got {ranks}")
        if ranks is not None and ranks > MOST_RANKS:
            raise InputError(f"ranks must be at most {MOST_RANKS}, got {ranks}")
        if operands not in PLACEMENTS:
            raise InputError(must_be("operands", operands, PLACEMENTS))
        if local not in LOCALS:
            raise InputError(must_be("local", local, LOCALS))
        self._ranks = ranks
        self._gpus = local == "cuda"
        self._operands = operands
        self._attached = attached
        self._described = None if attached is None else attached.describe()
        self._comm = comm

    @classmethod
    def language(cls) -> Language:
        """Python for mpi4py."""
        from autotune.families.family import Delegate, Language
        from autotune.families.python_source import check_module

        return Language(
            limits=frozenset(limit.name for limit in fields(MpiLimits)),
            check=check_module,
            names=_mpi_names,
            reserved=lambda operation: frozenset({"mpi_type"}),
            local={
                name: Delegate(demands, threaded=name == "cpu")
                for name, demands in _ON_RANKS.items()
            },
        )

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        """The number of ranks; those of several nodes are started by the user's mpiexec."""
        fields = fingerprint.fields
        ranks, on_gpus = int(fields["ranks"]), "gpus" in fields
        options = {"local": "cuda"} if on_gpus else {}
        if fields["operands"] != "root":
            options["operands"] = str(fields["operands"])
        across = int(fields["nodes"]) > 1
        return Placement(
            options={"ranks": ranks, **options},
            device=fingerprint.name.partition(" on ")[2] if on_gpus else None,
            launcher=("mpiexec", "-n", str(ranks)) if across else (),
            replaced=frozenset({"ranks"}) if across else frozenset(),
            arguments=(
                ("comm", "comm"),
                *((name, f'"{value}"') for name, value in options.items()),
            ),
            comment=f"on {ranks} ranks, comm their communicator",
        )

    @property
    def names_devices(self) -> bool:
        """True for ranks that have a GPU each: those can be described."""
        return self._gpus

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """The ranks, on this machine's CPU or GPUs; none are started to find out.

        Ranks with GPUs may be described, too: so many of a kind of GPU that is not here, with the
        MPI library that is.
        """
        from autotune.distributed.mpi.evaluator import device_of

        if name is not None and not self._gpus:
            raise InputError(
                f'a device names a GPU, got {name!r} with target mpi on CPUs: add local="cuda"'
            )
        check_layout(problem, self.name)
        distributed = self._operands == "distributed"
        if name is not None:
            gpu = described_gpu(name, "ranks of target mpi take the GPUs in turn")
            if gpu.described:
                return device_of(self.describe(gpu), gpu, distributed=distributed)
        if self._gpus:
            from autotune.gpu.nvidia.device import read_gpu

            return device_of(self.describe(), read_gpu(), distributed=distributed)
        from autotune.cpu.identity import read_cpu

        return device_of(self.describe(), read_cpu(), distributed=distributed)

    def describe(self, gpu: Device | None = None) -> RankSet:
        """The set of ranks; none are started to find out.

        Args:
            gpu: of the kind that each of them has, where that is not here.
        """
        from autotune.distributed.mpi.evaluator import expected
        from autotune.distributed.mpi.gpu.cuda import check_gpus, count_gpus, expected_gpus

        if self._described is not None and gpu is None:
            return self._described
        cores = affinity_count()
        if not self._gpus:
            return expected(self._ranks or usable_processors(), cores)
        ranks = self._ranks or (count_gpus() if gpu is None else 1)
        gpus = expected_gpus(ranks, gpu or check_gpus(ranks))
        return replace(expected(ranks, cores), gpus=gpus)

    @contextmanager
    def joined(self, options: Mapping[str, str]) -> Iterator[Joined]:
        """The ranks under the user's mpiexec, if this process is one of them: rank 0 speaks.

        The others measure with it and then exit: with 0 if it left them results, with 1 if not.
        """
        from autotune.distributed.mpi.ranks.world import (
            AttachedRanks,
            attach,
            is_first,
            under_mpiexec,
        )

        if not under_mpiexec():
            yield Joined(self)
            return
        try:
            ranks = attach(options, gpus=self._gpus)
        except AutotuneError as error:  # on every rank
            if is_first():
                raise
            raise SystemExit(error.exit_code) from None
        if not isinstance(ranks, AttachedRanks):
            raise SystemExit(0 if ranks else 1)
        try:
            count = ranks.describe().ranks
            if self._ranks not in (None, count):
                raise InputError(
                    f"--ranks starts ranks, got {self._ranks} with {count} under mpiexec: leave "
                    "it out"
                )
            local = "cuda" if self._gpus else "cpu"
            yield Joined(MpiTarget(self._ranks, self._operands, ranks, local), ranks.winners)
        finally:
            ranks.dismiss()

    def _described_by(self, ranks: RankSet) -> MpiTarget:
        """This target on the ranks of a communicator."""
        found = copy.copy(self)
        found._described = ranks
        return found

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """The ranks, started here unless they are attached; a communicator is refused."""
        from autotune.distributed.mpi.evaluator import MpiEvaluator
        from autotune.distributed.mpi.loading import choose_gpu_local, choose_local
        from autotune.distributed.mpi.ranks.world import World

        if self._comm is not None:
            raise InputError(
                "a communicator is what kernels are loaded for, and tuning starts its own ranks: "
                "leave comm out, or run `autotune tune` under mpiexec"
            )
        limits = work.device.limits.names()
        ranks = self._attached or World(limits["ranks"], threads=limits["cores"], gpus=self._gpus)

        def choose(wanted: Gemm) -> LocalProduct | GpuProduct:
            return (choose_gpu_local if self._gpus else choose_local)(wanted, work.programs)

        return MpiEvaluator(work, ranks, choose)

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Refused: a distributed kernel belongs to a communicator."""
        raise InputError(
            "a kernel of target mpi belongs to a communicator: "
            'load(problem, target="mpi", comm=comm), on every rank of it'
        )

    def load_jointly(self, request: Request) -> Kernel | None:
        """The kernel of a communicator, on every rank of it."""
        from autotune.distributed.mpi.kernel import load_distributed

        if self._comm is None:
            return None
        return load_distributed(
            request,
            self._comm,
            self._described_by,
            operands=self._operands,
            local="cuda" if self._gpus else "cpu",
        )


def _mpi_names(
    family: KernelFamily, constants: Mapping[str, Value], dtype: str, out_dtype: str
) -> dict[str, Any]:
    """MPI's name of the element type."""
    if not DTYPES[dtype].mpi:
        raise FamilyError(
            f"family {family.name!r} cannot have dtype {dtype}: MPI has no such type"
        )
    return {"mpi_type": f"MPI.{DTYPES[dtype].mpi}"}
