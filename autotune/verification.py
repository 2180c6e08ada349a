"""Verification: guarded operands, and what a kernel did to them.

Pure NumPy. A kernel is anything called as ``kernel(a, b, out, alpha, beta)`` that stores
``alpha A B + beta out`` in `out`; where and how it runs is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autotune.formula import Formula
from autotune.references import Case, Drawn, Matrix, Tolerance

Kernel: TypeAlias = Callable[[Matrix, Matrix, Matrix, float, float], object]

GUARD_BYTES = 4096
"""Size of the guard zone before and after every operand."""

POISON: Mapping[int, int] = {4: 0x7FC5A5A5, 8: 0x7FFCA5A5A5A5A5A5}
"""What guard zones, padding and an unwritten C hold, by bytes per element: quiet NaNs with a
payload of their own."""


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


class GuardedMatrix:
    """A row-major matrix with guard zones before and after it and, if padded, between its rows.

    Guards hold NaNs, so that reading them shows in the result and writing them shows in `damage`.

    Attributes:
        array: the matrix. It starts where NumPy's own arrays do, which for large ones is 16 bytes
            after a cache line: vectors that lie in two lines cost some kernels twice the time.
    """

    def __init__(self, rows: int, columns: int, dtype: str, padding: int = 0) -> None:
        itemsize = np.dtype(dtype).itemsize
        self._poison = POISON[itemsize]
        guard = GUARD_BYTES // itemsize
        stride = columns + padding
        count = rows * stride
        self._words = np.empty(count + 2 * guard, f"u{itemsize}")
        self._before = self._words[:guard]
        self._after = self._words[guard + count :]
        body = self._words[guard : guard + count].reshape(rows, stride)
        self._between = body[:, columns:]
        self._bits = body[:, :columns]
        self.array: Matrix = self._bits.view(dtype)
        self.poison()

    def poison(self) -> None:
        """Fill guards and matrix with NaNs."""
        self._words.fill(self._poison)

    @property
    def unwritten(self) -> int:
        """How many elements still hold what `poison` left."""
        return int(np.count_nonzero(self._bits == self._poison))

    def same_as(self, values: Matrix) -> bool:
        """Whether the matrix holds exactly `values`."""
        return np.array_equal(self._bits, values.view(self._bits.dtype))

    def damage(self) -> str | None:
        """Which guard zone was written, or None."""
        zones = {
            "before the first row": self._before,
            "after the last row": self._after,
            "past the end of a row": self._between,
        }
        for place, zone in zones.items():
            if not (zone == self._poison).all():
                return place
        return None


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
    ) -> None:
        self.case = case
        self._dtype = dtype
        self._drawn = drawn = Drawn.of(case, dtype, layout, rng, formula)
        self._a = GuardedMatrix(*_extents(drawn.a), dtype, case.padding)
        self._b = GuardedMatrix(*_extents(drawn.b), dtype, case.padding)
        self._c = GuardedMatrix(case.m, case.k, dtype, case.padding)
        self.a, self.b, self.c = self._a.array, self._b.array, self._c.array
        self.a[...] = drawn.a
        self.b[...] = drawn.b

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
        tolerance = Tolerance.of(accuracy, self._dtype, sizes)
        return grade(self.case, accuracy, self._drawn.reference.error(self.c, tolerance))

    def run(self, kernel: Kernel, accuracy: str) -> Verdict:
        """Prepare, call and judge."""
        self.prepare()
        kernel(self.a, self.b, self.c, self.case.alpha, self.case.beta)
        return self.judge(accuracy)


def _extents(matrix: Matrix) -> tuple[int, int]:
    rows, columns = matrix.shape
    return rows, columns
