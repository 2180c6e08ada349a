"""Operands of a case as they are drawn, or as a user's function makes them, and their results."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import ExpressionError, InputError
from autotune.core.suggestions import must_be
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import Case
from autotune.operations.drawing import bounded_integers, random_elements
from autotune.operations.formula import Formula
from autotune.operations.hard import draw, twofold_product
from autotune.operations.parts import Array
from autotune.operations.problem import Problem, multiplies
from autotune.operations.python_reference import PythonFunction
from autotune.operations.references import (
    Deviation,
    FullReference,
    Matrix,
    SampledReference,
    largest_deviation,
)

FULL_PRODUCTS = 2**31
"""Multiplications up to which every element is compared; beyond, rows, columns and an identity."""

FULL_ELEMENTS = 2**24
"""Elements of C up to which a float64 copy of it is kept."""

_APART = 32
"""Columns of which one is compared, of products of stacks where not every element is."""

_SHORT = 64
"""Terms of a sum one of which may be much larger than others."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Random operands of a case, and what comes of them.

    Attributes:
        inputs: those that are not written, as stored, by name.
        before: the outputs before the call, by name, where they may be read.
        references: what the outputs must be after it, by name.
        scalars: their values, in the operation's order.
        accept: the user's own judge, called with what is expected and what was found.
    """

    inputs: Mapping[str, Matrix]
    before: Mapping[str, Matrix]
    references: Mapping[str, FullReference | SampledReference]
    scalars: tuple[float, ...]
    accept: PythonFunction | None = None

    @property
    def reference(self) -> FullReference | SampledReference:
        """Of the first output."""
        return next(iter(self.references.values()))

    def worst(
        self, outputs: Mapping[str, Matrix], tolerance: Callable[[str], Tolerance]
    ) -> Deviation:
        """The element of all outputs that is farthest off.

        Args:
            outputs: what was computed, by name.
            tolerance: gives that of an element type.
        """
        if self.accept is not None:
            return self._accepted(self.accept, outputs)
        found = [
            replace(self.references[name].worst(values, tolerance(values.dtype.name)), name=name)
            for name, values in outputs.items()
        ]
        return max(found, key=lambda each: (not each.error <= 1, each.error))

    def _accepted(self, accept: PythonFunction, outputs: Mapping[str, Matrix]) -> Deviation:
        """No deviation where the user's function accepts; else the largest there is."""
        expected = [cast("FullReference", self.references[name]).expected for name in outputs]
        got = [*outputs.values()]
        several = len(got) > 1
        given = (tuple(expected), tuple(got)) if several else (expected[0], got[0])
        if bool(np.all(accept.call(dict(zip(accept.taken, given, strict=True))))):
            return Deviation(0.0)
        found = [
            replace(largest_deviation(each, wanted, np.zeros(wanted.shape)), name=name)
            for name, each, wanted in zip(outputs, got, expected, strict=True)
        ]
        return replace(max(found, key=lambda each: each.error), error=math.inf)

    @classmethod
    def of_all(
        cls, cases: Sequence[Case], problem: Problem, rng: np.random.Generator
    ) -> list[Drawn]:
        """Several at a time, as large ones keep a core busy for seconds; arguments as of `of`."""
        if len(cases) == 1:
            return [cls.of(cases[0], problem, rng)]
        with ThreadPoolExecutor(len(cases)) as pool:
            rngs = rng.spawn(len(cases))
            return list(pool.map(cls.of, cases, itertools.repeat(problem), rngs))

    @classmethod
    def of(cls, case: Case, problem: Problem, rng: np.random.Generator) -> Drawn:
        """Draw operands and compute, in float64, what the operation makes of them.

        Args:
            case: sizes, scalars and distribution.
            problem: operation, dtype and layout; its own sizes do not matter.
            rng: draws the operands.

        Raises:
            InputError: elements of a type come out equal, which shows nothing; or the user's
                reference fails.
        """
        if not case.special:
            try:
                with np.errstate(all="ignore"):
                    return cls._of(case, problem, rng)
            except ExpressionError as error:
                if case.sizes == problem.shape:
                    raise
                raise InputError(
                    f"{problem.operation} {case.told(problem.defined.sizes)}: {error}; "
                    "restrictions say which sizes are right"
                ) from error
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of NaN and infinity
            try:
                found = cls._of(case, problem, rng)
                read = {**found.inputs, **found.before}
                held = [name for name, each in read.items() if not np.isfinite(each).all()]
                # Where only NaN comes out, the two cases have it in different operands; and where
                # it still does, there is no infinity, of which both signs together are NaN.
                plain = held[case.padding == 0 :: 2] if len(held) > 1 else []
                if plain and found._drowned:
                    found = cls._of(case, problem, rng, plain)
                return cls._of(case, problem, rng, plain, finite=True) if found._drowned else found
            except ExpressionError:  # a function that takes finite numbers alone
                return cls.of(case.drawn_from("uniform"), problem, rng)

    @property
    def _drowned(self) -> bool:
        """True if all results are NaN: that of one operand may hide what becomes of another's."""
        known = (
            each.expected for each in self.references.values() if isinstance(each, FullReference)
        )
        floating = [each for each in known if each.dtype.kind in "fc"]
        return bool(floating) and all(np.isnan(each).all() for each in floating)

    @classmethod
    def _of(
        cls,
        case: Case,
        problem: Problem,
        rng: np.random.Generator,
        plain: Collection[str] = (),
        *,
        finite: bool = False,
    ) -> Drawn:
        here = problem.with_sizes(*case.sizes)
        defined = problem.defined
        scalars = case.scalars_of(defined, problem.dtype)
        # In a long sum a large term drowns the rest, of which tensor cores cut off too much then.
        large = multiplies(defined) and case.sizes[1] <= _SHORT
        made = _made(here, case, rng)
        scalars |= {name: made.pop(name) for name in scalars if name in made}

        made |= _given(here)
        if case.hard:
            m, n, k = case.sizes
            factors = draw(rng, case.distribution, (m, n, k), ELEMENTS[problem.dtype].numpy)
            turned = problem.named(dict(zip("AB", factors, strict=True)))
            made = {name: np.ascontiguousarray(each) for name, each in turned.items()}

        def drawn(each: Array) -> Matrix:
            if each.name in made:
                return cast("Matrix", made[each.name])
            own = next(one for one in defined.operands if one.name == each.name).dtype
            if own and each.most is None and ELEMENTS[own].kind == "integer":  # places, perhaps
                each = replace(each, most=min(case.sizes) - 1)
            if each.most is not None:
                return bounded_integers(rng, each, case.distribution)
            terms = 1 if each.written else max(case.sizes)
            drawn_from = "uniform" if each.name in plain else case.distribution
            found = random_elements(rng, each.shape, drawn_from, each.dtype, large, terms)
            if finite:
                found[np.isinf(found)] = 1
            return found

        inputs = {each.name: drawn(each) for each in here.operands if not each.written}
        outputs = [each for each in here.operands if each.written]
        reads = defined.reads_output(scalars)
        before = {each.name: drawn(each) for each in outputs if reads or each.read}
        named = problem.named(inputs)
        if not multiplies(defined):
            # No rows or identity stand for all of it: it is computed whole, or some columns are.
            columns = None
            if defined.layouts and not (
                here.flops <= 2 * FULL_PRODUCTS and math.prod(outputs[0].shape) <= FULL_ELEMENTS
            ):
                columns = _spread(outputs[0].shape[-1], rng)
                named["B"] = named["B"][..., columns]
            known = {each.name: np.zeros(each.shape) for each in outputs} | before
            if columns is not None:
                known = {name: each[..., columns] for name, each in known.items()}
            whole = full_references(here, {**named, **known, **scalars}, columns)
            return cls(inputs, before, {**whole}, (*scalars.values(),), defined.accept)
        factors, alpha, beta = (named["A"], named["B"]), scalars["alpha"], scalars["beta"]
        (output,), c = outputs, before.get("C")
        reference: FullReference | SampledReference
        if math.prod(case.sizes) <= FULL_PRODUCTS and math.prod(output.shape) <= FULL_ELEMENTS:
            # Of float32 operands float64 holds every product.
            twofold = case.hard and problem.dtype == "float64"
            multiply = twofold_product if twofold else None
            reference = FullReference.of_product(*factors, c, alpha, beta, multiply)
        else:
            reference = SampledReference(*factors, c, alpha, beta, rng)
        return cls(inputs, before, {output.name: reference}, (*scalars.values(),))


def _made(here: Problem, case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Operands and scalars that the user's function makes, by name; none where there is none.

    Raises:
        InputError: it fails, or makes what does not fit.
    """
    defined = here.defined
    if defined.content is None:
        return {}
    known = {**here.sizes, "dtype": here.dtype, "rng": rng}
    told = f"inputs of {defined.name} {case.told(defined.sizes)}"
    try:
        made = defined.content.call(known)
    except ExpressionError as error:
        raise InputError(f"{told}: {error}; restrictions say which sizes are right") from error
    scalars = dict(defined.scalars)
    arrays = {each.name: each for each in here.operands if each.read or not each.written}
    if not isinstance(made, Mapping):
        raise InputError(f"{told} must be a dictionary of operands, got {type(made).__name__}")
    found: dict[str, Any] = {}
    for name, value in made.items():
        if name in scalars:
            found[name] = value
            continue
        if name not in arrays:
            raise InputError(f"{told}: {must_be('an operand', str(name), [*arrays, *scalars])}")
        array, wanted = np.ascontiguousarray(value), arrays[name]
        if array.shape != wanted.shape:
            raise InputError(f"{told}: {name} must have shape {wanted.shape}, got {array.shape}")
        found[name] = array.astype(ELEMENTS[wanted.dtype].numpy)
        exact = ELEMENTS[wanted.dtype].kind in ("integer", "boolean")
        if exact and not np.array_equal(found[name], array):
            raise InputError(
                f"{told}: {name} must be of {wanted.dtype}, got {array.dtype} with elements that "
                "it does not have"
            )
    return found


def _given(here: Problem) -> dict[str, Matrix]:
    """Operands of the user's own, by name, where they have this problem's shapes."""
    if not here.defined.given:
        return {}
    with np.load(here.defined.given) as file:
        found = {name: file[name] for name in file.files}
    shapes = {each.name: each.shape for each in here.operands}
    return found if all(each.shape == shapes[name] for name, each in found.items()) else {}


def full_references(
    here: Problem, values: Mapping[str, Any], columns: NDArray[np.int64] | None = None
) -> dict[str, FullReference]:
    """The outputs that a problem must have, by name.

    Args:
        here: the problem.
        values: of its operands, as the formula means them, and of its scalars; of sizes, which a
            function may take too, the problem has them.
        columns: of the output that they are of; None says that they are all.

    Raises:
        ExpressionError: a function in Python fails.
        InputError: a result is of another shape than the output.
    """
    defined = here.defined
    exact: dict[str, Any] = {name: _exact(np.asarray(value)) for name, value in values.items()}
    exact = {**here.sizes, **exact}
    outputs = [each for each in here.operands if each.written]
    result, tolerances = defined.result, dict(defined.tolerances)
    if isinstance(result, Formula):
        expected: tuple[Any, ...] = (np.asarray(result.evaluate(exact)),)
        scales: tuple[Any, ...] = (result.magnitude(exact),)
    else:
        expected = scales = result.evaluate_all(exact, len(outputs))
        # Of integers, and where the user says what is allowed, nothing is relative to a scale.
        rounded = (
            each.name not in tolerances and ELEMENTS[each.dtype].kind in ("floating", "complex")
            for each in outputs
        )
        if defined.accept is None and any(rounded):
            scales = result.magnitudes(exact, expected)
    told = result.text if isinstance(result, Formula) else result.head
    references = {}
    for output, each, scale in zip(outputs, expected, scales, strict=True):
        shape = output.shape if columns is None else (*output.shape[:-1], len(columns))
        if each.shape != shape and (each.shape or shape != (1,)):
            raise InputError(
                f"{told} must give the shape {shape} of {output.name} at "
                f"{'x'.join(map(str, here.shape))}, and gives {each.shape}"
            )
        tolerance = tolerances.get(output.name)
        # As outputs lie, which a transposed view does not: both are read with every verdict.
        whole, scale = (
            np.ascontiguousarray(np.reshape(each, shape)) for each in (each, np.abs(scale))
        )
        references[output.name] = FullReference(whole, scale, None, columns, tolerance)
    return references


def _exact(array: Matrix) -> Matrix:
    """Numbers in double precision; integers as they are, as they may be places."""
    if array.dtype.kind in "iub":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _spread(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One of every `_APART` of `count` indices, the first and the last among them."""
    starts = np.arange(0, count, _APART)
    inner = starts + rng.integers(0, np.minimum(_APART, count - starts))
    return np.unique(np.concatenate([[0, count - 1], inner]))
