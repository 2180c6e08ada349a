"""The target `hybrid`: the GPUs of a host as one device, driven by host threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.check import Check, Status, attempt
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.limits import HybridLimits
from autotune.core.suggestions import must_be
from autotune.distributed.grid import check_layout, described_gpu
from autotune.gpu.nvidia.device import load_driver, read_gpu
from autotune.gpu.nvidia.presence import look
from autotune.serving.examining import Apart
from autotune.serving.reports import Doctor
from autotune.serving.target import Option, Placement, Target

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.families.family import KernelFamily, Language
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.kernel import BoundKernel, Kernel
    from autotune.serving.target import Work


def read_gpus(count: int | None) -> tuple[Device, int, bool]:
    """Read the first `count` GPUs of this host, or all of them; creates no context.

    Returns:
        One of them, how many there are, and whether each can reach the memory of every other one.

    Raises:
        MissingDependencyError: cuda-bindings, the driver or a GPU is missing.
        InputError: there are fewer, or they are not alike.
    """
    first = read_gpu(0)
    driver = load_driver()
    there = int(driver.cuDeviceGetCount()[1])
    count = count or there
    if count > there:
        raise InputError(f"gpus must be at most {there}, the GPUs that are here, got {count}")
    check_alike([first, *(read_gpu(number) for number in range(1, count))])
    handles = [driver.cuDeviceGet(number)[1] for number in range(count)]
    reach = all(
        driver.cuDeviceCanAccessPeer(one, other)[1]
        for one, other in itertools.permutations(handles, 2)
    )
    return first, count, reach


def check_alike(gpus: Sequence[Device]) -> None:
    """Refuse GPUs that one kernel cannot serve, and name two that differ."""
    for number, gpu in enumerate(gpus):
        if gpu.fingerprint != gpus[0].fingerprint:
            raise InputError(
                f"GPUs must be alike, and 0 is {gpus[0].fingerprint.slug} and {number} is "
                f"{gpu.fingerprint.slug}: choose with CUDA_VISIBLE_DEVICES"
            )


def device_of(gpu: Device, count: int, operands: str, *, reach: bool) -> Device:
    """The device that several GPUs are together.

    Where the operands are belongs to its identity: what is best for operands that have to travel
    is not what is best for those in place.

    Args:
        gpu: one of them; the others are like it.
        count: number of GPUs.
        operands: "host", "device" (whole on the first GPU) or "blocks" (in blocks on all).
        reach: whether each can read the memory of every other one.
    """
    fields = {
        **gpu.fingerprint.fields,
        "gpus": count,
        "peers": int(reach),
        "operands": operands,
    }
    return replace(
        gpu,
        fingerprint=DeviceFingerprint("hybrid", f"{count} x {gpu.fingerprint.name}", fields),
        limits=HybridLimits(count, int(reach), int(operands == "host"), int(operands == "blocks")),
    )


def examine() -> Iterator[Check]:
    """Look at the GPUs together; each by itself is target cuda's."""
    with Apart() as apart:
        yield attempt("GPUs together", lambda: apart(together), Status.NOTE)


def together() -> Check:
    """Count the GPUs, and see whether they reach each other's memory."""
    if not look().usable:
        return Check.ok("GPUs together", "none that can be used")
    first, count, reach = read_gpus(None)
    found = f"{count} x {first.fingerprint.name}"
    if count > 1 and not reach:
        return Check.note("GPUs together", f"{found}; blocks travel by the host's memory")
    return Check.ok("GPUs together", found)


PLACEMENTS = ("host", "device", "blocks")
"""Where operands are: in the memory of the host, whole on the first GPU, or in blocks on all."""


class _Doctor(Doctor):
    def examine(self) -> Iterator[Check]:
        """The number of GPUs, and which of them reach each other."""
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
        check_layout(problem, self.name)
        if name is None:
            gpu, count, reach = read_gpus(self._gpus)
            return device_of(gpu, count, self.operands, reach=reach)
        described = described_gpu(name, "target hybrid uses the first GPUs")
        return device_of(described, self._gpus or 1, self.operands, reach=True)

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """One process that owns the GPUs, whatever else is open beside it."""
        from autotune.distributed.hybrid.harness import HybridEvaluator
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
