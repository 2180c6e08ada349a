"""Verification: guarded operands, and what a kernel did to them.

Pure NumPy. A kernel is anything called as ``kernel(*operands, *scalars)``, in the operation's
order, that stores the result in the operand that is written; where and how it runs is not known
here.
"""

from __future__ import annotations

import functools
import math
import time
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from autotune.operations.accuracy import ACCURACIES, Tolerance
from autotune.operations.cases import Case
from autotune.operations.changes import change_of
from autotune.operations.contents import Drawn
from autotune.operations.guarded import GuardedArray
from autotune.operations.poke import Change, Place
from autotune.operations.problem import Problem, multiplies
from autotune.operations.references import Deviation, Matrix

Kernel: TypeAlias = Callable[..., object]

CHANGING_S = 0.25
"""Where operands took longer to make, with references, none is run for changes of theirs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a check.

    Attributes:
        error: largest error relative to what is allowed; 1 is the limit.
        reason: what is wrong, in one line; empty when nothing is.
        damaged: memory other than the output was written: nothing else in the process can be
            trusted.
        norm: norm of the errors, relative to that of the result; None where it is not known.
    """

    error: float
    reason: str = ""
    damaged: bool = False
    norm: float | None = None

    @property
    def right(self) -> bool:
        """True if the kernel passed."""
        return not self.reason


def find_flaw(
    case: Case,
    problem: Problem,
    damage: Mapping[str, str | None],
    modified: Mapping[str, bool],
    unwritten: Mapping[str, int],
) -> Verdict | None:
    """The flaw of the memory that a kernel leaves, or None.

    Args:
        case: what was computed.
        problem: the problem at its sizes.
        damage: which guard zone of each operand was written, by its name; None where none was.
        modified: whether an input was.
        unwritten: elements of each output that still hold what guard zones hold.
    """
    told = case.told(problem.defined.sizes)
    for name, place in damage.items():
        if place:
            return Verdict(math.inf, f"{told}: wrote outside {name}, {place}", damaged=True)
    for name, changed in modified.items():
        if changed:
            return Verdict(math.inf, f"{told}: modified {name}, an input", damaged=True)
    for output in problem.operands:
        if count := unwritten.get(output.name):
            return Verdict(
                math.inf,
                f"{told}: left {count} of {math.prod(output.shape)} elements of {output.name} "
                "unwritten, or computed them from memory that holds no operand",
            )
    return None


def tolerance_of(
    case: Case, problem: Problem, accuracy: str, dtype: str | None = None
) -> Tolerance:
    """The distance that results may have from a case's reference.

    Args:
        case: what was computed.
        problem: its operation and types.
        accuracy: the accuracy class that the kernel promises.
        dtype: of the output; None is the problem's usual one, and what is another is computed in.
    """
    sizes = problem.with_sizes(*case.sizes).product_sizes
    types: tuple[str, tuple[int, ...], str | None] = problem.dtype, sizes, problem.out_dtype
    if dtype not in (None, problem.result_dtype):
        types = dtype, sizes, None
    return Tolerance.of(accuracy, *types, hard=case.hard)


def grade(case: Case, problem: Problem, accuracy: str, worst: Deviation) -> Verdict:
    """The verdict on an error.

    Args:
        case: what was computed.
        problem: its operation.
        accuracy: the accuracy class that the kernel promises.
        worst: what is farthest off.
    """
    if worst.error <= 1:
        return Verdict(worst.error, norm=worst.norm)
    if case.special and ACCURACIES[accuracy].spreads:
        return Verdict(0.0)
    # The NaN of a comparison with NaN is a fault without size.
    error = math.inf if math.isnan(worst.error) else worst.error
    told, said = case.told(problem.defined.sizes), f"error is {error:.3g} times what"
    defined = problem.defined
    output = worst.name or defined.output.name
    allows = f"tolerance of {output}" if output in dict(defined.tolerances) else accuracy
    said = "accept refused it" if defined.accept else f"{said} {allows} allows"
    if worst.place is None:
        return Verdict(error, f"{told}: {said}", norm=worst.norm)
    name = f"{output}[{', '.join(map(str, worst.place))}]"
    found, expected = _unlike(worst.found, worst.expected)
    reason = f"{told}: {name} is {found}, expected {expected} ({said})"
    if case.special and not multiplies(problem.defined):
        reason += "; if it is for finite operands alone, say finite = true"
    return Verdict(error, reason, norm=worst.norm)


def _unlike(*numbers: complex) -> tuple[str, ...]:
    """Numbers in as few digits as tell them apart."""
    for digits in (3, 6, 9, 17):
        texts = tuple(f"{number:.{digits}g}" for number in numbers)
        if len(set(texts)) == len(texts):
            break
    return texts


class Check:
    """A case with operands and a reference: prepares a call and judges what it left.

    Operands may have several contents, which take turns at the same addresses: a kernel that
    knows the result of a call from one before it is wrong about the next.

    Args:
        case: what is computed.
        problem: operation, dtypes and layout; its own sizes do not matter.
        rng: draws the operands.
        others: distributions of further contents.
        sealed: whether inputs are read-only, so that a kernel that writes them, even to put back
            what was there, ends its process.

    Attributes:
        case: what is computed.
        problem: the problem at the case's sizes.
        operands: the arrays, in the operation's order.
        output: the one that is written; the first of several.
    """

    def __init__(
        self,
        case: Case,
        problem: Problem,
        rng: np.random.Generator,
        *,
        others: Sequence[str] = (),
        sealed: bool = False,
    ) -> None:
        self.case = case
        self.problem = problem.with_sizes(*case.sizes)
        self._cases = (case, *(case.drawn_from(each) for each in others))
        begun_s = time.monotonic()
        self._contents = Drawn.of_all(self._cases, problem, rng)
        self._drawing_s = time.monotonic() - begun_s
        self._changes: dict[int, Change | None] = {}
        self._turn = 0
        self.guarded = {
            each.name: GuardedArray(
                each.shape,
                each.dtype,
                0 if each.packed else case.padding,
                shift=1 if case.padding else 0,
            )
            for each in self.problem.operands
        }
        written = [each.name for each in self.problem.operands if each.written]
        self._outs = {name: self.guarded[name] for name in written}
        self._out = self._outs[written[0]]
        self.operands = tuple(each.array for each in self.guarded.values())
        self.output = self._out.array
        self._known: dict[tuple[int, str, Hashable], Verdict] = {}
        if sealed:
            for name in self._drawn.inputs:
                self.guarded[name].seal()
        self._write()

    @property
    def contents(self) -> int:
        """The number of contents that take turns."""
        return len(self._contents)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of a kernel: the operands, then the case's scalars."""
        return (*self.operands, *self._drawn.scalars)

    def turn(self) -> None:
        """Write the next content into the inputs."""
        self._turn = (self._turn + 1) % len(self._contents)
        self._write()

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw every content afresh, and write one of them into the inputs."""
        self._contents = Drawn.of_all(self._cases, self.problem, rng)
        self._changes.clear()
        self._known.clear()
        self._write()

    def read(self, name: str, place: Place) -> float:
        """An element of an operand; see `Memory`."""
        return float(self.guarded[name].array[place])

    def write(self, name: str, place: Place, value: float) -> None:
        """Set an element of an operand."""
        with self.guarded[name].unsealed() as array:
            array[place] = value

    def change(self, rng: np.random.Generator) -> Change | None:
        """A change of this content (`change_of`); None where to know one takes too long."""
        if self._drawing_s > CHANGING_S:
            return None
        if self._turn not in self._changes:
            loosest = self.problem.accuracy if len(self.problem.product_sizes) == 3 else "ieee"
            tolerance = functools.partial(tolerance_of, self.case, self.problem, loosest)
            self._changes[self._turn] = change_of(self.problem, self._drawn, tolerance, rng)
        return self._changes[self._turn]

    def spoil(self, place: Place) -> None:
        """Put into an element of the output what an unwritten one holds."""
        self._out.spoil(place)

    def spoilt(self, place: Place) -> bool:
        """Return whether an element of the output is unwritten."""
        return self._out.spoilt(place)

    def prepare(self) -> None:
        """Put outputs into their state before a call: NaNs, or what they hold if that is read."""
        for name, out in self._outs.items():
            out.poison()
            if name in self._drawn.before:
                out.array[...] = self._drawn.before[name]

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after a call that followed `prepare`.

        Args:
            accuracy: the accuracy class the kernel promises.
        """
        damage = {name: each.damage() for name, each in self.guarded.items()}
        modified = {
            name: not self.guarded[name].same_as(values)
            for name, values in self._drawn.inputs.items()
        }
        references = self._drawn.references
        unwritten = {
            name: out.unwritten(getattr(references[name], "expected", None))
            for name, out in self._outs.items()
        }
        flaw = find_flaw(self.case, self.problem, damage, modified, unwritten)
        if flaw is not None:
            return flaw
        outputs = {name: out.array for name, out in self._outs.items()}
        worst = self._drawn.worst(
            outputs, functools.partial(tolerance_of, self.case, self.problem, accuracy)
        )
        return grade(self.case, self.problem, accuracy, worst)

    def judge_again(self, accuracy: str) -> Verdict:
        """Judge what one of many calls left: bits that were right before are looked up.

        Args:
            accuracy: the accuracy class the kernel promises.
        """
        every = [out.bits for out in self._outs.values()]
        sums = (zlib.crc32(bits.tobytes() if self.case.padding else bits.data) for bits in every)
        key = tuple(sums)
        known = self.recall(accuracy, key)
        if known is not None and all(out.damage() is None for out in self._outs.values()):
            return known
        return self.remember(accuracy, key, self.judge(accuracy))

    def recall(self, accuracy: str, key: Hashable) -> Verdict | None:
        """The verdict on outputs that were right before, by a key of their bits; None if not.

        Args:
            accuracy: the accuracy class the kernel promises.
            key: equal for equal bits alone.
        """
        return self._known.get((self._turn, accuracy, key))

    def remember(self, accuracy: str, key: Hashable, verdict: Verdict) -> Verdict:
        """A verdict, kept for `recall` if it says right."""
        if verdict.right:
            self._known[self._turn, accuracy, key] = verdict
        return verdict

    def run(self, kernel: Kernel, accuracy: str) -> Verdict:
        """Prepare, call and judge."""
        self.prepare()
        kernel(*self.arguments)
        return self.judge(accuracy)

    @property
    def _drawn(self) -> Drawn:
        """The content that the inputs have now."""
        return self._contents[self._turn]

    def _write(self) -> None:
        for name, values in self._drawn.inputs.items():
            with self.guarded[name].unsealed() as array:
                array[...] = values


class ProductCheck(Check):
    """A check of a matrix product, by its operands' own names."""

    @property
    def a(self) -> Matrix:
        """A as stored."""
        return self.guarded["A"].array

    @property
    def b(self) -> Matrix:
        """B as stored."""
        return self.guarded["B"].array

    @property
    def c(self) -> Matrix:
        """C, to be written."""
        return self.guarded["C"].array
