"""Direct calls of emitted kernels from arrays, which compiled code checks."""

from __future__ import annotations

import ctypes
import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core import session
from autotune.core.dtypes import ELEMENTS
from autotune.core.paths import data_dir
from autotune.families.modules import load_module
from autotune.operations.parts import Kind
from autotune.serving.numba_settings import numba_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from autotune.cpu.kernel import CpuKernel, CpuProgram
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem

_TEMPLATE = "_lib/numba_call.py.j2"
_NUMBERS = (float, int, bool, np.float64, np.float32)
"""Types of scalars that compiled code takes; others that may stand for a number are checked."""

_METH_FASTCALL = 0x80
_OBJECT_BYTES = object.__basicsize__


def direct_call(
    kernel: CpuKernel, problem: Problem, programs: ProgramCache
) -> Callable[..., bool] | None:
    """``call(*operands, *scalars)`` of a kernel for a problem: a function as if written in C.

    It computes, if the operands are what the kernel takes as they are, and returns whether it
    did. It is compiled unless Numba's file cache has it.

    None where there is no such call: the operands' layout is not the kernel's, its entry is no
    compiled function of the usual arguments, Python threads must take turns, or objects do not
    lie in memory as the function would read them.

    Raises:
        CacheError: the program cache cannot be written.
    """
    if kernel not in _CALLERS:
        _CALLERS[kernel] = _caller(kernel, programs)
    caller = _CALLERS[kernel]
    if caller is None:
        return None
    # In the order of the names in the template.
    sizes = itertools.chain(problem.shape, *(operand.shape for operand in problem.operands))
    plan = np.array([caller.address, *sizes, *caller.constants], np.int64)
    return _function(caller.module, plan.view(_Plan))


@dataclass(frozen=True, slots=True)
class _Caller:
    """Common part of a kernel's calls, whatever the sizes.

    Attributes:
        module: has the function in C.
        address: of the kernel's own compiled function.
        constants: numbers for that function, after the sizes.
    """

    module: ModuleType
    address: int
    constants: tuple[int, ...]


_CALLERS: dict[CpuKernel, _Caller | None] = session.keep("compiled calls", {}, lasting=True)
"""By kernel; None where there is no such call."""


def _caller(kernel: CpuKernel, programs: ProgramCache) -> _Caller | None:
    program = kernel.program
    if program.layout != program.kernel_layout or not kernel.reentrant:
        return None
    dtypes = [np.dtype(each.dtype or program.dtype) for each in program.defined.operands]
    address = _address(kernel.entry, program)
    if address is None or not all(map(_arrays_are_legible, dtypes)):
        return None
    kinds = (np.ndarray, *dtypes, *_NUMBERS)
    constants = (kernel.threads, *map(id, kinds), *program.runtime)
    return _Caller(load_module(write_call(program, programs)), address, constants)


def write_call(program: CpuProgram, programs: ProgramCache) -> Path:
    """The module that calls a program on arrays; many programs share one.

    Raises:
        CacheError: the program cache cannot be written.
    """
    names, templates = _names(program), data_dir("templates")

    def rendered() -> Source:
        # Late: whoever only reads the processor needs no templates.
        from autotune.families.rendering import Source
        from autotune.families.templating import expand

        text = expand(_TEMPLATE, (templates,), names)
        return Source(text, "call", (), "cpu", settings=numba_settings())

    return programs.written("call", "cpu", _call_key(names), rendered, numba_settings())


def known_call(program: CpuProgram, programs: ProgramCache) -> Path | None:
    """The module that `write_call` wrote before, if it did; nothing is rendered."""
    return programs.known("call", "cpu", _call_key(_names(program)), numba_settings())


def _call_key(names: Mapping[str, Any]) -> object:
    stamp = (data_dir("templates") / _TEMPLATE).stat()
    return stamp.st_mtime_ns, stamp.st_size, names


def _names(program: CpuProgram) -> dict[str, Any]:
    defined = program.defined
    types = defined.scalar_types(program.dtype)
    return {
        "dtype": program.dtype,
        "runtime": len(program.runtime),
        "threaded": program.threads > 1,
        "sizes": [defined.spelled(name) for name in defined.sizes],
        "operands": [
            {
                "name": operand.name.lower(),
                "dimensions": len(operand.shape) or 1,
                "itemsize": ELEMENTS[operand.dtype or program.dtype].itemsize,
                "written": operand.written,
                "packed": operand.name in defined.packed,
            }
            for operand in defined.operands
        ],
        "scalars": [name for name, _ in defined.scalars],
        "integers": [name for name, _ in defined.integers],
        "numbers": len(_NUMBERS),
        "entry": [
            (argument.kind.value, argument.name, types.get(argument.name, ""))
            for argument in defined.arguments
        ],
    }


class _Method(ctypes.Structure):
    """Python's description of a function in C: a PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class _Plan(np.ndarray[Any, Any]):
    """The array that a function in C works with, and owner of what that function is."""

    method: _Method


def _function(module: ModuleType, plan: _Plan) -> Callable[..., bool]:
    """A function in C and its one object, which owns the method: Python keeps its address only."""
    plan.method = _Method(b"call", module.call.address, _METH_FASTCALL, None)
    call: Callable[..., bool] = _new_function()(ctypes.addressof(plan.method), plan, None)
    return call


@session.cached()
def _new_function() -> Any:
    """`PyCFunction_NewEx`, with a prototype of our own: that of `ctypes.pythonapi` is shared."""
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object
    )
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))


def _address(entry: Any, program: CpuProgram) -> int | None:
    """Address of an entry's compiled function, if it has the arguments of all entries."""
    compiled = list(getattr(entry, "overloads", {}).values())
    scalars = program.defined.scalar_types(program.dtype)
    wanted = [
        "uint64" if argument.kind is Kind.ADDRESS else scalars.get(argument.name, "int64")
        for argument in program.defined.arguments
    ]
    wanted += ["int64"] * len(program.runtime)
    if [str(variant.signature) for variant in compiled] != [f"({', '.join(wanted)}) -> none"]:
        return None
    (only,) = compiled
    return int(only.library.get_pointer_to_function(only.fndesc.llvm_func_name))


@session.cached()
def _arrays_are_legible(dtype: np.dtype[Any]) -> bool:
    """True if an array's fields are where the template looks for them.

    They are in NumPy 1 and 2 on CPython; builds without the GIL, or for debugging, have more in
    every object.
    """
    if sys.implementation.name != "cpython" or _OBJECT_BYTES != 16:
        return False
    probe = np.empty((5, 7), dtype)[1:4, ::2]
    words = (ctypes.c_int64 * 9).from_address(id(probe))
    if words[1:3] != [id(np.ndarray), probe.ctypes.data] or words[7] != id(dtype):
        return False
    shape, strides = ((ctypes.c_int64 * 2).from_address(words[place]) for place in (4, 5))
    dimensions, flags = words[3] & 0xFFFFFFFF, words[8] & 0xFFFFFFFF
    probe.flags.writeable = False
    then = words[8] & 0xFFFFFFFF
    return (dimensions, tuple(shape), tuple(strides), flags & ~then) == (
        2,
        probe.shape,
        probe.strides,
        0x400,
    )
