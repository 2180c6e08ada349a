"""Cases: the shapes, scalars and memory layouts that a kernel is verified at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from autotune.core.dtypes import DEFAULT_DTYPE, ELEMENTS
from autotune.core.errors import ExpressionError, InputError
from autotune.operations.accuracy import ACCURACIES
from autotune.operations.formula import Formula
from autotune.operations.hard import DRAWS, POSITIVE, SUBNORMAL
from autotune.operations.operation import Operation
from autotune.operations.problem import MatrixOperation, Problem, multiplies

_RAGGED = ((1, 1), (7, 1), (1, 5), (33, 17), (64, 64), (65, 127), (4, 131), (30, 3))
"""Sizes, by turns, where an operation names no cases."""

_FEW = (33, 17, 7, 65, 5, 3, 2, 1)
"""The sizes that replace ragged ones that are not valid: the first that is."""

_SCALARS = (None, -1.5, 0.0, 2.0, None, -0.25, 0.5, 1.0)
"""Values of scalars by turns; None is the default."""

_PADDING = (0, 0, 3, 1, 0, 7, 0, 5)

_MEDIUM = (257, 127, 63, 33, 17, 9, 5, 1)
_ALIKE = (1027, 515, 259, 131, 67, 35)
"""The sizes beside one large one, and of all: the largest for which operands are not
too large."""

_SOME = 100
"""Elements of an operand of which a few may be NaN without the result being little else."""

_MOST_ELEMENTS = 2**21
"""Of all operands of a case together."""


@dataclass(frozen=True, slots=True, init=False)
class Case:
    """One call to check, as in ``Case(5, 1, 3, scalars={"beta": 1.0}, padding=3)``.

    Attributes:
        sizes: in the operation's order.
        scalars: those that do not have their defaults, with their values.
        padding: elements between the end of a row and the start of the next, in every operand.
        distribution: of the operands' elements: "uniform" in (-1, 1), "normal", `SPECIAL`, or one
            of `hard.DRAWS`.
    """

    sizes: tuple[int, ...]
    scalars: tuple[tuple[str, float], ...]
    padding: int
    distribution: str

    def __init__(
        self,
        *sizes: int,
        padding: int = 0,
        distribution: str = "uniform",
        scalars: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "scalars", tuple(scalars.items()))
        object.__setattr__(self, "padding", padding)
        object.__setattr__(self, "distribution", distribution)

    def __str__(self) -> str:
        return " ".join(
            ["x".join(map(str, self.sizes)), *(f"{name}={x:g}" for name, x in self.scalars)]
        )

    @property
    def special(self) -> bool:
        """True if operands hold NaN and infinity, which are the reference's to propagate."""
        return self.distribution == SPECIAL

    @property
    def hard(self) -> bool:
        """True if operands are such as only the promise for all finite ones covers."""
        return self.distribution in DRAWS

    def told(self, names: Sequence[str]) -> str:
        """The case for people: ``at 7x5 (M=7, N=5)``, with the scalars that it names.

        Args:
            names: of the sizes.
        """
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.sizes, strict=True))
        scalars = "".join(f" {name}={x:g}" for name, x in self.scalars)
        drawn = ", operands with NaN and infinity" if self.special else ""
        if self.hard:
            drawn = f", operands: {self.distribution}"
        return f"at {'x'.join(map(str, self.sizes))} ({sizes}){scalars}{drawn}"

    def without_padding(self) -> Case:
        """The same with rows that follow each other."""
        return Case(*self.sizes, distribution=self.distribution, scalars=dict(self.scalars))

    def drawn_from(self, distribution: str) -> Case:
        """The same with elements of another distribution."""
        scalars = dict(self.scalars)
        return Case(*self.sizes, padding=self.padding, distribution=distribution, scalars=scalars)

    def scalars_of(self, operation: Operation, dtype: str = DEFAULT_DTYPE) -> dict[str, float]:
        """The value of every scalar of an operation, in its order: integers for those of a dtype.

        A fraction becomes the next integer away from zero.
        """
        values = {**dict(operation.scalars), **dict(self.scalars)}
        whole = dict(operation.integers)
        exact = ELEMENTS[dtype].accumulated.kind != "floating"
        return {
            name: int(math.copysign(math.ceil(abs(x)), x)) if exact or name in whole else x
            for name, x in values.items()
        }


SPECIAL = "special"
"""Uniform elements, a few of which are NaN, infinite, zeros of either sign, large or small."""

SMALL_CASES = (
    Case(1, 1, 1),
    Case(1, 7, 1, scalars={"alpha": -1.5, "beta": 2.0}),
    Case(5, 1, 3, scalars={"beta": 1.0}, padding=3),
    Case(2, 301, 2, scalars={"alpha": 0.5}, distribution="normal"),
    Case(3, 2, 130, scalars={"beta": -0.25}, padding=1),
    Case(131, 4, 3, scalars={"alpha": 2.0}),
    Case(17, 33, 9, scalars={"alpha": 0.75, "beta": -1.0}, padding=5),
    Case(64, 64, 64, scalars={"alpha": -1.0, "beta": 0.5}),
    Case(65, 127, 63, scalars={"alpha": 1.25}, padding=7, distribution="normal"),
)
"""Products of small and ragged sizes, other alpha and beta, padded rows: under 2 ms together for
any kernel worth timing."""

_TALL, _DEEP = 4096, 2048
"""The additions to sizes for configurations that need large ones: tall groups of
tiles, many splits of the reduction."""

PRODUCT_CASES = (
    *SMALL_CASES,
    Case(5, 2, 30, scalars={"beta": 1.0}),
    Case(300, 270, 290, scalars={"alpha": 1.5, "beta": -0.5}, padding=1),
    Case(1030, 1500, 70, scalars={"beta": 0.5}),
    *(
        Case(
            m, n, k, scalars={"alpha": 1.25, "beta": beta}, padding=padding, distribution="normal"
        )
        for m, n, k, beta, padding in (
            (_TALL + 1, 7, 1, 2.0, 0),
            (_TALL + 17, 33, 9, -1.0, 5),
            (_TALL + 65, 127, 63, 0.0, 7),
            (17, _DEEP + 33, 9, -1.0, 5),
            (65, _DEEP + 127, 163, 0.0, 0),
            (_TALL + 17, _DEEP + 33, 9, 0.5, 3),
            (_TALL + 65, _DEEP + 127, 63, 0.0, 0),
            (3, 2 * _DEEP + 5, 131, 0.5, 0),
            (131, 2 * _DEEP + 5, 3, 0.0, 3),
            (13, _DEEP + 65, 275, 0.0, 1),
            (275, _DEEP + 65, 13, -1.0, 0),
        )
    ),
)
"""Products of small and ragged sizes, of tall, deep and thin ones, other scalars, padded rows."""


def cases_of(problem: Problem) -> tuple[Case, ...]:
    """The cases that every program of a problem's operation is verified at.

    Those are, of other operations than matrix products, the shapes that the operation names or
    ragged ones, and large ones; scalars and padding take turns.
    """
    if isinstance(problem.defined, MatrixOperation):
        return PRODUCT_CASES
    shapes = problem.defined.cases or tuple(_ragged(problem))
    if not problem.defined.result.names:  # an answer, which is of one shape
        return _made(problem, shapes)
    return _made(problem, (*shapes, *_stretched(problem)))


_HARD, _LONG = (67, 205, 75), (35, 16384, 33)
"""Sizes of hard cases: so short a reduction that errors hardly average out in it, and so long a
one that truncations add up."""


def hard_cases(problem: Problem, accuracy: str) -> tuple[Case, ...]:
    """Further cases of products, by which kernels of a class are held to its promise.

    Args:
        problem: its own sizes do not matter.
        accuracy: the class that the kernel promises.
    """
    promising = ACCURACIES[accuracy]
    if promising.promise is None or not multiplies(problem.defined):
        return ()
    if ELEMENTS[problem.dtype].accumulated.name != problem.dtype:
        return ()
    kinds = [kind for kind in DRAWS if promising.subnormal or kind != SUBNORMAL]
    scalars = {"alpha": -1.5, "beta": 0.5}
    return (
        *(Case(*_HARD, distribution=kind) for kind in kinds),
        Case(*_HARD, distribution="octaves", scalars=scalars, padding=3),
        # Tensor cores truncate sums in float32; those of longer numbers are of exact parts.
        *([Case(*_LONG, distribution=POSITIVE)] if problem.dtype == "float32" else []),
    )


def small_case(problem: Problem, valid: Callable[[tuple[int, ...]], bool]) -> Case | None:
    """A case near a problem, as small as may be, where none of its operation's is valid.

    Args:
        problem: whose sizes are valid.
        valid: whether sizes are.
    """
    shape = problem.shape
    for place in range(len(shape)):
        for size in _FEW:
            nearer = (*shape[:place], size, *shape[place + 1 :])
            if size < shape[place] and valid(nearer):
                shape = nearer
                break
    return Case(*shape, padding=_PADDING[2]) if _has(problem, shape) else None


def special_cases(problem: Problem, cases: Iterable[Case]) -> tuple[Case, ...]:
    """Further cases of a program's, on operands that hold NaN and infinity.

    Those are the smallest cases whose operands all have `_SOME` elements, one of padded rows and
    one of others, or those that come closest; none where the operation is of finite numbers alone,
    or of triangles, or none that is read is of floating type. Operands that its user makes stay:
    sorted keys and definite matrices hold no NaN.

    Args:
        problem: its own sizes do not matter.
        cases: what the program is verified at.
    """

    def size(case: Case) -> tuple[bool, int]:
        here = problem.with_sizes(*case.sizes)
        least = min(math.prod(each.shape) for each in here.operands)
        return (True, -least) if least < _SOME else (False, here.traffic)

    by_padding: dict[bool, list[Case]] = {}
    result = problem.defined.result
    masked = isinstance(result, Formula) and result.is_masked
    floating = {
        each.name
        for each in problem.operands
        if ELEMENTS[each.dtype].kind in ("floating", "complex") and (each.read or not each.written)
    }
    for case in () if problem.defined.finite or masked or not floating else cases:
        by_padding.setdefault(case.padding > 0, []).append(case)
    found = [min(alike, key=size) for alike in by_padding.values()]
    if found and floating <= _made_by_user(problem, found[0]):
        return ()
    return tuple(case.drawn_from(SPECIAL) for case in found)


def _made_by_user(problem: Problem, case: Case) -> set[str]:
    """The operands that the user's function makes, of which there may be none, or all."""
    content, here = problem.defined.content, problem.with_sizes(*case.sizes)
    if content is None:
        return set()
    known = {**here.sizes, "dtype": here.dtype, "rng": np.random.default_rng(0)}
    try:
        made = content.call(known)
    except ExpressionError:  # which the case tells
        made = {each.name: None for each in problem.operands}
    return {*made} if isinstance(made, Mapping) else set()


def _stretched(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Shapes as large as may be: of one size, and of all. Large tiles are valid there only."""
    count = len(problem.shape)
    for large in range(count):
        yield from _largest(
            problem,
            (
                tuple(
                    _TALL + 65 if place == large else max(1, rest - 2 * place)
                    for place in range(count)
                )
                for rest in _MEDIUM
            ),
        )
    yield from _largest(
        problem, (tuple(rest + 4 * place for place in range(count)) for rest in _ALIKE)
    )


def _largest(problem: Problem, shapes: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The first of the shapes that there may be operands of."""
    yield from itertools.islice((shape for shape in shapes if _has(problem, shape)), 1)


def _ragged(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Shapes of which no size is another's multiple."""
    count = len(problem.shape)
    for pair in _RAGGED:
        yield tuple(itertools.islice(itertools.cycle(pair), count))
        if pair[0] != pair[1] and count > 1:
            yield tuple(itertools.islice(itertools.cycle(reversed(pair)), count))


def _made(problem: Problem, shapes: tuple[tuple[int, ...], ...]) -> tuple[Case, ...]:
    """Cases of these shapes, as far as the operation has any such; scalars by turns."""
    names = [name for name, _ in problem.defined.scalars]
    cases = []
    for number, shape in enumerate(dict.fromkeys(shapes)):
        scalars = {
            name: value
            for place, name in enumerate(names)
            if (value := _SCALARS[(number + 3 * place) % len(_SCALARS)]) is not None
        }
        for name in dict(problem.defined.integers).keys() & scalars.keys():
            scalars[name] = dict(problem.defined.scalars)[name] + 1
        if not _has(problem, shape):
            continue
        cases.append(
            Case(
                *shape,
                padding=_PADDING[number % len(_PADDING)],
                distribution="normal" if number % 3 == 2 else "uniform",
                scalars=scalars,
            )
        )
    return tuple(cases)


def _has(problem: Problem, shape: tuple[int, ...]) -> bool:
    """Return whether there are such operands, and few enough elements to be checked at once."""
    try:
        operands = problem.with_sizes(*shape).operands
    except InputError:
        return False
    return sum(math.prod(each.shape) for each in operands) <= _MOST_ELEMENTS
