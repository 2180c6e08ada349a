"""Single elements of operands that change between timed calls, and what kernels make of it.

A kernel that returns at once where samples of its operands are what they were, or where it was
called just now, passes every check that changes all of them and takes its time. So between two
batches of timed calls an element of an input is another one for a call, and an element of the
output is spoilt before the next batch, which must write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.operations.cases import Case
from autotune.operations.problem import Problem, multiplies

Place: TypeAlias = tuple[int, ...]

BRIEF_S = 1e-3
"""Calls shorter than this are made twice before the batch: one that comes right after another may
be what is left out."""

LONG_S = 0.05
"""Of calls longer than this none is made besides the timed ones: only the output is spoilt."""

_TRIES = 8
"""Elements of the other factor of which the largest is chosen, so that the change is seen."""


@dataclass(frozen=True, slots=True)
class Change:
    """Another value of an element of an input, and an element of an output that follows it.

    Attributes:
        name: the input.
        place: its element, as stored.
        value: what it becomes.
        output: the output.
        at: its element.
        before: what that is without the change, by the reference.
        after: what it is with it.
    """

    name: str
    place: Place
    value: float
    output: str
    at: Place
    before: float
    after: float


class Memory(Protocol):
    """Operands as stored, element by element."""

    def read(self, name: str, place: Place) -> float:
        """An element of an operand."""
        ...

    def write(self, name: str, place: Place, value: float) -> None:
        """Set it, rounded to its type."""
        ...

    def spoil(self, place: Place) -> None:
        """Put into an element of the output what an unwritten one holds."""
        ...

    def spoilt(self, place: Place) -> bool:
        """Return whether it is still there."""
        ...


class Poke:
    """Changes single elements between batches of timed calls, and looks what comes of it.

    Args:
        case: what is computed.
        problem: the problem at the case's sizes.
        memory: the operands, whose content is the same before and after.
        call: one call on them.
        rng: says where.
        change: gives a change whose effect is known, where the problem is no product; None has
            none.

    Attributes:
        flaw: what was found, in one line; empty while nothing was.
    """

    def __init__(
        self,
        case: Case,
        problem: Problem,
        memory: Memory,
        call: Callable[[], object],
        rng: np.random.Generator,
        change: Callable[[np.random.Generator], Change | None] | None = None,
    ) -> None:
        self.flaw = ""
        self._change = change
        self._told = case.told(problem.defined.sizes)
        self._problem = problem
        self._scalars = case.scalars_of(problem.defined, problem.dtype)
        defined = problem.defined
        self._reads_output = defined.in_place or defined.reads_output(self._scalars)
        self._memory = memory
        self._call = call
        self._rng = rng
        self._output = next(each for each in problem.operands if each.written)
        self._place: Place = ()

    def begin(self, expected_s: float) -> None:
        """Change an element, call, take the change back, and spoil an element of the output.

        Args:
            expected_s: about how long a call takes.
        """
        if self._reads_output:  # what is spoilt would stay so
            return
        self._place = self._drawn(self._output.shape)
        if expected_s <= LONG_S:
            if multiplies(self._problem.defined):
                self._follow()
            elif self._change is not None and (change := self._change(self._rng)):
                self._follow_reference(change)
        if expected_s <= BRIEF_S:
            self._call()
        self._memory.spoil(self._place)

    def end(self) -> None:
        """Look whether the calls since `begin` have written the element that was spoilt."""
        if self._place and self._memory.spoilt(self._place):
            name = self._name(self._output.name, self._place)
            self._found(f"left {name} unwritten in a timed call")
        self._place = ()

    def _follow(self) -> None:
        """Change an element of a factor of a product: what the call adds to C is known."""
        memory, (m, n, k) = self._memory, self._problem.shape
        row, step, column = self._drawn((m, n, k))
        name, other = ("A", "B") if self._rng.random() < 0.5 else ("B", "A")
        # The one of the other factor's elements beside it that shows the change best.
        if name == "A":
            beside = [(step, j) for (j,) in (self._drawn((k,)) for _ in range(_TRIES))]
            factor, at = max((abs(self._read(other, each)), each) for each in beside)
            self._place, changed = (row, at[1]), (row, step)
        else:
            beside = [(i, step) for (i,) in (self._drawn((m,)) for _ in range(_TRIES))]
            factor, at = max((abs(self._read(other, each)), each) for each in beside)
            self._place, changed = (at[0], column), (step, column)
        self._call()
        before, old = memory.read("C", self._place), self._read(name, changed)
        stored = self._stored(name, changed)
        memory.write(name, stored, old + self._step(old, n))
        change = self._read(name, changed) - old
        self._call()
        after = memory.read("C", self._place)
        memory.write(name, stored, old)
        expected = self._scalars["alpha"] * change * self._read(other, at)
        if factor:
            followed = before, before + expected, after
            self._look(self._name("C", self._place), *followed, self._name(name, changed))
        self._call()

    def _follow_reference(self, change: Change) -> None:
        """Change an element of an input: what becomes of an output is known."""
        memory = self._memory
        self._call()
        old = memory.read(change.name, change.place)
        memory.write(change.name, change.place, change.value)
        self._call()
        after = memory.read(change.output, change.at)
        memory.write(change.name, change.place, old)
        followed = change.before, change.after, after
        changed = self._name(change.name, change.place)
        self._look(self._name(change.output, change.at), *followed, changed)
        self._call()

    def _look(self, what: str, before: float, expected: float, after: float, changed: str) -> None:
        """See whether an element is nearer to what it should be than to what it was."""
        if not abs(after - expected) <= abs(expected - before) / 2:
            self._found(
                f"{what} stays {after:.6g}, expected {expected:.6g}, once {changed} has changed"
            )

    def _step(self, old: float, terms: int) -> float:
        """A change of a factor's element that shows in a sum of so many terms, and fits."""
        if ELEMENTS[self._problem.dtype].kind == "integer":  # nothing is rounded
            return 1 if old < 0 else -1
        return math.sqrt(terms) + 2

    def _read(self, name: str, place: Place) -> float:
        return self._memory.read(name, self._stored(name, place))

    def _stored(self, name: str, place: Place) -> Place:
        """Where an element of a factor lies, as it is stored."""
        transposed = getattr(self._problem, "layout", "nn")["AB".index(name)] == "t"
        return place[::-1] if transposed else place

    def _drawn(self, shape: tuple[int, ...]) -> Place:
        return tuple(int(self._rng.integers(size)) for size in shape)

    def _found(self, what: str) -> None:
        self.flaw = self.flaw or f"{self._told}: {what}"

    @staticmethod
    def _name(name: str, place: Place) -> str:
        return f"{name}[{', '.join(map(str, place))}]"
