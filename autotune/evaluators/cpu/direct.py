"""Calling an emitted kernel straight from arrays, which are checked by compiled code."""

from __future__ import annotations

import array
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.evaluators.cpu.kernel import load_module
from autotune.paths import data_dir
from autotune.problem import ITEM_SIZES
from autotune.rendering import Source
from autotune.templating import expand

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.evaluators.cpu.kernel import CpuKernel
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache

_TEMPLATE = "_lib/numba_call.py.j2"


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A kernel and the sizes that it is called for.

    Attributes:
        call: ``call(address, a, b, out, alpha, beta)`` computes, if the operands are what the
            kernel takes as they are, and returns whether it did. The byte order of their dtype,
            which Numba may overlook, is the caller's to check.
        plan: what the call reads at its address; it must live as long as there are calls.
        refusals: what a call raises before anything is computed: Numba has no such types.
    """

    call: Callable[..., bool]
    plan: array.array[int]
    refusals: tuple[type[Exception], ...]

    @property
    def address(self) -> int:
        """Where the plan is."""
        return self.plan.buffer_info()[0]


def direct_call(kernel: CpuKernel, problem: Gemm, programs: ProgramCache) -> DirectCall | None:
    """The direct call of a kernel for a problem, compiled unless Numba's file cache has it.

    None where there is none: the operands' layout is not the kernel's, its entry is no compiled
    function of the usual arguments, or Python threads must take turns.

    Raises:
        CacheError: the program cache cannot be written.
    """
    program = kernel.program
    if program.layout != program.kernel_layout or not kernel.reentrant:
        return None
    address = _address(kernel.entry, program.dtype, len(program.runtime))
    if address is None:
        return None
    names = {
        "dtype": program.dtype,
        "itemsize": ITEM_SIZES[program.dtype],
        "runtime": len(program.runtime),
        "threaded": kernel.threads > 1,
    }
    text = expand(_TEMPLATE, (data_dir("templates"),), names)
    path = programs.write(Source(text, "call", (), "cpu"), "call")
    # In the order of the names in the template.
    sizes = (problem.m, problem.n, problem.k, *problem.a_shape, *problem.b_shape)
    plan = array.array("q", (address, *sizes, kernel.threads, *program.runtime))
    errors = importlib.import_module("numba.core.errors")
    return DirectCall(load_module(path).call, plan, (TypeError, ValueError, errors.NumbaError))


def _address(entry: Any, dtype: str, runtime: int) -> int | None:
    """Where the compiled function of an entry is, if it has the arguments of all entries."""
    compiled = list(getattr(entry, "overloads", {}).values())
    sizes, operand, more = "int64, int64, int64", "uint64, int64", ", int64" * runtime
    wanted = f"({sizes}, {dtype}, {operand}, {operand}, {dtype}, {operand}{more}) -> none"
    if [str(each.signature) for each in compiled] != [wanted]:
        return None
    (only,) = compiled
    return int(only.library.get_pointer_to_function(only.fndesc.llvm_func_name))
