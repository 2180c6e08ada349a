"""Checks of what the targets `cuda` and `numba-cuda` need: a GPU, its driver, compilers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.check import Check, Status, attempt
from autotune.core.errors import AutotuneError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.core.processors import text_of
from autotune.gpu.driver import activated, driver
from autotune.gpu.nvidia.device import load_driver, read_gpu
from autotune.gpu.nvidia.known_gpus import known_gpus
from autotune.gpu.nvidia.numba_compiler import check_numba, toolchain
from autotune.gpu.nvidia.nvml import driver_version
from autotune.gpu.nvidia.nvrtc import (
    check_driver,
    compile_cuda,
    nvrtc_version,
    supported_architectures,
)
from autotune.gpu.nvidia.presence import NO_DEVICE, Presence, look
from autotune.gpu.nvidia.vendor import has_pycuda
from autotune.serving.examining import Apart

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALL = install_hint("cuda")
_INSTALL_COMPILE = install_hint("compile")
_INSTALL_NUMBA = install_hint("numba-cuda")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_PROBE = 'extern "C" __global__ void probe(float* x) { *x = 1.0f; }'


def examine() -> Iterator[Check]:
    """Look at each of them; without a GPU, only at what compiles for those of others."""
    with Apart() as apart:
        try:
            seen = apart(look)
        except AutotuneError as error:
            yield Check.problem("GPU", f"the driver does not answer: {error}", _SEE)
            return
        usable = seen.usable
        yield from _gpus(seen)
        failing = Status.PROBLEM if usable else Status.NOTE
        if usable:
            yield attempt("driver", lambda: apart(versions))
        yield attempt("NVRTC", lambda: apart(compiler, usable), failing, _INSTALL_COMPILE)
        if usable:
            yield attempt("PyCUDA", lambda: apart(pycuda))
            yield attempt("context", lambda: apart(context), remedy=_SEE)
            yield _monitor()
    if os.environ.get("AUTOTUNE_GPUS"):
        remedy = "name files that describe GPUs, or unset AUTOTUNE_GPUS"
        yield attempt("AUTOTUNE_GPUS", _described, remedy=remedy)


def examine_numba() -> Iterator[Check]:
    """Look at Numba's compiler for GPUs, which is needed only where it is asked for."""
    if importlib.util.find_spec("numba_cuda") is None:
        yield Check.note("numba-cuda", "not installed", _INSTALL_NUMBA)
        return
    with Apart() as apart:
        yield attempt("numba-cuda", lambda: apart(numba_compiler), Status.NOTE, _INSTALL_NUMBA)


_SEE = "see what nvidia-smi says; restart what holds the GPU, or the machine"


def _gpus(seen: Presence) -> Iterator[Check]:
    """The GPUs that are here, and what keeps them from being used."""
    what, _, remedy = (seen.missing or "").partition("; ")
    for number, gpu in enumerate(seen.gpus):
        yield Check.ok(f"GPU {number}", str(gpu))
    if seen.gpus:
        if seen.missing is not None:
            yield Check.problem("GPU", f"cannot be used: {what}", remedy)
    elif seen.status not in (None, 0, NO_DEVICE):
        yield Check.problem("GPU", f"cannot be seen: {what}", remedy)
    elif _VISIBLE in os.environ and seen.missing is None:
        yield Check.note(
            "GPU",
            f"hidden by {_VISIBLE}={os.environ[_VISIBLE]!r}, if there is one",
            f"unset {_VISIBLE}",
        )
    elif _on_the_bus():
        yield Check.note("GPU", f"an NVIDIA GPU is in this machine, and {what}", remedy or None)
    else:
        yield Check.ok("GPU", "no NVIDIA GPU is here")


def _on_the_bus(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Does Linux list a GPU of NVIDIA's? A container may be shown what it may not use."""
    return any(
        text_of(device / "vendor") == _NVIDIA and text_of(device / "class").startswith(_DISPLAY)
        for device in devices.glob("*")
    )


def versions() -> Check:
    """The driver's version, and the one of CUDA that it supports."""
    api = _driver_api()
    return Check.ok("driver", f"{driver_version()}, for CUDA {api[0]}.{api[1]} and before")


def _driver_api() -> tuple[int, int]:
    _, version = load_driver().cuDriverGetVersion()
    return version // 1000, version % 1000 // 10


def compiler(here: bool) -> Check:
    """Check that NVRTC compiles: for the GPU that is here, else for any.

    Raises:
        AutotuneError: it does not.
    """
    try:
        version = ".".join(map(str, nvrtc_version()))
    except MissingDependencyError as error:
        if here:
            raise
        return Check.note(
            "NVRTC", "not here: nothing is compiled for GPUs", Check.refused("", error).remedy
        )
    known = supported_architectures()
    architecture = known[-1]
    if here:
        check_driver(_driver_api())
        architecture = f"sm_{read_gpu().limits.names()['compute_capability']}"
    compile_cuda(_PROBE, architecture)
    return Check.ok("NVRTC", f"{version} compiles for {architecture}, knows {known[0]} and later")


def pycuda() -> Check:
    """PyCUDA, which is used where it is installed.

    Raises:
        AutotuneError: it is installed and does not start.
    """
    if not has_pycuda():
        return Check.ok("PyCUDA", "not installed, and not needed")
    return Check.ok("PyCUDA", f"starts: {driver().name} makes contexts, streams and events")


def context() -> Check:
    """Check that this user gets a context on the first GPU, and memory there."""
    with activated(0):
        free = driver().free_bytes()
        driver().allocate(1 << 20).free()
    return Check.ok("context", f"is made, with {free / 2**30:.1f} GiB of memory free")


def numba_compiler() -> Check:
    """Check that Numba-CUDA finds all that it compiles with.

    Raises:
        AutotuneError: it does not.
    """
    check_numba()
    found = toolchain()
    return Check.ok("numba-cuda", f"{found['numba_cuda']}, nvJitLink {found['nvjitlink']}")


def _monitor() -> Check:
    """Check that clocks and power are read beside measurements."""
    if importlib.util.find_spec("pynvml") is None:
        return Check.note("NVML", "nvidia-ml-py is not installed: clocks are not seen", _INSTALL)
    return Check.ok("NVML", "clocks, power and temperature are read")


def _described() -> Check:
    """Check that the user's own descriptions of GPUs can be read."""
    return Check.ok("AUTOTUNE_GPUS", f"{len(known_gpus())} GPUs are known by name")
