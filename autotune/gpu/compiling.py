"""Compiling ahead of the device: in processes, kept on disk, judged by its resources."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.errors import CompileError, InputError, MissingDependencyError
from autotune.core.reading import read_regular
from autotune.families.compiled_files import LARGEST_PROGRAM
from autotune.families.gpu.launch import architecture_of
from autotune.families.gpu.occupancy import blocks_per_multiprocessor, limit_restrictions
from autotune.families.program_cache import ProgramCache
from autotune.gpu.driver import NVIDIA, use, vendor
from autotune.gpu.vendor import Compiled
from autotune.operations.problem import MatrixOperation
from autotune.serving.reports import Resources
from autotune.space import Expression, Rejection, Restriction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from autotune.core.configuration import Configuration, Value
    from autotune.core.device import Device
    from autotune.core.limits import GpuLimits
    from autotune.families.family import KernelFamily
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem

_NICENESS = 10

SPILL_LIMIT = 64
"""Bytes of spill code, stores and loads, that a kernel may have unless told otherwise.

Eight registers saved and restored once. So few are addresses and sizes parked around the main
loop, which costs nothing that can be measured, and if it does the measurement says so. Kernels
whose accumulators do not fit their registers have hundreds or thousands of bytes, and run several
times slower than their neighbours.
"""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A source to be compiled.

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
    """The compiler does not accept a source; the reason is its first error."""

    reason: str


CompileReply: TypeAlias = Compiled | Refused


def compile_source(source: Source, family: str, architecture: str) -> Compiled:
    """Compile a source and keep nothing.

    Raises:
        CompileError: the compiler refuses it.
        MissingDependencyError: the compiler is missing, or does not know the architecture.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = ProgramCache(Path(folder)).write(source, family)
        return vendor().compilers[source.target].compile(source, path, architecture)


def compile_worker(
    programs: ProgramCache, targets: Collection[str], vendor_name: str = NVIDIA
) -> Callable[[CompileRequest], CompileReply]:
    """Entry of a worker that compiles, yielding to the process that measures.

    Args:
        programs: where sources and binaries are kept.
        targets: of the sources to come: their compilers are loaded now, not in the time of the
            first candidate.
        vendor_name: whose compilers.
    """
    os.nice(_NICENESS)
    use(vendor_name)
    for target in targets:
        vendor().compilers[target].load()
    return functools.partial(compile_kept, programs)


def is_kept(programs: ProgramCache, request: CompileRequest) -> bool:
    """Would `compile_kept` find a binary, as far as that is seen without reading it?

    Raises:
        CacheError: the program cache cannot be used.
        MissingDependencyError: the compiler is missing.
    """
    binary = _binary(programs, request)
    return binary.exists() and binary.with_suffix(".json").exists()


def _binary(programs: ProgramCache, request: CompileRequest) -> Path:
    """The file of a source's binary, there or not."""
    label = vendor().compilers[request.source.target].label(request.source)
    variant = f"{request.architecture}-{label}.cubin"
    return programs.binary(request.source, request.family, variant)


def read_kept(programs: ProgramCache, request: CompileRequest) -> Compiled | None:
    """The binary that a source was compiled to before; None where none can be used.

    Raises:
        CacheError: the program cache cannot be used.
        MissingDependencyError: the compiler is missing.
    """
    path = _binary(programs, request)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InputError):
        binary = read_regular(path, LARGEST_PROGRAM)
        kept = json.loads(read_regular(path.with_suffix(".json"), LARGEST_PROGRAM))
        return Compiled(
            cubin=binary,
            architecture=request.architecture,
            kernels=vendor().compilers[request.source.target].read(binary),
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
    binary = _binary(programs, request)
    try:
        path = programs.write(source, family)
        compiled = vendor().compilers[source.target].compile(source, path, request.architecture)
    except CompileError as error:
        return Refused(str(error))
    fields = {name: asdict(compiled)[name] for name in ("spill_bytes", "log")}
    notes = binary.with_suffix(".json")
    programs.keep(notes, json.dumps(fields).encode())  # first: who sees the binary finds them too
    programs.keep(binary, compiled.cubin)
    return compiled


def check_resources(
    compiled: Compiled,
    limits: GpuLimits,
    *,
    threads: int,
    dynamic_shared_bytes: int,
    kernel: str = "gemm",
    resident_blocks: int = 1,
    spill_limit: int | None = None,
    arrays: bool = False,
) -> Rejection | None:
    """Reason why a compiled kernel should not be launched; None if it should.

    Estimates made before compiling are checked again with the binary's own numbers.

    Args:
        compiled: what the compiler gave.
        limits: the device it would run on.
        threads: threads per block.
        dynamic_shared_bytes: dynamic shared memory per block.
        kernel: which kernel of the source.
        resident_blocks: the least number of blocks that must fit a multiprocessor at once.
        spill_limit: bytes of spill code, and of local memory per thread, that it may have; None
            takes `SPILL_LIMIT`.
        arrays: whether threads may have arrays in local memory, which counts for nothing then.
    """
    resources = compiled.kernels[kernel]
    names: Mapping[str, Value] = {
        **limits.names(),
        "threads": threads,
        "registers": resources.registers,
        "shared_bytes": resources.shared_bytes + dynamic_shared_bytes,
        "spill_bytes": compiled.spill_bytes.get(kernel, 0),
        "local_bytes": 0 if arrays else resources.local_bytes,
        "spill_limit": SPILL_LIMIT if spill_limit is None else spill_limit,
        "launch_bound": resources.max_threads or limits.max_threads_per_block,
    }
    for restriction in _rules(resident_blocks):
        expression = restriction.expression
        if not expression.holds(names):
            values = {name: names[name] for name in expression.ordered_names}
            return Rejection(restriction.text, restriction.reason, values)
    return None


def has_arrays(family: KernelFamily) -> bool:
    """Return whether kernels may keep arrays in local memory: those of products never mean to."""
    defined = family.defined
    return not (isinstance(defined, MatrixOperation) or defined.product)


@functools.cache
def _rules(resident_blocks: int) -> tuple[Restriction, ...]:
    own = (
        ("spill_bytes <= spill_limit", "spill code of the compiled kernel"),
        ("local_bytes <= spill_limit", "local memory of the compiled kernel, per thread"),
        ("threads <= launch_bound", "threads that the kernel was compiled for"),
    )
    rules = tuple(Restriction(Expression.parse(text), reason) for text, reason in own)
    return (*limit_restrictions(str(resident_blocks)), *rules)


def resources(
    family: KernelFamily,
    source: Source,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    limits: GpuLimits,
) -> Resources:
    """Resources of one configuration, as compiled, beside the estimates; or why there are none.

    Raises:
        CompileError: the compiler refuses the source.
    """
    assert family.launch is not None  # its target's families have one
    try:
        architecture = architecture_of(family, limits.architecture)
        binary = compile_source(source, family.name, architecture)
    except MissingDependencyError as error:
        return Resources(None, str(error))
    known = family.values(configuration, problem, limits)
    threads = int(known["threads"])
    dynamic = int(family.launch.shared_bytes.evaluate(known))
    main = binary.kernels[family.operation]
    rejection = check_resources(
        binary,
        limits,
        threads=threads,
        dynamic_shared_bytes=dynamic,
        kernel=family.operation,
        resident_blocks=int(family.launch.resident_blocks.evaluate(known)),
        spill_limit=family.launch.spill_limit,
        arrays=has_arrays(family),
    )
    shared = main.shared_bytes + dynamic
    document = {
        "architecture": binary.architecture,
        "threads": threads,
        "registers": main.registers,
        "spill_bytes": binary.spill_bytes.get(family.operation, 0),
        "local_bytes": main.local_bytes,
        "shared_bytes": shared,
        "blocks_per_multiprocessor": blocks_per_multiprocessor(
            limits, threads=threads, registers=main.registers, shared_bytes=shared
        ),
        "other_kernels": {
            name: {"registers": kernel.registers, "local_bytes": kernel.local_bytes}
            for name, kernel in binary.kernels.items()
            if name != family.operation
        },
        "rejection": None if rejection is None else str(rejection),
        "compile_s": round(binary.seconds, 6),
    }
    estimated = {name: known[name] for name in family.derived}
    return Resources(document, _summary(estimated, document, device))


def _summary(estimated: Mapping[str, Value], binary: Mapping[str, Any], device: Device) -> str:
    """Estimate and truth in one line."""

    def pair(name: str, unit: str = "") -> str:
        guess = estimated.get(name)
        said = "" if guess is None or guess == binary[name] else f" (estimated {guess})"
        return f"{binary[name]}{unit}{said}"

    text = (
        f"{device.fingerprint.name}: {pair('registers')} registers per thread, "
        f"{binary['spill_bytes']} bytes spilled, {binary['local_bytes']} bytes local, "
        f"{pair('shared_bytes')} bytes shared, {binary['threads']} threads per block, "
        f"{binary['blocks_per_multiprocessor']} blocks per multiprocessor"
    )
    return text if binary["rejection"] is None else f"{text}; not run: {binary['rejection']}"
