"""NVIDIA, as `autotune.gpu.vendor.Vendor` describes a vendor."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from autotune.core.errors import MissingDependencyError
from autotune.gpu.nvidia import numba_compiler, presence
from autotune.gpu.nvidia.cubin import read_cubin
from autotune.gpu.nvidia.device import described, load_driver, read_gpu, visible_device
from autotune.gpu.nvidia.nvml import GpuMonitor
from autotune.gpu.nvidia.nvrtc import check_driver, compile_cuda, nvrtc_label, nvrtc_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.families.rendering import Source
    from autotune.gpu.interface import Driver, Stream
    from autotune.gpu.vendor import Blas, Compiled, Compiler
    from autotune.operations.problem import Problem


def has_pycuda() -> bool:
    """Is PyCUDA installed? It may not start."""
    try:
        return importlib.util.find_spec("pycuda.driver") is not None
    except ModuleNotFoundError:
        return False


class _Nvrtc:
    """CUDA C++, by NVRTC."""

    read = staticmethod(read_cubin)

    def load(self) -> object:
        return nvrtc_version()

    def label(self, source: Source) -> str:
        return nvrtc_label(source.text)

    def compile(self, source: Source, path: Path, architecture: str) -> Compiled:
        return compile_cuda(source.text, architecture)


class _Numba:
    """Python, by Numba-CUDA and nvJitLink."""

    read = staticmethod(read_cubin)

    def load(self) -> object:
        return numba_compiler.load_numba()

    def label(self, source: Source) -> str:
        return numba_compiler.label()

    def compile(self, source: Source, path: Path, architecture: str) -> Compiled:
        return numba_compiler.compile_numba(path, source.entry, architecture)


COMPILERS: Mapping[str, Compiler] = {"cuda": _Nvrtc(), "numba-cuda": _Numba()}


class Nvidia:
    """See `autotune.gpu.vendor.Vendor`."""

    compilers = COMPILERS
    support_target = "cuda"
    monitor = GpuMonitor
    read_gpu = staticmethod(read_gpu)
    described = staticmethod(described)

    def driver(self) -> Driver:
        """PyCUDA's where it is installed, else the bindings'.

        Raises:
            MissingDependencyError: the driver or its bindings are missing, or PyCUDA is installed
                and does not start.
        """
        load_driver()  # says clearly what is wrong where there is no driver
        module = "pycuda_driver" if has_pycuda() else "bindings"
        try:
            made: Driver = importlib.import_module(f"autotune.gpu.nvidia.{module}").make()
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise MissingDependencyError(
                f"PyCUDA is installed and does not start ({reason}): install it again, or pip "
                "uninstall pycuda, since it is not needed"
            ) from error
        return made

    def is_usable(self) -> bool:
        """See `Vendor.is_usable`; a warning says, once, why a GPU that is here is not used."""
        return presence.is_usable()

    def check(self, device: Device) -> None:
        """See `Vendor.check`."""
        major, minor = device.toolchain["cuda"].split(".")
        check_driver((int(major), int(minor)))

    def alone(self, device: Device) -> dict[str, str]:
        """See `Vendor.alone`."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        ordinal = int(device.state.get("ordinal", "0"))
        return {"CUDA_VISIBLE_DEVICES": visible_device(ordinal, visible)}

    def blas(self, problem: Problem, stream: Stream) -> Sequence[Blas]:
        """See `Vendor.blas`: cuBLAS, and of products cuBLASLt."""
        from autotune.gpu.nvidia.cublas import Cublas, CublasError, find_cublas, function_of
        from autotune.gpu.nvidia.cublaslt import CublasLt

        function = function_of(problem)
        library = None if function is None else find_cublas()
        if function is None or library is None:
            return ()
        found: list[Blas] = [Cublas(library, function, problem, stream)]
        if function == "cublas.gemm" and (beside := find_cublas("cublasLt")) is not None:
            with contextlib.suppress(CublasError):
                found.append(CublasLt(beside, problem, stream))
        return found


NVIDIA: Any = Nvidia()
