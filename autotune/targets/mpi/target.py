"""The target `mpi`: ranks to tune on, and the kernel that each of them multiplies with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.operations.problem import only_gemm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Effort, Evaluator
    from autotune.operations.problem import Gemm, Problem
    from autotune.targets.base import BoundKernel
    from autotune.targets.mpi.messages import GpuProduct, LocalProduct, RankSet
    from autotune.targets.mpi.ranks.world import Ranks

PLACEMENTS = ("root", "distributed")
"""Where operands are: whole on rank 0, or in blocks on all ranks."""

LOCALS = ("cpu", "cuda")
"""What a rank multiplies on: cores of its node, or a GPU of its own."""


class MpiTarget:
    """Emitted mpi4py programs on a set of ranks.

    Args:
        ranks: how many to start on this machine; None starts one for each core, or each GPU.
        operands: where the operands of the tuned kernel are; one of `PLACEMENTS`.
        attached: ranks that run already, whose rank 0 this process is; then none are started.
        local: what a rank multiplies on; one of `LOCALS`.

    Raises:
        InputError: `ranks` is less than 1, or `operands` or `local` is unknown.
    """

    name: ClassVar[str] = "mpi"

    def __init__(
        self,
        ranks: int | None = None,
        operands: str = "root",
        attached: Ranks | None = None,
        local: str = "cpu",
    ) -> None:
        if ranks is not None and ranks < 1:
            raise InputError(f"ranks must be at least 1, got {ranks}")
        if operands not in PLACEMENTS:
            raise InputError(must_be("operands", operands, PLACEMENTS))
        if local not in LOCALS:
            raise InputError(must_be("local", local, LOCALS))
        self._ranks = ranks
        self._gpus = local == "cuda"
        self._distributed = operands == "distributed"
        self._attached = attached

    def default_family(self, device: Device) -> str:
        """Row blocks where the operands have to travel, SUMMA where they are in place."""
        if self._gpus:
            return "gpu_summa"
        return "summa" if device.limits.names()["distributed"] else "rows"

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """The ranks, on this machine's CPU or GPUs; none are started to find out.

        Ranks with GPUs may be described, too: so many of a kind of GPU that is not here, with the
        MPI library that is.
        """
        from autotune.targets.mpi.identity import device_of

        if name is not None and not self._gpus:
            raise InputError(
                f'a device names a GPU, got {name!r} with target mpi on CPUs: add local="cuda"'
            )
        if problem is not None and only_gemm(problem, "target mpi").layout != "nn":
            raise InputError(
                f"layout must be nn on target mpi, got {problem.label}: transpose the operands"
            )
        gpu = None if name is None else self._named_gpu(name)
        if gpu is not None and gpu.described:
            return device_of(self._ranks_with(gpu), gpu, distributed=self._distributed)
        return device_of(self.describe(), self._local_device(), distributed=self._distributed)

    @staticmethod
    def _named_gpu(name: int | str) -> Device:
        """The GPU of that name, which need not be here."""
        from autotune.targets.cuda.target import CudaTarget

        if str(name).strip().isdecimal():
            raise InputError(
                f"ranks of target mpi take the GPUs in turn, got device {name}: choose them with "
                "CUDA_VISIBLE_DEVICES"
            )
        return CudaTarget().device(None, name)

    def _ranks_with(self, gpu: Device) -> RankSet:
        """Ranks that have each a GPU of a kind that is not here."""
        from autotune.targets.cpu.thread_limits import affinity_count
        from autotune.targets.mpi.gpu.gpus import expected_gpus
        from autotune.targets.mpi.identity import expected

        ranks = self._ranks or 1
        return replace(expected(ranks, affinity_count()), gpus=expected_gpus(ranks, gpu))

    def describe(self) -> RankSet:
        """The set of ranks; none are started to find out."""
        from autotune.targets.cpu.thread_limits import affinity_count
        from autotune.targets.mpi.identity import expected

        if self._attached is not None:
            return self._attached.describe()
        cores = affinity_count()
        if not self._gpus:
            return expected(self._ranks or cores, cores)
        from autotune.targets.mpi.gpu.gpus import check_gpus, count_gpus, expected_gpus

        ranks = self._ranks or count_gpus()
        gpu = check_gpus(ranks)
        return replace(expected(ranks, cores), gpus=expected_gpus(ranks, gpu))

    def _local_device(self) -> Device:
        """What rank 0 multiplies on."""
        if self._gpus:
            from autotune.targets.cuda.device.identity import read_gpu

            return read_gpu()
        from autotune.targets.cpu.identity import read_cpu

        return read_cpu()

    def evaluator(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None,
        workers: int | None,
        seed: int,
        beside: Evaluator | None = None,
    ) -> Evaluator:
        """The ranks, started here unless they are attached; none are another evaluator's."""
        from autotune.targets.mpi.evaluator import MpiEvaluator
        from autotune.targets.mpi.local import choose_gpu_local, choose_local
        from autotune.targets.mpi.ranks.world import World

        limits = device.limits.names()
        ranks = self._attached or World(limits["ranks"], threads=limits["cores"], gpus=self._gpus)

        def choose(wanted: Gemm) -> LocalProduct | GpuProduct:
            return (choose_gpu_local if self._gpus else choose_local)(wanted, programs)

        return MpiEvaluator(
            only_gemm(problem, "target mpi"),
            families,
            device,
            programs,
            ranks,
            choose,
            effort=effort,
            seed=seed,
        )

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Refused: a distributed kernel belongs to a communicator.

        Raises:
            InputError: always; the message says what to call.
        """
        raise InputError(
            "a kernel of target mpi belongs to a communicator: "
            'load(problem, target="mpi", comm=comm), on every rank of it'
        )
