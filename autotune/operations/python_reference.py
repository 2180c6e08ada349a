"""Functions in Python: of NumPy arrays, that say what outputs become, and others of a user's."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from autotune.core.errors import ExpressionError
from autotune.operations.sums import root_mean_square

LOADED = "autotune_reference"
"""The name of modules that functions run in."""


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function of a user's, by its text, which is parsed to learn what it takes.

    Attributes:
        function: its name.
        source: the module that it is in.

    Raises:
        ExpressionError: the source is no Python, has no such function, or that takes anything but
            plain arguments.
    """

    what: ClassVar[str] = "function"

    function: str
    source: str

    def __post_init__(self) -> None:
        _ = self.names

    @property
    def text(self) -> str:
        """The function's head and a digest of its module: equal texts compute the same."""
        digest = hashlib.sha256(self.source.encode()).hexdigest()[:16]
        return f"{self.head} in Python, digest {digest}"

    @property
    def head(self) -> str:
        """The function and what it takes."""
        return f"{self.function}({', '.join(self.taken)})"

    @property
    def taken(self) -> tuple[str, ...]:
        """The names that it takes, in order."""
        return _taken(self.source, self.function)

    @property
    def names(self) -> frozenset[str]:
        """The names that it takes."""
        return frozenset(self.taken)

    def call(self, values: Mapping[str, Any]) -> Any:
        """Call it.

        Args:
            values: of every name that it takes, and of others.

        Raises:
            ExpressionError: it raised something.
        """
        given = {name: _read_only(values[name]) for name in self.taken}
        try:
            with np.errstate(all="ignore"):
                return _loaded(self.source, self.function)(**given)
        except Exception as error:  # whatever a user's function may raise
            raise ExpressionError(
                f"{self.what} {self.function!r} fails: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class PythonReference(PythonFunction):
    """The outputs of an operation, by a function of its operands, scalars and sizes.

    It is run only to compute: to verify a kernel, or to time NumPy beside it. It has the methods
    of `Formula`. Of several outputs it gives a tuple, in their order.
    """

    what: ClassVar[str] = "reference"

    def factors_of(self, name: str) -> tuple[frozenset[str], ...]:
        """For each place of a name, the names that multiply it there: none are known."""
        return (frozenset(),) if name in self.names else ()

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Evaluate the output, in the precision of the operands.

        Args:
            values: of every name that it takes, an array or a number.

        Raises:
            ExpressionError: the function raised something, or gave no array of numbers.
        """
        return self.evaluate_all(values, 1)[0]

    def evaluate_all(self, values: Mapping[str, Any], count: int) -> tuple[Any, ...]:
        """Evaluate so many outputs; as `evaluate`."""
        given = self.call(values)
        results = (given,) if count == 1 and not isinstance(given, tuple) else given
        if not isinstance(results, (tuple, list)) or len(results) != count:
            raise ExpressionError(
                f"reference {self.function!r} must give {count} array{'s' * (count > 1)}, one for "
                f"each output, got {type(given).__name__}"
            )
        arrays = tuple(map(np.asarray, results))
        for array in arrays:
            if array.dtype.kind not in "fiubc":
                raise ExpressionError(
                    f"reference {self.function!r} must give an array of numbers, got {array.dtype}"
                )
        return arrays

    def magnitudes(self, values: Mapping[str, Any], results: Sequence[Any]) -> tuple[Any, ...]:
        """The magnitudes that rounding errors of the outputs are relative to.

        Nothing is known of what is added up inside. Where all is sums of products, the function of
        absolute values is what a formula would say; terms that cancel leave the result, or its
        root mean square, whichever is larger. Where they do not cancel, one running sum of n terms
        is off by a multiple of sqrt(n) u of the result (Higham and Mary, as for `Tolerance.of`),
        and n may be any dimension of an operand: the 16 eps of class `ieee` become sqrt(n) eps of
        it there, if that is more. Integers, which may be places, stay as they are.

        Args:
            values: of every name that it takes, an array or a number.
            results: what `evaluate_all` gave for them.

        Raises:
            ExpressionError: as `evaluate`.
        """
        plain = {
            name: np.abs(value) if np.asarray(value).dtype.kind in "fc" else value
            for name, value in values.items()
        }
        longest = max((size for each in values.values() for size in np.shape(each)), default=1)
        grown = max(1.0, math.sqrt(longest) / 16)
        # Where nothing is negative, terms are the results: a reference may take seconds.
        positive = all(np.array_equal(value, values[name]) for name, value in plain.items())
        terms = tuple(results) if positive else self.evaluate_all(plain, len(results))
        return tuple(
            _magnitude(np.abs(result), np.abs(term), grown)
            for result, term in zip(results, terms, strict=True)
        )


def _magnitude(result: Any, terms: Any, grown: float) -> Any:
    """The largest of what terms come to, and the result and its root mean square, as grown."""
    result, terms = (np.asarray(each).astype(np.float64, copy=False) for each in (result, terms))
    scale = np.asarray(np.maximum(result, root_mean_square(result)))
    scale *= grown
    if terms.shape != result.shape:
        terms = result
    elif not np.isfinite(terms).all():
        terms = np.where(np.isfinite(terms), terms, result)
    return np.maximum(terms, scale, out=scale)


@functools.lru_cache(maxsize=64)
def _taken(source: str, function: str) -> tuple[str, ...]:
    """The names of a function's arguments; the function is looked for, and not run."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"no Python: {error}") from error
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            arguments = node.args
            if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
                raise ExpressionError(f"function {function!r} must take plain arguments")
            return tuple(each.arg for each in (*arguments.args, *arguments.kwonlyargs))
    raise ExpressionError(f"there is no function {function!r}")


@functools.lru_cache(maxsize=16)
def _loaded(source: str, function: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": LOADED, "__builtins__": __builtins__}
    exec(compile(source, "reference.py", "exec"), names)
    found = names[function]
    assert inspect.isfunction(found)
    return found


def _read_only(value: Any) -> Any:
    """The same, which the function cannot write: other checks read it too."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
