"""Kernels for processors as files: a module for Numba, or assembly with a function of C."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.cpu.assembling import assemble
from autotune.cpu.identity import read_cpu
from autotune.exporting.exportable import Exported, expanded
from autotune.families.gpu.launch import kernel_layout
from autotune.families.program_cache import ProgramCache

if TYPE_CHECKING:
    from autotune.exporting.exportable import Exportable
    from autotune.families.rendering import Source

_CHECKED_FEATURES = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")
"""What LLVM and C compilers' __builtin_cpu_supports both call so."""


def export(exportable: Exportable, form: str) -> Exported:
    """See `autotune.serving.target.Target.export`."""
    problem, family, record = exportable.problem, exportable.family, exportable.record
    if kernel_layout(family, problem.layout) != problem.layout:
        raise InputError(
            f"record {record.id} is of layout {problem.layout}, which family {family.name!r} "
            "serves by copying operands first: export a record of layout nn"
        )
    program = exportable.program
    assert program is not None  # there are no binaries for processors
    configuration, source = program.configuration, program.source
    names: dict[str, Any] = {
        **exportable.names(),
        "target": "cpu",
        "form": form,
        "runtime": {name: int(configuration[name]) for name in source.runtime_parameters},
        "threads": family.thread_count(configuration, problem.dtype),
    }
    return (_python if form == "python" else _c)(exportable, source, names)


def _python(exportable: Exportable, source: Source, names: dict[str, Any]) -> Exported:
    """The emitted module with a function for arrays at its end."""
    called = expanded("cpu/called.py.j2", names)
    # What Numba keeps has a folder of its own here, and may have none where the program is used.
    head = ast.parse(source.text).body[0].end_lineno
    lines = source.text.rstrip().replace("cache=True,", "cache=CACHED,").splitlines(keepends=True)
    text = [*lines[:head], "\n", expanded("cpu/kept.py.j2", names).decode(), *lines[head:], "\n"]
    files = {
        **exportable.common_files(names),
        f"{exportable.name}.py": "".join(text).encode() + called,
    }
    return Exported(exportable.name, files)


def _c(exportable: Exportable, source: Source, names: dict[str, Any]) -> Exported:
    """Assembly, a header, and what builds a shared library of them."""
    problem, record, name = exportable.problem, exportable.record, exportable.name
    if names["threads"] != 1:
        shape = "x".join(map(str, problem.shape))
        raise InputError(
            f"kernels of one thread are exported for C, and that of record {record.id} has "
            f"{names['threads']}: `autotune tune {problem.operation} --shape {shape} --dtype "
            f"{problem.dtype} --threads 1` makes a record of one, and --format python exports "
            "this one"
        )
    if not names["operand"].letter or not names["result"].letter:
        raise InputError(
            f"kernels of float32 and float64 are exported for C, and record {record.id} is of "
            f"{problem.dtype}: --format python exports it"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = ProgramCache(Path(folder)).write(source, exportable.family.name)
        assembly = assemble(path, source.entry, f"{name}_entry")
    features = [each for each in _CHECKED_FEATURES if each in assembly.features]
    names |= {
        "processor": assembly.processor,
        "features": features,
        "allocates": assembly.allocates,
        "reshapes": assembly.reshapes,
        "source": f"{name}.py",
    }
    files = {
        **exportable.common_files(names),
        f"{name}.py": source.text.encode(),
        f"{name}.s": assembly.text.encode(),
        f"{name}.h": expanded("cpu/kernel.h.j2", names),
        f"{name}.c": expanded("cpu/kernel.c.j2", names),
        "main.c": expanded("cpu/main.c.j2", names),
        "CMakeLists.txt": expanded("cpu/CMakeLists.txt.j2", names),
    }
    here = read_cpu().fingerprint
    notes: tuple[str, ...] = ()
    if here.digest != record.fingerprint.digest:
        notes = (
            f"compiled for this processor, {here.name}: record {record.id} was tuned on "
            f"{record.fingerprint.name}",
        )
    return Exported(name, files, notes)
