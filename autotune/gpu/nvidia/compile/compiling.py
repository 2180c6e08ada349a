"""Compiling ahead of the device: what a pool of processes runs, and binaries kept on disk."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.errors import CompileError, InputError
from autotune.core.reading import read_regular
from autotune.families.compiled_files import LARGEST_PROGRAM
from autotune.families.program_cache import ProgramCache
from autotune.gpu.nvidia.compile import numba_compiler
from autotune.gpu.nvidia.compile.cubin import read_cubin
from autotune.gpu.nvidia.compile.nvrtc import Compiled, compile_cuda, nvrtc_label, nvrtc_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from autotune.families.rendering import Source

_NICENESS = 10


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What is to be compiled.

    Attributes:
        source: CUDA C++ or a Numba module, as its target says.
        family: whose source it is.
        architecture: "sm_90".
    """

    source: Source
    family: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The compiler does not accept a source.

    Attributes:
        reason: its first error.
    """

    reason: str


CompileReply: TypeAlias = Compiled | Refused


@dataclass(frozen=True, slots=True)
class _Compiler:
    """What compiles the sources of a target.

    Attributes:
        load: imports it.
        label: its name and version, and a digest of what else its binary of a source depends on:
            binaries of each are kept apart.
        compile: makes a binary of a source, of the file that holds it, for an architecture.
    """

    load: Callable[[], object]
    label: Callable[[Source], str]
    compile: Callable[[Source, Path, str], Compiled]


def _numba_label(_: Source) -> str:
    return numba_compiler.label()


_COMPILERS: Mapping[str, _Compiler] = {
    "cuda": _Compiler(
        load=nvrtc_version,
        label=lambda source: nvrtc_label(source.text),
        compile=lambda source, _, architecture: compile_cuda(source.text, architecture),
    ),
    "numba-cuda": _Compiler(
        load=numba_compiler.load_numba,
        label=_numba_label,
        compile=lambda source, path, architecture: numba_compiler.compile_numba(
            path, source.entry, architecture
        ),
    ),
}


def compile_source(source: Source, family: str, architecture: str) -> Compiled:
    """Compile a source and keep nothing.

    Raises:
        CompileError: the compiler refuses it.
        MissingDependencyError: the compiler is missing, or does not know the architecture.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = ProgramCache(Path(folder)).write(source, family)
        return _COMPILERS[source.target].compile(source, path, architecture)


def compile_worker(
    programs: ProgramCache, targets: Collection[str]
) -> Callable[[CompileRequest], CompileReply]:
    """Entry of a worker that compiles, yielding to the process that measures.

    Args:
        programs: where sources and binaries are kept.
        targets: of the sources to come: their compilers are loaded now, not in the time of the
            first candidate.
    """
    os.nice(_NICENESS)
    for target in targets:
        _COMPILERS[target].load()
    return functools.partial(compile_kept, programs)


def is_kept(programs: ProgramCache, request: CompileRequest) -> bool:
    """Whether `compile_kept` finds a binary, as far as that is seen without reading it.

    Raises:
        CacheError: the program cache cannot be used.
        MissingDependencyError: the compiler is missing.
    """
    cubin = _binary(programs, request)
    return cubin.exists() and cubin.with_suffix(".json").exists()


def _binary(programs: ProgramCache, request: CompileRequest) -> Path:
    """Where the binary of a source is, or would be kept."""
    label = _COMPILERS[request.source.target].label(request.source)
    variant = f"{request.architecture}-{label}.cubin"
    return programs.binary(request.source, request.family, variant)


def read_kept(programs: ProgramCache, request: CompileRequest) -> Compiled | None:
    """What a source was compiled to before; None where nothing is kept that can be used.

    Raises:
        CacheError: the program cache cannot be used.
        MissingDependencyError: the compiler is missing.
    """
    cubin = _binary(programs, request)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InputError):
        binary = read_regular(cubin, LARGEST_PROGRAM)
        kept = json.loads(read_regular(cubin.with_suffix(".json"), LARGEST_PROGRAM))
        return Compiled(
            cubin=binary,
            architecture=request.architecture,
            kernels=read_cubin(binary),
            spill_bytes={str(name): int(size) for name, size in kept["spill_bytes"].items()},
            log=str(kept["log"]),
            seconds=0.0,
        )
    return None


def compile_kept(programs: ProgramCache, request: CompileRequest) -> CompileReply:
    """Compile a source, unless that was done before: binaries are kept beside the sources.

    Raises:
        CacheError: the program cache cannot be written.
        MissingDependencyError: the compiler is missing, or does not know the architecture.
    """
    kept = read_kept(programs, request)
    if kept is not None:
        return kept
    source, family = request.source, request.family
    cubin = _binary(programs, request)
    try:
        path = programs.write(source, family)
        compiled = _COMPILERS[source.target].compile(source, path, request.architecture)
    except CompileError as error:
        return Refused(str(error))
    fields = {name: asdict(compiled)[name] for name in ("spill_bytes", "log")}
    notes = cubin.with_suffix(".json")
    programs.keep(notes, json.dumps(fields).encode())  # first: who sees the binary finds them too
    programs.keep(cubin, compiled.cubin)
    return compiled
