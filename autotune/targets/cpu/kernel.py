"""Emitted modules as callables on NumPy arrays."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.facts import unchanged
from autotune.core.forking import LOADING, WORKQUEUE
from autotune.families.modules import load_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem


_KERNELS: dict[CpuProgram, CpuKernel] = {}
"""Their kernels: one serves all sizes, since an entry takes them as arguments."""


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

    @property
    def digest(self) -> str:
        """Equal for programs that do the same: a module is named by what is in it."""
        return repr(self)


def write_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    programs: ProgramCache,
) -> CpuProgram:
    """Render a candidate and put its source into the program cache; nothing is compiled.

    What was rendered before is not rendered again.

    Raises:
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault.
        CacheError: the program cache cannot be written.
    """
    layout = getattr(problem, "layout", "nn")
    kernel_layout = layout if layout in family.layouts else "nn"
    conformed = family.conform(configuration)
    runtime = family.runtime_parameters
    compiled = {name: value for name, value in conformed.items() if name not in runtime}

    def rendered() -> Source:
        from autotune.families.rendering import render

        return render(family, conformed, dtype=problem.dtype, layout=kernel_layout)

    if unchanged(family.template_files):
        key = (family.operation, family.digest, compiled, problem.dtype, kernel_layout)
        path = programs.written(family.name, family.target, key, rendered)
    else:  # the family that was read is not what its template makes now
        path = programs.write(rendered(), family.name)
    return CpuProgram(
        path=path,
        entry=family.operation,
        dtype=problem.dtype,
        kernel_layout=kernel_layout,
        layout=layout,
        runtime=tuple(int(conformed[name]) for name in runtime),
        threads=family.thread_count(conformed, problem.dtype),
    )


def load_kernel(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    programs: ProgramCache,
) -> CpuKernel:
    """The kernel of a candidate, compiled now unless Numba's file cache has it.

    It is made once, however many threads and problems ask for it.

    Raises:
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault.
        CompileError: Numba refuses the emitted module.
        CacheError: the program cache cannot be written.
    """
    program = write_program(family, configuration, problem, programs)
    kernel = _KERNELS.get(program)
    if kernel is None:
        with LOADING:
            kernel = _KERNELS.get(program)
            if kernel is None:
                kernel = _KERNELS[program] = CpuKernel(program)
    return kernel


class CpuKernel:
    """An emitted kernel, called on NumPy arrays: ``kernel(a, b, out, alpha, beta)``.

    Operands must have the shapes, dtype and layout that the program is for; that is not checked
    here. Rows may be apart (a leading dimension) and A and B read-only; operands of any other
    memory layout, or of one the kernel was not emitted for, are copied.

    Attributes:
        program: what was loaded.
        entry: the function in it.
        threads: threads that calls use: the program's, or as many as Numba has.
        reentrant: whether several Python threads may be in a call at once.

    Raises:
        CompileError: Numba refuses the emitted module.
    """

    def __init__(self, program: CpuProgram) -> None:
        self.program = program
        self.entry: Callable[..., None] = getattr(load_module(program.path), program.entry)
        self.threads = 1
        self.reentrant = True
        self._flip_a = program.layout[0] != program.kernel_layout[0]
        self._flip_b = program.layout[1] != program.kernel_layout[1]
        self._reduction_axis = 0 if program.kernel_layout[0] == "t" else 1
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if program.threads > 1:
            # The emitted module has imported it by now.
            self._numba: Any = importlib.import_module("numba")
            self.threads = min(program.threads, self._numba.config.NUMBA_NUM_THREADS)
            self.reentrant = _threads_may_share(self._numba)
            if not self.reentrant:
                self._guard = WORKQUEUE

    def __call__(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any],
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Store ``alpha A B + beta out`` in `out`; where beta is zero, `out` is not read."""
        c = self._rows(out, flip=False)
        a, b = self._rows(a, self._flip_a), self._rows(b, self._flip_b)
        self._enter(*self._arguments(a, b, c, float(alpha), float(beta)))
        if c is not out:
            out[...] = c

    def prepared(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]
    ) -> Callable[[], object]:
        """A call on these operands, for timing: as little as can be is done beside the kernel.

        The operands must live as long as the calls do. What has to be copied is, at every call.
        """
        rows = (
            self._rows(a, self._flip_a),
            self._rows(b, self._flip_b),
            self._rows(out, flip=False),
        )
        if rows[0] is not a or rows[1] is not b or rows[2] is not out:
            return functools.partial(self, a, b, out)
        enter = self.entry if self.threads == 1 else self._enter
        return functools.partial(enter, *self._arguments(a, b, out, 1.0, 0.0))

    def _arguments(
        self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], alpha: float, beta: float
    ) -> tuple[float, ...]:
        """What the entry takes, for operands whose rows are contiguous."""
        m, k = c.shape
        n = a.shape[self._reduction_axis]
        at_a, at_b, at_c = ((x.ctypes.data, self._stride(x)) for x in (a, b, c))
        return (m, n, k, alpha, *at_a, *at_b, beta, *at_c, *self.program.runtime)

    def _enter(self, *arguments: float) -> None:
        if self.threads == 1:
            self.entry(*arguments)
            return
        with self._guard:
            # The number belongs to the calling thread: it is the most that its caller allows, and
            # programs around this one keep theirs.
            previous = self._numba.get_num_threads()
            self._numba.set_num_threads(min(self.threads, previous))
            try:
                self.entry(*arguments)
            finally:
                self._numba.set_num_threads(previous)

    def _rows(self, array: NDArray[Any], flip: bool) -> NDArray[Any]:
        """The array, or a copy, with contiguous rows."""
        if flip:
            return np.ascontiguousarray(array.T)
        columns = array.shape[1]
        row_stride, column_stride = array.strides
        stride, rest = divmod(row_stride, array.itemsize)
        if array.flags.c_contiguous or (
            rest == 0 and stride >= columns and (columns == 1 or column_stride == array.itemsize)
        ):
            return array
        return np.ascontiguousarray(array)

    def _stride(self, array: NDArray[Any]) -> int:
        """Elements from one row to the next."""
        return array.shape[1] if array.flags.c_contiguous else array.strides[0] // array.itemsize


def _threads_may_share(numba: Any) -> bool:
    """Whether Numba's threading layer lets several Python threads make parallel calls at once."""
    try:
        return bool(numba.threading_layer() != "workqueue")
    except ValueError:  # not known before the first parallel call
        return False
