"""The parts of an operation: operands, sizes, scalars, and what becomes of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.core.dtypes import DEFAULT_DTYPE, ELEMENTS
from autotune.core.errors import ExpressionError, InputError, ProblemError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.operations.fields import element_sizes
from autotune.operations.formula import Formula, misfit, shape_text
from autotune.operations.parts import (
    Argument,
    Array,
    Kind,
    Operand,
    check_expression,
    check_names,
    check_no_keyword,
    operand_arguments,
    parsed,
    solved,
)
from autotune.operations.python_reference import PythonFunction, PythonReference
from autotune.space import UndefinedError

_LARGEST_EXAMPLE = 2**20


@dataclass(frozen=True, slots=True)
class OperationParts:
    """The parts of an operation: outputs, by a formula or a function, from inputs and scalars.

    Attributes:
        name: what users call it, and the entry of kernels.
        sizes: names of the sizes, in the order of a shape.
        operands: in the order of a call; some of them are written.
        result: what they become: of one a formula, of any number a function.
        flops: how many floating-point operations that takes, an expression over the sizes.
        scalars: their names and defaults, in the order of the entry.
        summary: one line for listings.
        cases: shapes to verify kernels at; empty where ragged ones are made.
        finite: whether kernels are right for finite operands alone; if not, NaN and infinity come
            out where the reference has them.
        baselines: by target, what its kernels are compared with, as the target calls it.
        entry: names of sizes, scalars and operands in the order of the kernels' arguments; empty
            where that is this one.
        takes: names of the kernels' arguments themselves, strides among them, in any order; empty
            where `entry` says. Sizes may be left out, and so may strides: then the rows of the
            operand follow each other.
        product: the operation whose families compute it, with what follows their product as an
            epilogue (`autotune.operations.epilogue`); empty where it has families of its own only.
        layouts: whether problems have a layout: operands A and B, matrices or stacks of them, may
            be stored transposed. The output's columns follow from those of B alone.
        integers: element types of the scalars that are integers, by name.
        content: a function that makes operands, of sizes, ``dtype`` and ``rng``, a generator of
            NumPy's, as far as it takes them; None draws them all.
        tolerances: how far outputs may be off, by name; see `FullReference`. Others follow from
            the accuracy class.
        accept: a function that judges instead, of what is expected and what was found.
        given: a file of NumPy's with operands of a user's own, for problems of their shapes; empty
            where there is none. It is no part of what the operation is.

    Raises:
        InputError: the parts do not fit together; the message begins with the part's name.
    """

    name: str
    sizes: tuple[str, ...]
    operands: tuple[Operand, ...]
    result: Formula | PythonReference
    flops: str
    scalars: tuple[tuple[str, float], ...] = ()
    summary: str = ""
    cases: tuple[tuple[int, ...], ...] = ()
    finite: bool = False
    baselines: tuple[tuple[str, str], ...] = ()
    entry: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    product: str = ""
    layouts: bool = False
    integers: tuple[tuple[str, str], ...] = ()
    content: PythonFunction | None = None
    tolerances: tuple[tuple[str, float], ...] = ()
    accept: PythonFunction | None = None
    given: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_no_keyword("operation", self.name)
        check_names(self.sizes, self.operands, self.scalars, small=bool(self.product))
        known = {*self.sizes, *element_sizes(DEFAULT_DTYPE)}
        _check_operands(self)
        factors = [each for each in self.inputs if each.name in ("A", "B")]
        if self.layouts and (len(factors) < 2 or any(len(each.shape) < 2 for each in factors)):
            raise InputError("layouts must be false, but for inputs A and B, matrices or stacks")
        check_expression("flops", self.flops, known)
        for shape in self.cases:
            if len(shape) != len(self.sizes):
                raise InputError(f"cases must be shapes {self.shape_text}, got {shown(shape)}")
        if self.entry:
            first = self.entry[: len(self.sizes)]
            rest = sorted(self.entry[len(self.sizes) :])
            others = sorted([name for name, _ in self.scalars] + [o.name for o in self.operands])
            if first != self.sizes or rest != others:
                raise InputError(
                    "entry must name every size, in order, and then every scalar and operand once"
                )
        _check_functions(self)
        if self.takes:
            _check_takes(self)
        _check_arguments(self)
        _check_result(self)

    @property
    def shape_text(self) -> str:
        """A shape's text, as ``MxN``."""
        return "x".join(self.sizes)

    @property
    def meaning(self) -> str:
        """All that says whether a kernel is right: part of a problem's key."""
        parts = [self.result.text, *(f"{name} within {most:g}" for name, most in self.tolerances)]
        parts += [] if self.accept is None else [f"judged by {self.accept.text}"]
        parts += [] if self.content is None else [f"operands of {self.content.text}"]
        return "; ".join(parts)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that a call is given: those that are not written, or in place."""
        return tuple(each for each in self.operands if each.read or not each.written)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that are written."""
        return tuple(each for each in self.operands if each.written)

    @property
    def output(self) -> Operand:
        """The operand that is written; the first of several."""
        return self.outputs[0]

    @property
    def in_place(self) -> bool:
        """True if a call changes operands that the next one would read."""
        return any(each.read for each in self.operands)

    @property
    def laid_out(self) -> bool:
        """True if problems say how A and B, which it multiplies, are stored (`layout`)."""
        return bool(self.product) or self.layouts

    def spelled(self, size: str) -> str:
        """The argument that a size is: in small letters, where nothing else is called so."""
        others = {each.name.lower() for each in self.operands} | {name for name, _ in self.scalars}
        return size if size.lower() in others else size.lower()

    def scalar_types(self, dtype: str) -> dict[str, str]:
        """The type that each scalar is passed in, by name, for operands of a type."""
        of_sums = ELEMENTS[dtype].accumulation
        return {name: dict(self.integers).get(name, of_sums) for name, _ in self.scalars}

    @property
    def order(self) -> tuple[str, ...]:
        """Names of sizes, scalars and operands in the order of the kernels' arguments."""
        scalars = (name for name, _ in self.scalars)
        return self.entry or (*self.sizes, *scalars, *(each.name for each in self.operands))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of kernels, in order; parameters passed at the call come after."""
        return _arguments(self)

    @property
    def packed(self) -> frozenset[str]:
        """The operands of which kernels take no strides, though they have some."""
        return _packed(self)

    def reads_output(self, scalars: Mapping[str, float]) -> bool:
        """Return whether the output is read too: where no zero multiplies it in the formula.

        Args:
            scalars: those that do not have their defaults.
        """
        known = {**dict(self.scalars), **scalars}
        return any(
            all(known.get(name, 1.0) != 0 for name in factors)
            for output in self.outputs
            if not output.read
            for factors in _factors(self.result, output.name)
        )

    def sizes_of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The sizes by name that operands of some shapes have.

        Args:
            shapes: of the operands, in order.
        """
        sizes: dict[str, int] = {}
        for operand, shape in zip(self.operands, shapes, strict=True):
            sizes.update(zip(operand.shape, shape, strict=bool(operand.shape)))
        if all(name in sizes for name in self.sizes):
            return sizes
        given = zip(self.operands, shapes, strict=True)
        return self.solve([(operand.shape, shape) for operand, shape in given], {})

    def solve(
        self,
        shapes: Sequence[tuple[tuple[str, ...], Sequence[int] | None]],
        known: Mapping[str, int],
    ) -> dict[str, int]:
        """The sizes that extents say: their own, and those of expressions of one that is unknown.

        Args:
            shapes: expressions for the extents of some operands, and the extents; None where it
                matters alone which sizes they say.
            known: sizes that are known already.
        """
        sizes = dict(known)
        extents = [
            (text, None if shape is None else shape[place])
            for texts, shape in shapes
            for place, text in enumerate(texts)
        ]
        extents.sort(key=lambda each: each[0] not in self.sizes)
        for _ in self.sizes:
            for text, extent in extents:
                if (found := solved(text, extent, sizes)) is not None:
                    sizes.setdefault(*found)
        return sizes

    def evaluated(self, text: str, sizes: Mapping[str, int]) -> int:
        """A whole number >= 1 that an expression of the operation stands for.

        Raises:
            InputError: it is none for these sizes.
        """
        try:
            value = parsed(text).evaluate(sizes)
        except UndefinedError as error:
            raise InputError(f"operation {self.name!r}: {error}") from error
        if isinstance(value, str) or not 1 <= value < 2**63:
            rule = "< 2^63" if not isinstance(value, str) and value >= 2**63 else ">= 1"
            raise InputError(
                f"{text} of operation {self.name!r} must be a number {rule}, got {shown(value)} "
                "for " + "x".join(str(sizes[name]) for name in self.sizes)
            )
        return int(value)

    def arrays(self, sizes: Mapping[str, int], dtype: str, result_dtype: str) -> tuple[Array, ...]:
        """The operands at some sizes, as stored."""
        return tuple(
            Array(
                operand.name,
                tuple(self.evaluated(text, sizes) for text in operand.shape) or (1,),
                operand.dtype or (result_dtype if operand.written else dtype),
                operand.written,
                operand.name in self.packed,
                self.evaluated(operand.most, sizes) if operand.most else None,
                operand.ascending,
                operand.read,
            )
            for operand in self.operands
        )

    def parse_shape(self, text: str) -> tuple[int, ...]:
        """Sizes from a text like ``MxN``: whole numbers >= 1.

        Raises:
            ProblemError: anything else; the message names the text.
        """
        parts = text.lower().split("x")
        count = len(self.sizes)
        rule = ">= 1"
        if len(parts) == count and all(part.isascii() and part.isdigit() for part in parts):
            if any(len(part.lstrip("0")) >= 20 for part in parts):
                rule = "< 2^63"
            elif min(sizes := tuple(map(int, parts))) >= 1:
                return sizes
        words = {1: "one whole number", 2: "two whole numbers", 3: "three whole numbers"}
        raise ProblemError(
            f"a shape is {self.shape_text} with {words.get(count, f'{count} whole numbers')} "
            f"{rule}, got {shown(text)}"
        )


@functools.lru_cache(maxsize=256)
def _factors(formula: Formula | PythonReference, name: str) -> tuple[frozenset[str], ...]:
    return formula.factors_of(name)


@functools.lru_cache(maxsize=256)
def _arguments(operation: OperationParts) -> tuple[Argument, ...]:
    every = _all_arguments(operation)
    if operation.takes:
        named = {each.name: each for each in every}
        return tuple(named[name] for name in operation.takes)
    return every


@functools.lru_cache(maxsize=256)
def _packed(operation: OperationParts) -> frozenset[str]:
    taken = {each.name for each in operation.arguments}
    return frozenset(
        each.name
        for each in operation.operands
        if not {part.name for part in _parts(each)} <= taken
    )


def _parts(operand: Operand) -> tuple[Argument, ...]:
    return operand_arguments(
        operand.name, len(operand.shape), written=operand.written, dtype=operand.dtype
    )


def _all_arguments(operation: OperationParts) -> tuple[Argument, ...]:
    """The arguments of kernels where nothing is left out."""
    parts: dict[str, tuple[Argument, ...]] = {}
    for size in operation.sizes:
        parts[size] = (Argument(operation.spelled(size), Kind.SIZE),)
    for scalar, _ in operation.scalars:
        parts[scalar] = (Argument(scalar, Kind.SCALAR),)
    for each in operation.operands:
        parts[each.name] = _parts(each)
    return tuple(itertools.chain(*(parts[name] for name in operation.order)))


def _check_operands(operation: OperationParts) -> None:
    """Shapes, types and roles are such as there are, and every size follows from an extent."""
    for operand in operation.operands:
        operand.check(set(operation.sizes))
    unsaid = operation.solve([(each.shape, None) for each in operation.operands], {})
    for name in operation.sizes:
        if name not in unsaid:
            raise InputError(
                f"sizes must be dimensions of operands, or follow from one, and {name} does not"
            )
    if not operation.outputs:
        raise InputError('operands must have one of role "out" or "inout" at least')
    if isinstance(operation.result, Formula) and len(operation.outputs) > 1:
        raise InputError("a formula gives one output, and there are several: use a reference")
    for name, dtype in operation.integers:
        if name not in dict(operation.scalars) or dtype not in ("int32", "int64"):
            raise InputError(f"scalars.{name} must be a number, or of type int32 or int64")


def _check_functions(operation: OperationParts) -> None:
    """Tolerances are of outputs, and functions take what they are given."""
    outputs = [each.name for each in operation.outputs]
    for name, tolerance in operation.tolerances:
        if name not in outputs:
            raise InputError(must_be("tolerance must be of outputs: it", name, outputs))
        if not 0 <= tolerance < math.inf:
            raise InputError(f"tolerance.{name} must be a number >= 0, got {tolerance}")
    if operation.content is not None:
        known = {*operation.sizes, *element_sizes(DEFAULT_DTYPE), "dtype", "rng"}
        for name in operation.content.taken:
            if name not in known:
                raise InputError(must_be("inputs must take sizes: it", name, sorted(known)))
    if operation.accept is not None and len(operation.accept.taken) != 2:
        raise InputError("accept must take what is expected and what was found")


def _check_takes(operation: OperationParts) -> None:
    """Every operand and every scalar is an argument, and nothing is one twice."""
    if operation.entry:
        raise InputError("arguments must be left out where entry gives their order")
    known = {each.name: each.kind for each in _all_arguments(operation)}
    for number, name in enumerate(operation.takes):
        if name not in known:
            raise InputError(must_be("arguments", name, list(known)))
        if name in operation.takes[:number]:
            raise InputError(f"arguments must not repeat {name!r}")
    for name, kind in known.items():
        if kind in (Kind.ADDRESS, Kind.SCALAR) and name not in operation.takes:
            raise InputError(
                f"arguments must name all operands and scalars, and {name} is missing"
            )


def _check_arguments(operation: OperationParts) -> None:
    names = [argument.name for argument in operation.arguments]
    # What addresses are called in Python.
    names += [f"{each.name.lower()}_address" for each in operation.operands]
    for name in names:
        if names.count(name) > 1 or name == operation.name:
            raise InputError(f"operands must leave names of arguments apart, and {name!r} is not")


def _examples(operation: OperationParts) -> Iterator[dict[str, int]]:
    """Sizes of which no two are equal, and others where expressions need larger ones."""
    for first in (3, 17):
        yield {name: first + number for number, name in enumerate(operation.sizes)}


def _check_result(operation: OperationParts) -> None:
    """The formula mentions what there is, and gives an array of the output's shape."""
    known = [each.name for each in operation.operands] + [name for name, _ in operation.scalars]
    what = "operands and scalars"
    if isinstance(operation.result, PythonReference):
        known, what = [*known, *operation.sizes], "operands, scalars and sizes"
    for name in sorted(operation.result.names - {*known}):
        raise InputError(f"result must mention {what}: {must_be('it', name, known)}")
    if isinstance(operation.result, PythonReference):
        return  # it is run to verify, and not before
    for sizes in _examples(operation):
        arrays = operation.arrays(sizes, DEFAULT_DTYPE, DEFAULT_DTYPE)
        if sum(math.prod(each.shape) for each in arrays) > _LARGEST_EXAMPLE:
            continue
        values: dict[str, Any] = {each.name: np.zeros(each.shape) for each in arrays}
        values |= dict(operation.scalars)
        names = _extents(operation, sizes)
        try:
            with np.errstate(all="ignore"):
                result = operation.result.evaluate(values)
        except ExpressionError as error:
            fault = misfit(operation.result, values, names)
            raise InputError(f"result must fit its operands, and {fault}") from error
        wanted = next(each.shape for each in arrays if each.written)
        if np.shape(result) != wanted and (operation.output.shape or np.shape(result) != ()):
            raise InputError(
                f"result must have the shape {' x '.join(operation.output.shape)} of "
                f"{operation.output.name}, and {operation.result.text!r} is "
                f"{shape_text(result, names)}"
            )


def _extents(operation: OperationParts, sizes: Mapping[str, int]) -> dict[int, str]:
    """The names of operands' extents: sizes by their names, others by their expressions."""
    texts = itertools.chain(*(operand.shape for operand in operation.operands))
    found = {operation.evaluated(text, sizes): text for text in texts}
    return found | {size: name for name, size in sizes.items()}
