"""Kernels for processors as files: a module for Numba, or assembly with a function of C."""

from __future__ import annotations

import ast
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.cpu.identity import read_cpu
from autotune.exporting.exportable import Exported, expanded
from autotune.families.gpu.launch import kernel_layout
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.exporting.exportable import Exportable
    from autotune.families.rendering import Source

_CHECKED_FEATURES = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")
"""Names that LLVM and C compilers' __builtin_cpu_supports have in common."""

_MEMORY = frozenset({"memcpy", "memmove", "memset", "malloc", "free", "aligned_alloc"})

_NUMBERS = frozenset(
    f"{name}{suffix}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos"),
        *("cosh", "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "hypot"),
        *("ldexp", "lgamma", "log", "log10", "log1p", "log2", "pow", "round", "sin", "sinh"),
        *("sqrt", "tan", "tanh", "tgamma", "trunc"),
    )
    for suffix in ("", "f")
)

_LIBRARY = _MEMORY | _NUMBERS
"""Functions of C's library that kernels call."""

_ALLOCATION = frozenset({"NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor"})
"""Functions of Numba's run-time for arrays that kernels make; exported files have their own."""

_RESHAPING = "numba_attempt_nocopy_reshape"
"""That for arrays that are seen in another shape; exported files have their own, too."""


def export(exportable: Exportable, form: str) -> Exported:
    """See `autotune.serving.reports.Exporter.export`."""
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
    return Exported(exportable.name, files, names["unchecked"])


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
    foreign = [each.dtype.name for each in names["call"].operands if not each.number.letter]
    if foreign:
        raise InputError(
            f"kernels of types that C has are exported for it, and record {record.id} is of "
            f"{foreign[0]}: --format python exports it"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = ProgramCache(Path(folder)).write(source, exportable.family.name)
        assembly = _assemble(path, source.entry, f"{name}_entry")
    features = [feature for feature in _CHECKED_FEATURES if feature in assembly.features]
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
        "CMakeLists.txt": expanded("cpu/CMakeLists.txt.j2", names),
    }
    notes = names["unchecked"]
    if not notes:
        files["main.c"] = expanded("cpu/main.c.j2", names)
    here = read_cpu().fingerprint
    if here.digest != record.fingerprint.digest:
        notes += (
            f"compiled for this processor, {here.name}: record {record.id} was tuned on "
            f"{record.fingerprint.name}",
        )
    return Exported(name, files, notes)


@dataclass(frozen=True, slots=True)
class _Assembly:
    """A kernel's code, with one function that is seen outside of it; LLVM's names of things.

    It needs neither Numba nor Python.
    """

    text: str
    processor: str
    features: frozenset[str]
    allocates: bool
    reshapes: bool


def _assemble(path: Path, entry: str, symbol: str) -> _Assembly:
    """Compile the entry of an emitted module for this processor, under the name `symbol`.

    Raises:
        CompileError: Numba refuses the module.
        InputError: the code needs what only a process with Numba has.
    """
    import llvmlite.binding as llvm

    callbacks: dict[str, Any] = {}
    with _recording(callbacks):
        dispatcher = getattr(load_module(path), entry)
    (compiled,) = dispatcher.overloads.values()
    (code,) = dispatcher.inspect_llvm().values()
    module = llvm.parse_assembly(code)
    main = module.get_function(compiled.fndesc.llvm_func_name)
    for name in [function.name for function in module.functions if function.is_declaration]:
        function = callbacks.get(name.rpartition("_")[0])
        if function is not None:
            module.link_in(_called_by_name(function, name))
    needed = _keep_only(module, main, symbol)
    foreign = needed - _LIBRARY - _ALLOCATION - {_RESHAPING}
    if foreign:
        raise InputError(
            f"the kernel cannot leave Numba's process: it calls {', '.join(sorted(foreign))}; "
            "--format python exports it"
        )
    features = llvm.get_host_cpu_features()
    processor = llvm.get_host_cpu_name()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor, features=features.flatten(), opt=3, reloc="pic", codemodel="default"
    )
    return _Assembly(
        # Without names of this machine's files, and of who compiled it.
        text=re.sub(
            r"^\t\.(file|ident)\t.*\n", "", machine.emit_assembly(module), flags=re.MULTILINE
        ),
        processor=processor,
        features=frozenset(name for name, on in features.items() if on),
        allocates=bool(needed & _ALLOCATION),
        reshapes=_RESHAPING in needed,
    )


@contextmanager
def _recording(callbacks: dict[str, Any]) -> Iterator[None]:
    """Collect by name what modules make with Numba's `cfunc` while they are imported.

    Families whose kernels call functions by name (a name of the function's own, and a digest)
    give those their addresses in this process, and keep nothing else of them.
    """
    import numba

    cfunc = numba.cfunc

    def recorded(*signature: Any, **options: Any) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            made = cfunc(*signature, **options)(function)
            callbacks[function.__name__] = made
            return made

        return decorate

    numba.cfunc = recorded
    try:
        yield
    finally:
        numba.cfunc = cfunc


def _called_by_name(function: Any, name: str) -> Any:
    """The module of a function made by `cfunc`, which others call by a name as if written in C.

    Numba's own function in C would print an exception by Python. These raise none.
    """
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(function.inspect_llvm())
    native = module.get_function(function.native_name.removeprefix("cfunc."))
    native.name = f"{name}_native"
    _, _, *kinds = (str(argument.type) for argument in native.arguments)
    values = ", ".join(f"{kind} %{place}" for place, kind in enumerate(kinds))
    caller = f"""
        declare i32 @{name}_native({", ".join(["ptr", "ptr", *kinds])})
        define void @{name}({values}) {{
            %result = alloca ptr
            %error = alloca ptr
            call i32 @{name}_native(ptr %result, ptr %error, {values})
            ret void
        }}"""
    module.link_in(llvm.parse_assembly(caller))
    return module


def _keep_only(module: Any, main: Any, symbol: str) -> set[str]:
    """Leave only `main`, renamed, and its callees in a module; gives the names that it lacks."""
    import llvmlite.binding as llvm

    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            value.linkage = "internal"
    main.linkage, main.visibility, main.name = "external", "hidden", symbol
    builder = llvm.create_pass_builder(
        llvm.Target.from_default_triple().create_target_machine(),
        llvm.create_pipeline_tuning_options(),
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, builder)
    values = (*module.functions, *module.global_variables)
    names = (value.name for value in values if value.is_declaration)
    return {name for name in names if not name.startswith("llvm.")}
