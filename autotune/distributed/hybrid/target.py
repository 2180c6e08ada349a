"""The target `hybrid`: the GPUs of a host, driven by host threads."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.limits import HybridLimits
from autotune.core.suggestions import must_be
from autotune.distributed.checks import check_layout, described_gpu
from autotune.serving.reports import Doctor
from autotune.serving.target import Option, Placement, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.core.check import Check
    from autotune.core.configuration import Candidate
    from autotune.core.device import Device, DeviceFingerprint
    from autotune.families.family import KernelFamily, Language
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.kernel import BoundKernel, Kernel
    from autotune.serving.target import Work

PLACEMENTS = ("host", "device", "blocks")
"""Where operands are: in the memory of the host, whole on the first GPU, or in blocks on all."""


class _Doctor(Doctor):
    def examine(self) -> Iterator[Check]:
        """The number of GPUs, and which of them reach each other."""
        from autotune.distributed.hybrid.identity import examine

        return examine()


class HybridTarget(Target):
    """Emitted programs whose host threads drive the streams of one or more GPUs.

    Args:
        gpus: GPUs to use, the driver's first ones; None takes all that this process may use.
        operands: where the operands of the tuned kernel are; one of `PLACEMENTS`.

    Attributes:
        operands: the same.

    Raises:
        InputError: `gpus` is less than 1, or `operands` is unknown.
    """

    name: ClassVar[str] = "hybrid"
    doctor: ClassVar[Doctor] = _Doctor()
    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("gpus", "GPUs to use, the first ones (default: all)", int),
        Option(
            "operands",
            "host (the default), device, whole on the first GPU, or blocks, on all GPUs",
            metavar="WHERE",
            choices=PLACEMENTS,
        ),
    )

    @classmethod
    def language(cls) -> Language:
        """Python whose threads drive the GPUs."""
        from autotune.families.family import Delegate, Language
        from autotune.families.python_source import check_module

        return Language(
            limits=frozenset(limit.name for limit in fields(HybridLimits)),
            check=check_module,
            names=lambda family, constants, dtype, out_dtype: {"ctype": DTYPES[dtype].c_type},
            reserved=lambda operation: frozenset({"ctype"}),
            local={"cuda": Delegate()},
        )

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        """The number of GPUs, and the operands' place if that is not the host."""
        fields = fingerprint.fields
        operands = {} if fields["operands"] == "host" else {"operands": str(fields["operands"])}
        return Placement(
            options={"gpus": int(fields["gpus"]), **operands},
            device=fingerprint.name.partition(" x ")[2],  # "4 x NVIDIA H200"
        )

    @property
    def names_devices(self) -> bool:
        """True: GPUs that are not here can be described."""
        return True

    def __init__(self, gpus: int | None = None, operands: str = "host") -> None:
        if gpus is not None and gpus < 1:
            raise InputError(f"gpus must be at least 1, got {gpus}")
        if operands not in PLACEMENTS:
            raise InputError(must_be("operands", operands, PLACEMENTS))
        self._gpus = gpus
        self.operands = operands

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """The GPUs here, or as many as were asked for of a kind that is only described."""
        from autotune.distributed.hybrid.identity import device_of, read_gpus

        check_layout(problem, self.name)
        if name is None:
            gpu, count, reach = read_gpus(self._gpus)
            return device_of(gpu, count, self.operands, reach=reach)
        described = described_gpu(name, "target hybrid uses the first GPUs")
        return device_of(described, self._gpus or 1, self.operands, reach=True)

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """One process that owns the GPUs, whatever else is open beside it."""
        from autotune.distributed.hybrid.evaluator import HybridEvaluator
        from autotune.distributed.hybrid.kernel import choose_local
        from autotune.gpu.driver import driver

        work.device.check_here()
        driver()  # says what is missing, before a process is started
        return HybridEvaluator(
            work, self.operands, lambda wanted: choose_local(wanted, work.programs)
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
        """The emitted program; its threads and streams are made at the first call."""
        from autotune.distributed.hybrid.kernel import bind
        from autotune.operations.problem import only_gemm

        device.check_here()
        gemm = only_gemm(problem, "target hybrid")
        return bind(family, candidate, gemm, device.limits, self.operands, programs)

    def kernel_class(self, problem: Problem) -> type[Kernel]:
        """Kernels that say which blocks go where, and can be freed."""
        from autotune.distributed.hybrid.kernel import HybridKernel

        return HybridKernel
