"""Emitted Numba modules to binaries: Numba and NVVM make PTX of them, nvJitLink a cubin.

No toolkit, no driver and no device are needed, and what comes out is launched like any other
binary: the kernel has its plain name and takes addresses and sizes, as one of CUDA C++ does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import platform
import re
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import CompileError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.gpu.nvidia.cubin import read_cubin
from autotune.gpu.nvidia.nvrtc import spill_bytes
from autotune.gpu.vendor import Compiled

if TYPE_CHECKING:
    from pathlib import Path

_INSTALL = install_hint("numba-cuda")

_FITS_NUMPY_2_5 = (0, 31)
"""Releases of numba-cuda before this one use `numpy.row_stack`, which NumPy 2.5 has removed."""

_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
_NUMBERED = re.compile(r"\b(?:_ZN\w+|_cudapy_smem_\d+)\b")


def compile_numba(path: Path, entry: str, architecture: str) -> Compiled:
    """Compile the kernel of an emitted module.

    The module is run: it defines the kernel; ``SIGNATURE``, the Numba signature to compile it for,
    which returns void; and ``THREADS``, the most threads of a block.

    Args:
        path: the module; tracebacks and error messages refer to it.
        entry: the kernel's name in it, and in the binary.
        architecture: "sm_90".

    Raises:
        CompileError: the module or its kernel is refused; the message is one line.
        MissingDependencyError: Numba-CUDA, NVVM or nvJitLink is missing, or does not know the
            architecture.
    """
    load_numba()
    start = time.perf_counter()
    ptx = _ptx(path, entry, architecture)
    cubin, log = _link(ptx, architecture)
    return Compiled(
        cubin=cubin,
        architecture=architecture,
        kernels=read_cubin(cubin),
        spill_bytes=spill_bytes(log),
        log=log,
        seconds=time.perf_counter() - start,
    )


def toolchain() -> dict[str, str]:
    """Versions of what compiles; "none" for what is missing. Does not import Numba."""
    try:
        numba = metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        numba = "none"
    try:
        linker = ".".join(map(str, _nvjitlink().version()))
    except MissingDependencyError:
        linker = "none"
    return {"numba_cuda": numba, "nvjitlink": linker}


@session.cached()
def label() -> str:
    """Versions of what compiles, with a digest of those of what it is built on."""
    parts = [platform.python_version()]
    for name in ("numba", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12"):  # with NVVM
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(name)}")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return "-".join([*(f"{name}{version}" for name, version in toolchain().items()), digest])


@session.cached()
def load_numba() -> Any:
    """The compiler, imported: `numba.cuda`.

    Raises:
        MissingDependencyError: a part of it is missing; the message says how to get it.
    """
    check_numba()
    if importlib.import_module("numba").config.ENABLE_CUDASIM:
        raise MissingDependencyError(
            "Numba's CUDA simulator compiles nothing: unset NUMBA_ENABLE_CUDASIM"
        )
    try:
        return importlib.import_module("numba.cuda")
    except (ImportError, RuntimeError) as error:
        raise _missing("all that Numba-CUDA loads", error) from error


@session.cached()
def check_numba() -> None:
    """Make sure that the compiler can be loaded; does not import Numba.

    Raises:
        MissingDependencyError: a part of it is missing; the message says how to get it.
    """
    if importlib.util.find_spec("numba_cuda") is None:
        raise MissingDependencyError(f"the numba-cuda target needs numba-cuda: {_INSTALL}")
    numba, numpy = metadata.version("numba-cuda"), metadata.version("numpy")
    if _release(numba) < _FITS_NUMPY_2_5 and _release(numpy) >= (2, 5):
        raise MissingDependencyError(
            f"numba-cuda {numba} uses a function that NumPy {numpy} has removed: {_INSTALL}, "
            "which brings a NumPy before 2.5"
        )
    _nvjitlink()
    _bindings("nvvm", "NVVM", "version")
    _bindings("runtime", "the CUDA runtime", "getLocalRuntimeVersion")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _nvjitlink() -> Any:
    return _bindings("nvjitlink", "nvJitLink", "version")


@session.cached()
def _bindings(module: str, library: str, probe: str) -> Any:
    """Bindings of a library, known to work since one of its functions does."""
    try:
        bindings = importlib.import_module(f"cuda.bindings.{module}")
        getattr(bindings, probe)()
    except (ImportError, RuntimeError) as error:  # RuntimeError: the library is not found
        raise _missing(library, error) from error
    return bindings


def _missing(library: str, error: Exception) -> MissingDependencyError:
    first = str(error).strip().partition("\n")[0]
    return MissingDependencyError(
        f"the numba-cuda target needs cuda-bindings and {library} ({first}): {_INSTALL}"
    )


def _ptx(path: Path, entry: str, architecture: str) -> str:
    from autotune.families.modules import load_module, one_line

    cuda = load_numba()
    module = load_module(path)
    missing = [name for name in (entry, "SIGNATURE", "THREADS") if not hasattr(module, name)]
    if missing:
        raise CompileError(f"{path.name} must define {' and '.join(missing)}")
    capability = divmod(int(architecture.removeprefix("sm_").rstrip("af")), 10)
    try:
        ptx, _ = cuda.compile(
            getattr(module, entry).py_func,
            module.SIGNATURE,
            device=False,
            abi="numba",
            cc=capability,
            launch_bounds=module.THREADS,
        )
    except importlib.import_module("numba.cuda.cudadrv.error").CCSupportError as error:
        raise MissingDependencyError(
            f"this Numba-CUDA does not compile for {architecture} ({error}): older devices need "
            f"target cuda and {install_hint('cuda12')}, newer ones a newer Numba-CUDA"
        ) from error
    except Exception as error:
        # What Numba raises for bad source is not a closed set of types.
        raise CompileError(f"{path.name} does not compile: {one_line(error)}") from error
    return _plainly_named(ptx, entry)


def _plainly_named(ptx: str, entry: str) -> str:
    """The same PTX, its kernel called `entry`.

    Numba numbers its names by process; numbering them anew makes equal sources equal binaries.
    """
    (mangled,) = _ENTRY.findall(ptx)
    numbers: dict[str, int] = {}

    def plain(match: re.Match[str]) -> str:
        return f"numba_{numbers.setdefault(match[0], len(numbers))}"

    return _NUMBERED.sub(plain, ptx.replace(mangled, entry))


def _link(ptx: str, architecture: str) -> tuple[bytes, str]:
    """The cubin, and what the assembler says of it."""
    nvjitlink = _nvjitlink()
    options = [f"-arch={architecture}", "-verbose"]
    handle = nvjitlink.create(len(options), options)
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel.ptx")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        said = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, said)
        lines = [line for line in _text(said).splitlines() if line.strip()]
        raise CompileError((lines or [str(error)])[0].strip()) from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), _text(log)


def _text(buffer: bytearray) -> str:
    return bytes(buffer).rstrip(b"\0 \n").decode(errors="replace")
