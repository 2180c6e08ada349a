"""What Numba compiles a kernel to, as assembly that needs neither Numba nor Python."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.families.modules import load_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Assembly:
    """A kernel's code.

    Attributes:
        text: assembly, with one function that is seen outside of it.
        processor: LLVM's name of what it is for.
        features: LLVM's names of all that it may use of a processor.
        allocates: whether it calls the functions of `_ALLOCATION`.
        reshapes: whether it calls `_RESHAPING`.
    """

    text: str
    processor: str
    features: frozenset[str]
    allocates: bool
    reshapes: bool


def assemble(path: Path, entry: str, symbol: str) -> Assembly:
    """Compile the entry of an emitted module for this processor.

    Args:
        path: the module.
        entry: the function in it.
        symbol: what the function is called in the assembly.

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
    for name in [each.name for each in module.functions if each.is_declaration]:
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
    return Assembly(
        text=_tidy(machine.emit_assembly(module)),
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
    """The module of a callback of Numba's, which others call by a name, as if written in C.

    Numba's own function in C would print an exception by Python. These raise none.

    Args:
        function: made by Numba's `cfunc`.
        name: the name.
    """
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(function.inspect_llvm())
    native = module.get_function(function.native_name.removeprefix("cfunc."))
    native.name = f"{name}_native"
    _, _, *kinds = (str(each.type) for each in native.arguments)
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
    """Leave a function and what it calls in a module; gives the names that it lacks.

    Args:
        module: parsed by llvmlite; it is changed.
        main: the function.
        symbol: its new name.
    """
    import llvmlite.binding as llvm

    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration:
            each.linkage = "internal"
    main.linkage, main.visibility, main.name = "external", "hidden", symbol
    builder = llvm.create_pass_builder(
        llvm.Target.from_default_triple().create_target_machine(),
        llvm.create_pipeline_tuning_options(),
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, builder)
    declared = (*module.functions, *module.global_variables)
    names = (each.name for each in declared if each.is_declaration)
    return {name for name in names if not name.startswith("llvm.")}


def _tidy(assembly: str) -> str:
    """Assembly without names of this machine's files, and of who compiled it."""
    return re.sub(r"^\t\.(file|ident)\t.*\n", "", assembly, flags=re.MULTILINE)
