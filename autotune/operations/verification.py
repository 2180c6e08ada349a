"""Verification: guarded operands, and what a kernel did to them.

Pure NumPy. A kernel is anything called as ``kernel(a, b, out, alpha, beta)`` that stores
``alpha A B + beta out`` in `out`; where and how it runs is not known here.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from autotune.operations.formula import Formula
from autotune.operations.guarded import GuardedMatrix
from autotune.operations.references import Case, Drawn, Matrix, Tolerance

Kernel: TypeAlias = Callable[[Matrix, Matrix, Matrix, float, float], object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found.

    Attributes:
        error: largest error relative to what is allowed; 1 is the limit.
        reason: what is wrong, in one line; empty when nothing is.
        damaged: memory other than C was written: nothing else in the process can be trusted.
    """

    error: float
    reason: str = ""
    damaged: bool = False

    @property
    def right(self) -> bool:
        """Whether the kernel passed."""
        return not self.reason


def find_flaw(
    case: Case, damage: Mapping[str, str | None], modified: Mapping[str, bool], unwritten: int
) -> Verdict | None:
    """What is wrong with the memory that a kernel leaves, or None.

    Args:
        case: what was multiplied.
        damage: which guard zone of each operand was written, by its name; None where none was.
        modified: whether an input was.
        unwritten: elements of C that still hold what guard zones hold.
    """
    for name, place in damage.items():
        if place:
            return Verdict(math.inf, f"{case}: wrote outside {name}, {place}", damaged=True)
    for name, changed in modified.items():
        if changed:
            return Verdict(math.inf, f"{case}: modified {name}, an input", damaged=True)
    if unwritten:
        return Verdict(
            math.inf,
            f"{case}: left {unwritten} of {case.m * case.k} elements of C unwritten, or computed "
            "them from memory that holds no operand",
        )
    return None


def grade(case: Case, accuracy: str, error: float) -> Verdict:
    """The verdict on an error.

    Args:
        case: what was multiplied.
        accuracy: the accuracy class that the kernel promises.
        error: relative to what that class allows; NaN where C is NaN.
    """
    if error <= 1:
        return Verdict(error)
    # The NaN of a comparison with NaN is a fault without size.
    error = math.inf if math.isnan(error) else error
    return Verdict(error, f"{case}: error is {error:.3g} times what {accuracy} allows")


class Check:
    """A case with operands and a reference: prepares a call and judges what it left.

    Operands may have several contents, which take turns at the same addresses: a kernel that
    knows the result of a call from one before it is wrong about the next.

    Args:
        case: what is multiplied.
        dtype: element type of A and B.
        layout: which of A and B is stored transposed.
        rng: draws the operands.
        formula: what is computed, where that is no product.
        out_dtype: element type of C; None means `dtype`.
        others: distributions of further contents.
        sealed: whether A and B are read-only, so that a kernel that writes them, even to put back
            what was there, ends its process.

    Attributes:
        case: what is multiplied.
        a: A as stored.
        b: B as stored.
        c: C, to be written.
    """

    def __init__(
        self,
        case: Case,
        dtype: str,
        layout: str,
        rng: np.random.Generator,
        formula: Formula | None = None,
        *,
        out_dtype: str | None = None,
        others: Sequence[str] = (),
        sealed: bool = False,
    ) -> None:
        self.case = case
        self._dtypes = dtype, out_dtype or dtype
        self._cases = (case, *(replace(case, distribution=each) for each in others))
        self._draw = functools.partial(
            Drawn.of, dtype=dtype, layout=layout, formula=formula, out_dtype=out_dtype
        )
        self._contents = [self._draw(each, rng=rng) for each in self._cases]
        self._turn = 0
        self._a = GuardedMatrix(*_extents(self._drawn.a), dtype, case.padding)
        self._b = GuardedMatrix(*_extents(self._drawn.b), dtype, case.padding)
        self._c = GuardedMatrix(case.m, case.k, out_dtype or dtype, case.padding)
        self.a, self.b, self.c = self._a.array, self._b.array, self._c.array
        self._known: set[tuple[int, str, int]] = set()
        if sealed:
            self._a.seal()
            self._b.seal()
        self._write()

    @property
    def contents(self) -> int:
        """How many contents take turns."""
        return len(self._contents)

    def turn(self) -> None:
        """Write the next content into A and B."""
        self._turn = (self._turn + 1) % len(self._contents)
        self._write()

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw every content afresh, and write one of them into A and B."""
        self._contents = [self._draw(each, rng=rng) for each in self._cases]
        self._known.clear()
        self._write()

    def prepare(self) -> None:
        """Put C into its state before a call: NaNs, or its values where beta is not zero."""
        self._c.poison()
        if self._drawn.c is not None:
            self.c[...] = self._drawn.c

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after a call that followed `prepare`.

        Args:
            accuracy: the accuracy class the kernel promises.
        """
        damage = {"A": self._a.damage(), "B": self._b.damage(), "C": self._c.damage()}
        modified = {
            "A": not self._a.same_as(self._drawn.a),
            "B": not self._b.same_as(self._drawn.b),
        }
        flaw = find_flaw(self.case, damage, modified, self._c.unwritten)
        if flaw is not None:
            return flaw
        sizes = (self.case.m, self.case.n, self.case.k)
        dtype, out_dtype = self._dtypes
        tolerance = Tolerance.of(accuracy, dtype, sizes, out_dtype)
        return grade(self.case, accuracy, self._drawn.reference.error(self.c, tolerance))

    def judge_again(self, accuracy: str) -> Verdict:
        """Judge what one of many calls left: bits that were right before are looked up.

        Args:
            accuracy: the accuracy class the kernel promises.
        """
        known = (
            self._turn,
            accuracy,
            zlib.crc32(self._c.bits.tobytes() if self.case.padding else self._c.bits.data),
        )
        if known in self._known and self._c.damage() is None:
            return Verdict(0.0)
        verdict = self.judge(accuracy)
        if verdict.right:
            self._known.add(known)
        return verdict

    def run(self, kernel: Kernel, accuracy: str) -> Verdict:
        """Prepare, call and judge."""
        self.prepare()
        kernel(self.a, self.b, self.c, self.case.alpha, self.case.beta)
        return self.judge(accuracy)

    @property
    def _drawn(self) -> Drawn:
        """The content that A and B have now."""
        return self._contents[self._turn]

    def _write(self) -> None:
        for matrix, values in ((self._a, self._drawn.a), (self._b, self._drawn.b)):
            with matrix.unsealed() as array:
                array[...] = values


def _extents(matrix: Matrix) -> tuple[int, int]:
    rows, columns = matrix.shape
    return rows, columns
