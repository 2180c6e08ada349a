"""Emitted modules as callables on NumPy arrays."""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.host import element_strides
from autotune.core import session
from autotune.core.configuration import Configuration
from autotune.core.facts import unchanged
from autotune.core.forking import LOADING, WORKQUEUE
from autotune.cpu.numba_start import import_numba
from autotune.cpu.threads import loops_of_kernels, start_threads
from autotune.families.gpu.launch import kernel_layout
from autotune.families.modules import load_module
from autotune.operations.parts import operand_arguments
from autotune.operations.problem import GEMM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.operations.operation import Operation
    from autotune.operations.problem import Problem


_KERNELS: dict[CpuProgram, CpuKernel] = session.keep(
    "kernels of Numba by program", {}, lasting=True
)
"""Kernels by their programs: one serves all sizes, since an entry takes them as arguments."""

_MADE: dict[tuple[KernelFamily, Configuration, str, str, Path], CpuKernel] = session.keep(
    "kernels of Numba by configuration", {}, lasting=True
)
"""The same by family as it was read, configuration, dtype, layout and folder of programs."""


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """Everything needed to load a candidate's kernel, in this process or another.

    Attributes:
        path: the emitted module.
        entry: name of the function in it.
        dtype: of the operands.
        kernel_layout: layout that the module was emitted for.
        layout: layout of the operands; where it differs, they are copied.
        runtime: values of the parameters that are passed at the call.
        threads: threads the kernel uses.
        defined: the operation.
    """

    path: Path
    entry: str
    dtype: str
    kernel_layout: str
    layout: str
    runtime: tuple[int, ...]
    threads: int
    defined: Operation = GEMM

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
    """Put a candidate's source into the program cache, rendered unless it was before.

    Raises:
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault.
        CacheError: the program cache cannot be written.
    """
    conformed = family.conform(configuration)

    def rendered() -> Source:
        from autotune.families.rendering import render

        layout = kernel_layout(family, problem.layout)
        return render(family, conformed, dtype=problem.dtype, layout=layout)

    if unchanged(family.template_files):
        key = _source_key(family, conformed, problem)
        settings = family.language.settings()
        path = programs.written(family.name, family.target, key, rendered, settings)
    else:  # the family that was read is not what its template makes now
        path = programs.write(rendered(), family.name)
    return _program(path, family, conformed, problem)


def known_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    programs: ProgramCache,
) -> CpuProgram | None:
    """The program that `write_program` wrote before, if it did; nothing is rendered."""
    conformed = family.conform(configuration)
    key = _source_key(family, conformed, problem)
    path = programs.known(family.name, family.target, key, family.language.settings())
    if path is None or not unchanged(family.template_files):
        return None
    return _program(path, family, conformed, problem)


def _source_key(family: KernelFamily, conformed: Configuration, problem: Problem) -> object:
    runtime = family.runtime_parameters
    compiled = {name: value for name, value in conformed.items() if name not in runtime}
    layout = kernel_layout(family, problem.layout)
    return (family.operation, family.digest, compiled, problem.dtype, layout)


def _program(
    path: Path, family: KernelFamily, conformed: Configuration, problem: Problem
) -> CpuProgram:
    return CpuProgram(
        path=path,
        entry=family.operation,
        dtype=problem.dtype,
        kernel_layout=kernel_layout(family, problem.layout),
        layout=problem.layout,
        runtime=tuple(int(conformed[name]) for name in family.runtime_parameters),
        threads=family.thread_count(conformed, problem.dtype),
        defined=family.defined,
    )


def is_loaded(
    family: KernelFamily, configuration: Configuration, problem: Problem, programs: ProgramCache
) -> bool:
    """True if `load_kernel` has made this kernel in this process."""
    return (family, configuration, problem.dtype, problem.layout, programs.folder) in _MADE


def load_kernel(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    programs: ProgramCache,
) -> CpuKernel:
    """The kernel of a candidate, compiled now unless Numba's file cache has it.

    It is made once, however many threads and problems ask for it.

    Raises:
        CompileError: Numba refuses the emitted module.
        AutotuneError: whatever `write_program` raises.
    """
    if not isinstance(configuration, Configuration):
        configuration = Configuration(configuration)
    key = family, configuration, problem.dtype, problem.layout, programs.folder
    kernel = _MADE.get(key)
    if kernel is None:
        program = write_program(family, configuration, problem, programs)
        with LOADING:
            kernel = _KERNELS.get(program)
            if kernel is None:
                kernel = _KERNELS[program] = CpuKernel(program)
        _MADE[key] = kernel
    return kernel


class CpuKernel:
    """An emitted kernel, called on NumPy arrays: ``kernel(*operands, *scalars)``.

    Operands come in the operation's order; scalars that are left out have their defaults.
    Operands must have the shapes, dtype and layout that the program is for; that is not checked
    here. Rows may be apart (a leading dimension) and inputs read-only; operands of any other
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
        numba = import_numba()  # before the emitted module does
        loops: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if program.threads > 1:
            start_threads()
            loops = loops_of_kernels()
        with loops:
            self.entry: Callable[..., None] = getattr(load_module(program.path), program.entry)
        self.threads = 1
        self.reentrant = True
        defined = program.defined
        self._count = len(defined.operands)
        self._outputs = [defined.operands.index(each) for each in defined.outputs]
        self._packed = [operand.name in defined.packed for operand in defined.operands]
        # Layouts are those of the first operands, where the operation leaves that open.
        layouts = zip(program.layout, program.kernel_layout, strict=True)
        self._flips = [stored != wanted for stored, wanted in layouts]
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._numba = numba
        if program.threads > 1:
            self.threads = min(program.threads, numba.config.NUMBA_NUM_THREADS)
            self.reentrant = _threads_may_share(numba)
            if not self.reentrant:
                self._guard = WORKQUEUE

    def __call__(self, *arguments: Any) -> None:
        """Store the result in the operand that is written; operands come first, then scalars."""
        arrays = self._plain(arguments[: self._count])
        self._enter(*self._arguments(arrays, arguments[self._count :]))
        for place in self._outputs:
            out = arguments[place]
            if arrays[place] is not out:
                out[...] = arrays[place]

    def prepared(self, *operands: NDArray[Any]) -> Callable[[], object]:
        """A call on these operands, for timing: the kernel with as little beside it as can be.

        The operands must live as long as the calls do. Those that must be copied are, every time.
        """
        arrays = self._plain(operands)
        if any(plain is not given for plain, given in zip(arrays, operands, strict=True)):
            return functools.partial(self, *operands)
        enter = self.entry if self.threads == 1 else self._enter
        return functools.partial(enter, *self._arguments(arrays, ()))

    def _arguments(
        self, arrays: Sequence[NDArray[Any]], scalars: Sequence[float]
    ) -> tuple[float, ...]:
        """Arguments of the entry, for operands whose rows are contiguous."""
        defined = self.program.defined
        number = {name: int for name, _ in defined.integers}
        values = {
            name: number.get(name, float)(default if value is None else value)
            for (name, default), value in itertools.zip_longest(defined.scalars, scalars)
        }
        for operand, array in zip(defined.operands, arrays, strict=True):
            strides = element_strides(array)
            assert strides is not None
            parts = operand_arguments(operand.name, array.ndim, written=operand.written)
            spread = (array.ctypes.data, *strides[:-1])
            values.update(zip((part.name for part in parts), spread, strict=True))
        more = itertools.repeat("n")
        shapes = [
            array.shape[::-1] if layout == "t" else array.shape
            for array, layout in zip(
                arrays, itertools.chain(self.program.kernel_layout, more), strict=False
            )
        ]
        sizes = defined.sizes_of(shapes)
        values.update((defined.spelled(name), sizes[name]) for name in defined.sizes)
        named = (values[argument.name] for argument in defined.arguments)
        return (*named, *self.program.runtime)

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

    def _plain(self, operands: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The operands, or copies, as the kernel reads them."""
        more = itertools.repeat(False)
        flipped = [
            np.ascontiguousarray(array.T) if flip else array
            for array, flip in zip(operands, itertools.chain(self._flips, more), strict=False)
        ]
        return [
            np.ascontiguousarray(array) if packed or element_strides(array) is None else array
            for array, packed in zip(flipped, self._packed, strict=True)
        ]


def _threads_may_share(numba: Any) -> bool:
    """True if Numba's threading layer lets Python threads make parallel calls at once."""
    try:
        return bool(numba.threading_layer() != "workqueue")
    except ValueError:  # not known before the first parallel call
        return False
