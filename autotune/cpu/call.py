"""A CPU kernel bound to a problem, called on NumPy arrays."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.host import check_operands
from autotune.arrays.libraries import NUMPY, library_of
from autotune.core import session
from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import OperandError
from autotune.core.forking import LOADING, threads_are_lost
from autotune.core.limits import CpuLimits
from autotune.cpu.direct import direct_call
from autotune.cpu.kernel import load_kernel
from autotune.operations.calls import check_call, outputs_of_call, typed
from autotune.operations.formula import Formula
from autotune.operations.problem import GEMM, MatrixOperation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem

_PLAIN = (float, int)


class _Views:
    """NumPy's views of operands that other libraries have in the memory of the host.

    Args:
        inputs: of a call. Results are of the library of the first, as they are on a GPU.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._like = inputs[0] if inputs else None
        self.given: list[tuple[NDArray[Any], Any]] = []

    def of(self, array: Any) -> Any:
        """The view of an operand; what has none stays, for its check to say so.

        Raises:
            OperandError: its library has no such view, or would miss the call or its gradients.
        """
        library = library_of(array)
        if library is NUMPY or library.memory_of(array) != "host":
            return array
        library.current_stream(array)
        library.check_detached(array)
        try:
            view = library.for_kernel(array)
        except (TypeError, RuntimeError, ValueError) as error:
            raise OperandError(
                f"operands must be such as NumPy can view, and {type(array).__name__} is not: "
                + str(error).partition("\n")[0]
            ) from error
        if view is not array:
            self.given.append((view, array))
        return view

    def back(self, result: Any) -> Any:
        """A result, or several: the operand that it is a view of, or an array of the library."""
        if isinstance(result, tuple):
            return tuple(map(self.back, result))
        for view, array in self.given:
            if view is result:
                return array
        return library_of(self._like).from_kernel(result, self._like)


class HostKernel:
    """``kernel(*inputs, out=None, stream=None, **scalars)``: checks operands, then computes.

    Args:
        problem: what it computes.
        raw: ``raw(*operands, *scalars)`` on operands that have been validated.
        direct: ``direct(*operands, *scalars)`` computes usual calls and says whether it did, if
            there is such a thing for the kernel.
    """

    def __init__(
        self,
        problem: Problem,
        raw: Callable[..., object],
        direct: Callable[..., bool] | None = None,
    ) -> None:
        self._problem = problem
        self._raw = raw
        self._direct = direct or _never
        defined = problem.defined
        self._defaults = dict(defined.scalars)
        self._inputs = len(defined.inputs)
        self._position = defined.operands.index(defined.output)
        output = problem.operands[self._position]
        self._shape, self._dtype = output.shape, ELEMENTS[output.dtype].numpy

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None, **scalars: Any) -> Any:
        """See `autotune.targets.Kernel`.

        The usual call is checked by compiled code, which computes nothing unless all is well.
        """
        if (
            stream is None
            and len(inputs) == self._inputs
            and scalars.keys() <= self._defaults.keys()
        ):
            values = {**self._defaults, **(scalars if out is not None else self._typed(scalars))}
            if out is not None or not self._problem.defined.reads_output(values):
                made = np.empty(self._shape, self._dtype) if out is None else out
                if self._direct(*self._ordered(inputs, made), *values.values()):
                    return made
        return self._call_carefully(inputs, out, scalars, stream)

    def _ordered(self, inputs: Sequence[Any], out: Any) -> tuple[Any, ...]:
        """The operands in the operation's order."""
        return (*inputs[: self._position], out, *inputs[self._position :])

    def _typed(self, scalars: Mapping[str, Any]) -> dict[str, Any]:
        return typed(self._problem.defined, scalars)

    def _call_carefully(
        self, inputs: Sequence[Any], out: Any, scalars: Mapping[str, Any], stream: Any
    ) -> Any:
        """Call with any operands: errors name those that do not fit, others are copied."""
        views = _Views(inputs)
        seen = [*map(views.of, inputs)]
        outs = [*map(views.of, out)] if isinstance(out, (list, tuple)) else views.of(out)
        if views.given:
            return views.back(self(*seen, out=outs, stream=stream, **scalars))
        if stream is not None:
            raise OperandError(f"a cpu kernel takes no stream, got {stream!r:.80}")
        defined = self._problem.defined
        check_call(defined, inputs, scalars)
        values = {**self._defaults, **self._typed(scalars)}
        arrays = check_operands(self._problem, inputs, out, values)
        self._raw(*arrays, *values.values())
        return self._results(arrays, out)

    def _results(self, arrays: Sequence[NDArray[Any]], out: Any = None) -> Any:
        """The output, or a tuple of several; those of `out` are what was given there."""
        defined = self._problem.defined
        given, found = iter(outputs_of_call(defined, out)), []
        for operand, array in zip(defined.operands, arrays, strict=True):
            if operand.written:
                own = None if operand.read else next(given)
                made = array if operand.shape else array.reshape(())
                found.append(made if own is None else own)
        return found[0] if len(found) == 1 else tuple(found)

    def replace_when_called(self, other: Callable[[], HostKernel]) -> None:
        """Let the next call, and all after it, do what another kernel does."""

        def computes(*arguments: Any) -> None:
            with LOADING:
                if self._raw is computes:
                    made = other()
                    self._raw, self._direct = made._raw, made._direct
            self._raw(*arguments)

        self._raw, self._direct = computes, _never


class HostOutputs(HostKernel):
    """The same with several outputs, with one that is a number, or with one in place."""

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None, **scalars: Any) -> Any:
        """See `HostKernel`."""
        defined = self._problem.defined
        if (
            out is None
            and stream is None
            and len(inputs) == self._inputs
            and scalars.keys() <= self._defaults.keys()
        ):
            given = iter(inputs)
            arrays = [
                next(given)
                if operand.read or not operand.written
                else np.empty(stored.shape, ELEMENTS[stored.dtype].numpy)
                for operand, stored in zip(defined.operands, self._problem.operands, strict=True)
            ]
            values = {**self._defaults, **self._typed(scalars)}
            if self._direct(*arrays, *values.values()):
                return self._results(arrays)
        return self._call_carefully(inputs, out, scalars, stream)


class HostProduct(HostKernel):
    """``kernel(a, b, out, alpha, beta, stream)``: a matrix product, checked and computed.

    The usual call costs less than one of NumPy's.
    """

    def __call__(  # type: ignore[override]
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """See `autotune.targets.Kernel`."""
        if stream is None and (out is not None or (type(beta) in _PLAIN and beta == 0)):
            c = np.empty(self._shape, self._dtype) if out is None else out
            if self._direct(a, b, c, alpha, beta):
                return c
        return self._call_carefully((a, b), out, {"alpha": alpha, "beta": beta}, stream)


def bound_kernel(
    problem: Problem,
    raw: Callable[..., object],
    direct: Callable[..., bool] | None = None,
) -> HostKernel:
    """A kernel of a problem, called as its operation is; arguments are those of `HostKernel`."""
    defined = problem.defined
    kind = HostKernel
    if isinstance(defined, MatrixOperation):
        kind = HostProduct
    elif len(defined.outputs) > 1 or defined.in_place or not defined.output.shape:
        kind = HostOutputs
    return kind(problem, raw, direct)


class NumpyKernel:
    """``raw(*operands, *scalars)``: a problem's result, computed by NumPy."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._defined = problem.defined
        self._names = [operand.name for operand in self._defined.operands]
        self._names += [name for name, _ in self._defined.scalars]

    def __call__(self, *arguments: Any) -> None:
        """Store the result in the operand that is written, which is read where it must be."""
        values = dict(zip(self._names, arguments, strict=True))
        outputs = [values[each.name] for each in self._defined.outputs]
        if self._defined.result == GEMM.result:
            named = self._problem.named({name: values[name] for name in "ABC"})
            _multiply(named["A"], named["B"], outputs[0], values["alpha"], values["beta"])
        else:
            self._store(self._named(values), outputs)

    def prepared(self, *operands: NDArray[Any]) -> Callable[[], object]:
        """A call on these operands with scalars at their defaults, for timing."""
        values = dict(zip(self._names, operands, strict=False))
        if self._defined.result == GEMM.result:
            named = self._problem.named(values)
            return functools.partial(np.matmul, named["A"], named["B"], out=named["C"])
        outputs = [values[each.name] for each in self._defined.outputs]
        named = self._named({**values, **dict(self._defined.scalars)})
        return functools.partial(self._store, named, outputs)

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values of the names in a formula, or of what a function takes, sizes among them."""
        scalars = {name: values[name] for name, _ in self._defined.scalars}
        operands = {each.name: values[each.name] for each in self._defined.operands}
        named = {**self._problem.sizes, **self._problem.named(operands), **scalars}
        if not self._defined.reads_output(scalars):
            made = (each.name for each in self._defined.outputs if not each.read)
            named |= {name: np.zeros_like(operands[name]) for name in made}
        return named

    def _store(self, named: Mapping[str, Any], outputs: Sequence[NDArray[Any]]) -> None:
        result = self._defined.result
        if isinstance(result, Formula):
            outputs[0][...] = result.evaluate(named)
            return
        for array, found in zip(outputs, result.evaluate_all(named, len(outputs)), strict=True):
            array[...] = found


def _multiply(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], alpha: Any, beta: Any) -> None:
    if alpha == 1 and beta == 0:
        np.matmul(a, b, out=out)
        return
    product = np.matmul(a, b)
    product *= alpha
    if beta != 0:
        product += beta * out
    out[...] = product


def numpy_kernel(problem: Problem) -> HostKernel:
    """NumPy's computation, with the checks and errors of a tuned kernel."""
    return bound_kernel(problem, NumpyKernel(problem))


def host_kernel(
    family: KernelFamily,
    configuration: Configuration,
    problem: Problem,
    limits: DeviceLimits,
    programs: ProgramCache,
) -> HostKernel:
    """A candidate of a CPU family as a callable, from Numba's file cache when it was compiled.

    In a child by fork that lost Numba's threads it is the nearest candidate of one thread, and
    one that had threads before the fork becomes that; NumPy computes where there is none.
    """

    def of_one_thread() -> HostKernel:
        alone = replace(limits, max_threads=1) if isinstance(limits, CpuLimits) else limits
        space = family.space(problem, alone)
        row = space.nearest(configuration, ())
        if row is None:
            return numpy_kernel(problem)
        return host_kernel(family, space[row], problem, alone, programs)

    if threads_are_lost() and family.thread_count(configuration, problem.dtype) != 1:
        return of_one_thread()
    kernel = load_kernel(family, configuration, problem, programs)
    bound = bound_kernel(problem, kernel, direct_call(kernel, problem, programs))
    if kernel.program.threads != 1:
        _THREADED[bound] = of_one_thread
    return bound


_THREADED: weakref.WeakKeyDictionary[HostKernel, Callable[[], HostKernel]] = (
    weakref.WeakKeyDictionary()
)
"""Kernels with threads, and their replacements in a child that lost them."""


def _after_fork_in_child() -> None:
    if threads_are_lost():
        for kernel, other in list(_THREADED.items()):
            kernel.replace_when_called(other)
        _THREADED.clear()


session.at_fork(child=_after_fork_in_child)


def _never(*arguments: object) -> bool:
    return False
