"""A change of one element of an input, and what the reference makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import AutotuneError
from autotune.operations.contents import full_references
from autotune.operations.poke import Change
from autotune.operations.problem import multiplies
from autotune.operations.references import FullReference

if TYPE_CHECKING:
    from autotune.operations.accuracy import Tolerance
    from autotune.operations.contents import Drawn
    from autotune.operations.problem import Problem

_TRIES = 4
"""Elements that are tried: what a maximum or a comparison depends on is not all of them."""

_VISIBLE = 4.0
"""An output follows visibly if it changes by so many times what it may be off."""


def change_of(
    problem: Problem,
    drawn: Drawn,
    tolerance: Callable[[str], Tolerance],
    rng: np.random.Generator,
) -> Change | None:
    """A change of drawn operands, which takes some runs of the reference.

    An element becomes what another one of the operand is. None where operands are the user's, who
    alone knows what may be in them, or where no output was seen to follow.

    Args:
        problem: the problem at the sizes of the operands.
        drawn: operands, and their references.
        tolerance: gives that of an element type.
        rng: says what changes.
    """
    defined = problem.defined
    known = defined.content is None and not defined.given and defined.result.names
    inputs = [
        each
        for each in problem.operands
        if not each.written and each.most is None and ELEMENTS[each.dtype].kind == "floating"
    ]
    if not known or defined.accept is not None or multiplies(defined) or not inputs:
        return None
    scalars = dict(zip((name for name, _ in defined.scalars), drawn.scalars, strict=True))
    outputs = [each for each in problem.operands if each.written]
    unread = {each.name: np.zeros(each.shape) for each in outputs}
    types = {each.name: each.dtype for each in outputs}
    for _ in range(_TRIES):
        changed = inputs[rng.integers(len(inputs))]
        array = np.array(drawn.inputs[changed.name])
        place = tuple(int(rng.integers(size)) for size in array.shape)
        array[place] = value = array.flat[rng.integers(array.size)]
        values = {**problem.named({**drawn.inputs, changed.name: array}), **unread, **scalars}
        try:
            with np.errstate(all="ignore"):
                references = full_references(problem, values)
        except AutotuneError:  # a function of operands that go together
            return None
        for output, reference in references.items():
            old = drawn.references[output]
            if not isinstance(old, FullReference) or old.columns is not None:
                continue
            seen = old.worst(reference.expected, tolerance(types[output]))
            before, after = seen.expected, seen.found
            if seen.place is None or isinstance(after, complex) or isinstance(before, complex):
                continue
            if seen.error >= _VISIBLE and math.isfinite(after) and math.isfinite(before):
                told = changed.name, place, float(value), output, seen.place
                return Change(*told, float(before), float(after))
    return None
