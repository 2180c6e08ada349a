"""Emitted modules as callables on NumPy arrays."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from autotune.configuration import Value
    from autotune.family import KernelFamily
    from autotune.problem import Problem
    from autotune.program_cache import ProgramCache

_WORKQUEUE = threading.Lock()
"""Held around parallel calls when Numba's threading layer is workqueue, which aborts the process
when two threads enter it at once."""


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """Everything needed to load a candidate's kernel, in this process or another.

    Attributes:
        path: the emitted module.
        entry: name of the function in it.
        dtype: element type of the operands.
        kernel_layout: the layout the module was emitted for.
        layout: the layout the operands come in; where it differs, they are copied.
        runtime: values of the parameters that are passed at the call.
        threads: threads the kernel uses.
    """

    path: Path
    entry: str
    dtype: str
    kernel_layout: str
    layout: str
    runtime: tuple[int, ...]
    threads: int


def write_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    programs: ProgramCache,
) -> CpuProgram:
    """Render a candidate and put its source into the program cache; nothing is compiled.

    Raises:
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault.
        CacheError: the program cache cannot be written.
    """
    from autotune.rendering import render

    layout = getattr(problem, "layout", "nn")
    kernel_layout = layout if layout in family.layouts else "nn"
    source = render(family, configuration, dtype=problem.dtype, layout=kernel_layout)
    return CpuProgram(
        path=programs.write(source, family.name),
        entry=source.entry,
        dtype=problem.dtype,
        kernel_layout=kernel_layout,
        layout=layout,
        runtime=tuple(int(configuration[name]) for name in source.runtime_parameters),
        threads=int(configuration.get("threads", 1)),
    )


def load_kernel(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    programs: ProgramCache,
) -> CpuKernel:
    """The kernel of a candidate, compiled now unless Numba's file cache has it.

    Raises:
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault.
        CompileError: Numba refuses the emitted module.
        CacheError: the program cache cannot be written.
    """
    return CpuKernel(write_program(family, configuration, problem, programs))


@functools.cache
def load_module(path: Path) -> ModuleType:
    """Import an emitted module by its path, which compiles it or loads what was compiled.

    Raises:
        CompileError: it does not import; the message is the compiler's, in one line.
    """
    name = f"autotune_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CompileError(f"{path} must be a Python module with the suffix .py")
    module = importlib.util.module_from_spec(spec)
    # What Numba loads from its file cache refers to the module by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        # What a compiler raises for bad source is not a closed set of types.
        raise CompileError(f"{path.name} does not compile: {one_line(error)}") from error
    return module


class CpuKernel:
    """An emitted kernel, called on NumPy arrays: ``kernel(a, b, out, alpha, beta)``.

    Operands must have the shapes, dtype and layout that the program is for; that is not checked
    here. Rows may be apart (a leading dimension) and A and B read-only; operands of any other
    memory layout, or of one the kernel was not emitted for, are copied.

    Attributes:
        program: what was loaded.

    Raises:
        CompileError: Numba refuses the emitted module.
    """

    def __init__(self, program: CpuProgram) -> None:
        self.program = program
        self._entry: Callable[..., None] = getattr(load_module(program.path), program.entry)
        self._dtype = np.dtype(program.dtype)
        self._flip_a = program.layout[0] != program.kernel_layout[0]
        self._flip_b = program.layout[1] != program.kernel_layout[1]
        self._reduction_axis = 0 if program.kernel_layout[0] == "t" else 1
        self._runtime = program.runtime
        self._threads = 1
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if program.threads > 1:
            # The emitted module has imported it by now.
            self._numba: Any = importlib.import_module("numba")
            self._threads = min(program.threads, self._numba.config.NUMBA_NUM_THREADS)
            if not self._reentrant:
                self._guard = _WORKQUEUE

    def __call__(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any],
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Store ``alpha A B + beta out`` in `out`; where beta is zero, `out` is not read."""
        a, a_stride = self._rows(a, self._flip_a)
        b, b_stride = self._rows(b, self._flip_b)
        c, c_stride = self._rows(out, False)
        m, k = out.shape
        arguments = (
            m,
            a.shape[self._reduction_axis],
            k,
            float(alpha),
            a.ctypes.data,
            a_stride,
            b.ctypes.data,
            b_stride,
            float(beta),
            c.ctypes.data,
            c_stride,
            *self._runtime,
        )
        if self._threads > 1:
            self._call_threaded(arguments)
        else:
            self._entry(*arguments)
        if c is not out:
            out[...] = c

    def _call_threaded(self, arguments: tuple[int | float, ...]) -> None:
        with self._guard:
            # The mask belongs to the calling thread; programs around this one keep theirs.
            previous = self._numba.get_num_threads()
            self._numba.set_num_threads(self._threads)
            try:
                self._entry(*arguments)
            finally:
                self._numba.set_num_threads(previous)

    @property
    def _reentrant(self) -> bool:
        """Whether Numba's threading layer lets several threads make parallel calls."""
        try:
            return bool(self._numba.threading_layer() != "workqueue")
        except ValueError:  # not known before the first parallel call
            return False

    def _rows(self, array: NDArray[Any], flip: bool) -> tuple[NDArray[Any], int]:
        """The array, or a copy, with contiguous rows; and the elements from one to the next."""
        if flip:
            array = np.ascontiguousarray(array.T)
        columns = array.shape[1]
        if array.flags.c_contiguous:
            return array, columns
        itemsize = self._dtype.itemsize
        row_stride, column_stride = array.strides
        stride, rest = divmod(row_stride, itemsize)
        if rest or stride < columns or (column_stride != itemsize and columns > 1):
            return np.ascontiguousarray(array), columns
        return array, stride


def one_line(error: Exception) -> str:
    """What a compiler has against a source, without the excerpts of it that follow."""
    # Numba prefixes the reason with the name of the pass.
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Failed in", "-"))]
    text = re.sub(r'File "[^"]*", (line \d+):', r"(\1)", " ".join(told[:2]))
    return f"{type(error).__name__}: {text[:300]}"
