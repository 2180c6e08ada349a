"""The targets `cuda` and `numba-cuda`: emitted sources on an NVIDIA GPU."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.device import SETTINGS, Device
from autotune.gpu.driver import NVIDIA
from autotune.gpu.nvidia import presence
from autotune.gpu.target import LIMIT_NAMES, GpuEstimates, GpuTarget
from autotune.serving.numba_settings import numba_settings
from autotune.serving.reports import Doctor, Estimates, Exporter, Found

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.core.check import Check
    from autotune.exporting.exportable import Exportable, Exported
    from autotune.families.family import Language
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.target import Work


class _Doctor(Doctor):
    def examine(self) -> Iterator[Check]:
        """The GPUs, their driver, and what compiles and runs kernels."""
        from autotune.gpu.nvidia.examining import examine

        return examine()

    def found(self) -> Found | None:
        """The GPUs that are here."""
        seen = presence.look()
        return Found(
            "GPUs",
            tuple(asdict(gpu) | {"usable": seen.usable} for gpu in seen.gpus),
            tuple(map(str, seen.gpus)),
            seen.missing or "",
        )

    def described_devices(self) -> Sequence[str]:
        """The known GPUs."""
        from autotune.gpu.nvidia.known_gpus import known_gpus

        return tuple(known_gpus())


class _NumbaDoctor(_Doctor):
    def examine(self) -> Iterator[Check]:
        """This target's compiler; the rest is that of target cuda."""
        from autotune.gpu.nvidia.examining import examine_numba

        return examine_numba()


class _Exporter(Exporter):
    def export(self, exportable: Exportable, form: str) -> Exported:
        """Source, binary, and a launcher for the driver's API."""
        from autotune.gpu.nvidia.exporting import export

        return export(exportable, form)


class CudaTarget(GpuTarget):
    """Emitted CUDA C++ on an NVIDIA GPU."""

    name: ClassVar[str] = "cuda"
    vendor: ClassVar[str] = NVIDIA
    doctor: ClassVar[Doctor] = _Doctor()
    estimates: ClassVar[Estimates] = GpuEstimates(NVIDIA)
    exporter: ClassVar[Exporter] = _Exporter()

    @classmethod
    def language(cls) -> Language:
        """CUDA C++."""
        from autotune.families.family import Language
        from autotune.families.gpu import cuda_source
        from autotune.families.gpu.cuda_layout import laid_out
        from autotune.families.gpu.occupancy import limit_restrictions

        return Language(
            limits=LIMIT_NAMES,
            check=cuda_source.check,
            names=cuda_source.names,
            reserved=cuda_source.reserved,
            suffix=".cu",
            own_operations=True,
            epilogue=cuda_source.epilogue,
            lay_out=laid_out,
            headers=True,
            kernels=cuda_source.kernels_of,
            block_restrictions=limit_restrictions,
            mapped=True,
            featured="{}a".format,
        )


class NumbaCudaTarget(CudaTarget):
    """Emitted Numba source on an NVIDIA GPU: another compiler, the same device and launches."""

    name: ClassVar[str] = "numba-cuda"
    doctor: ClassVar[Doctor] = _NumbaDoctor()

    @classmethod
    def language(cls) -> Language:
        """Python for Numba-CUDA; its templates share a signature of their own."""
        from autotune.families.family import Language
        from autotune.families.gpu.occupancy import limit_restrictions
        from autotune.families.python_source import check_module

        return Language(
            limits=LIMIT_NAMES,
            check=check_module,
            block_restrictions=limit_restrictions,
            runtime=False,
            settings=numba_settings,
        )

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """As for CUDA, with this target's compiler beside the other."""
        from autotune.gpu.nvidia.numba_compiler import toolchain

        device = super().device(problem, name)
        if not device.toolchain:  # it is not here
            return device
        settings = {SETTINGS: said} if (said := numba_settings()) else {}
        return replace(device, toolchain={**device.toolchain, **toolchain(), **settings})

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """As for CUDA.

        Raises:
            MissingDependencyError: Numba-CUDA, NVVM or nvJitLink is missing.
        """
        from autotune.gpu.nvidia.numba_compiler import check_numba

        check_numba()
        return super().evaluator(work, beside)
