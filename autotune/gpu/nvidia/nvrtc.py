"""CUDA C++ to a binary, with NVRTC: no toolkit, no driver and no device are needed.

NVRTC compiles one source at a time in a process, whatever the number of threads.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import CompileError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.families.headers import without_quotes
from autotune.gpu.nvidia.cubin import read_cubin
from autotune.gpu.nvidia.cuda_headers import (
    INSTALL,
    header_digest,
    header_folders,
    missing_header,
)
from autotune.gpu.vendor import Compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

_INSTALL_12 = install_hint("cuda12")

_STANDARD = ("--std=c++17", "--ptxas-options=-v")

_OPTIONS = re.compile(r"^// nvrtc: (.*)$", re.MULTILINE)

_FAULTS = re.compile(
    r"^kernel\.cu\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.*)$", re.MULTILINE
)

# Of every kernel, in the compiler's log.
_SPILLS = re.compile(
    r"Function properties for (\w+)\s[^\n]*?"
    r"\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)


def compile_cuda(
    text: str, architecture: str, options: Sequence[str] = (), *, line_info: bool = False
) -> Compiled:
    """Compile CUDA C++17.

    A line of the source may have further options: ``// nvrtc: --use_fast_math``. They are a part
    of its text, and so of all digests of it.

    Args:
        text: the source; what it includes must come with CUDA, as the headers of 16-bit numbers
            do, and is looked for nowhere else.
        architecture: "sm_90".
        options: further options of NVRTC.
        line_info: map instructions to source lines, for profilers. Without it, sources that
            differ in comments only give the same binary.

    Raises:
        CompileError: the compiler refuses the source; the message is its first error, and all of
            them are its faults.
        MissingDependencyError: there is no NVRTC, or it does not know the architecture, or the
            headers are missing.
    """
    nvrtc = _nvrtc()
    _check_architecture(architecture)
    options = [*(each for line in _OPTIONS.findall(text) for each in shlex.split(line)), *options]
    standard = [] if any(each.startswith(("--std", "-std")) for each in options) else _STANDARD[:1]
    arguments = [
        f"--gpu-architecture={architecture}",
        *standard,
        *_STANDARD[1:],
        *(["--generate-line-info"] if line_info else []),
        *(f"--include-path={folder}" for folder in header_folders(text)),
        *options,
    ]
    start = time.perf_counter()
    status, program = nvrtc.nvrtcCreateProgram(
        without_quotes(text).encode(), b"kernel.cu", 0, [], []
    )
    _check(status, "")
    try:
        encoded = [argument.encode() for argument in arguments]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _output(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        text_log = log.rstrip(b"\0 \n").decode(errors="replace")
        _check(status, text_log)
        cubin = _output(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(
        cubin=cubin,
        architecture=architecture,
        kernels=read_cubin(cubin),
        spill_bytes=spill_bytes(text_log),
        log=text_log,
        seconds=time.perf_counter() - start,
    )


def spill_bytes(log: str) -> dict[str, int]:
    """Bytes of spill stores and loads of each kernel, from what the assembler says of it."""
    return {kernel: int(stores) + int(loads) for kernel, stores, loads in _SPILLS.findall(log)}


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version.

    Raises:
        MissingDependencyError: there is no NVRTC.
    """
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


def nvrtc_label(text: str) -> str:
    """NVRTC's version, and a digest of all else that its binary of a source depends on.

    Raises:
        MissingDependencyError: there is no NVRTC, or the headers are missing.
    """
    parts = (*_STANDARD, _library_bytes(), header_digest(text))
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:8]
    return f"nvrtc{'.'.join(map(str, nvrtc_version()))}-{digest}"


@session.cached()
def _library_bytes() -> int:
    """The size of NVRTC's library, in which releases of one version differ."""
    from cuda import pathfinder  # comes with cuda-bindings

    try:
        return Path(str(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)).stat().st_size
    except (OSError, RuntimeError):
        return 0


@session.cached()
def supported_architectures() -> tuple[str, ...]:
    """Architectures that can be compiled for, oldest first: "sm_75", "sm_80", ...

    Raises:
        MissingDependencyError: there is no NVRTC.
    """
    _, architectures = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in architectures)


def check_driver(driver: tuple[int, int]) -> None:
    """Refuse an NVRTC whose binaries the driver cannot load.

    A driver loads binaries of its own major version, whatever the minor one, and of older ones.

    Args:
        driver: major and minor version of CUDA that the driver supports.

    Raises:
        MissingDependencyError: NVRTC is newer; the message says which one to install.
    """
    version = nvrtc_version()
    if version[0] > driver[0]:
        remedy = "update the driver"
        if driver[0] == 12:
            remedy += f", or in a new environment {_INSTALL_12}"
        raise MissingDependencyError(
            f"NVRTC must not be newer than the driver, which supports CUDA {driver[0]}."
            f"{driver[1]}, and is {version[0]}.{version[1]}: {remedy}"
        )


@session.cached()
def _nvrtc() -> Any:
    """The bindings, known to work."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # RuntimeError: the library is not found
        first = str(error).strip().partition("\n")[0]
        raise MissingDependencyError(
            f"compiling CUDA needs cuda-bindings and NVRTC ({first}): {INSTALL}"
        ) from error
    return nvrtc


def _check_architecture(architecture: str) -> None:
    known = supported_architectures()
    # "a" and "f" mark features of one device or family: sm_90a.
    if architecture.rstrip("af") not in known:
        version = ".".join(map(str, nvrtc_version()))
        raise MissingDependencyError(
            f"NVRTC {version} compiles for {', '.join(known)}, not for {architecture}: "
            f"install an NVRTC that does (for older GPUs in a new environment {_INSTALL_12})"
        )


def _check(status: Any, log: str) -> None:
    nvrtc = _nvrtc()
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    _, name = nvrtc.nvrtcGetErrorString(status)
    faults = [(int(line), said) for line, said in _FAULTS.findall(log)]
    first = (errors or lines or [name.decode()])[0]
    told = missing_header(first, nvrtc_version()[0])
    after = lines[lines.index(first) + 1 :] if errors and not told else []
    if after[1:] and after[1].startswith("^"):  # the line of the source, and the place in it
        told = f": {after[0]}"
    raise CompileError(first + told, faults)


def _output(program: Any, size_of: Any, read: Any) -> bytes:
    status, size = size_of(program)
    _check(status, "")
    buffer = bytes(size)
    (status,) = read(program, buffer)
    _check(status, "")
    return buffer
