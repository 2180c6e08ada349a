"""Verifying what a kernel leaves in device memory, on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from autotune.evaluators.cuda.memory import Placement, Slab, lay_out, operands
from autotune.evaluators.cuda.support import Support, pack_signs, upload
from autotune.references import Drawn, FullReference, SampledReference, Tolerance
from autotune.verification import POISON, Verdict, find_flaw, grade

if TYPE_CHECKING:
    import numpy as np

    from autotune.references import Case

_PLACES = ("before the first row", "after the last row", "past the end of a row")


class DeviceCheck:
    """A case with operands on the device: prepares a launch and judges what it left.

    The counterpart of `autotune.verification.Check`: the same operands, references, tolerances
    and guard zones. Only sums and samples of C travel back to the host.

    Args:
        case: what is multiplied.
        dtype: element type.
        layout: which of A and B is stored transposed.
        rng: draws the operands.
        support: the device's helpers.

    Attributes:
        case: what is multiplied.
        slab: A, B and C.
    """

    def __init__(
        self, case: Case, dtype: str, layout: str, rng: np.random.Generator, support: Support
    ) -> None:
        self.case = case
        self._dtype = dtype
        self._support = support
        drawn = Drawn.of(case, dtype, layout, rng)
        (a_rows, a_columns), (b_rows, b_columns) = drawn.a.shape, drawn.b.shape
        placed = lay_out((a_rows, a_columns), (b_rows, b_columns), case, drawn.a.itemsize)
        self._poison = POISON[drawn.a.itemsize]
        self.slab = Slab(placed, support)
        self.slab.store(placed.a, drawn.a)
        self.slab.store(placed.b, drawn.b)
        self._c_values = drawn.c
        self._hashes = [self._inspect(each)[4] for each in (placed.a, placed.b)]
        self._reference: _Reference = (
            _DeviceFullReference(drawn.reference, support)
            if isinstance(drawn.reference, FullReference)
            else _DeviceSampledReference(drawn.reference, support)
        )

    @property
    def arguments(self) -> tuple[int, int, int, int, int, int, float, float]:
        """What a launch is called with."""
        placed = operands(self.slab.layout, self.slab.base)
        return (*placed, self.case.alpha, self.case.beta)

    def prepare(self) -> None:
        """Put C into its state before a launch: NaNs, or its values where beta is not zero."""
        c = self.slab.layout.c
        if self._c_values is not None:
            self.slab.store(c, self._c_values)
        else:
            self._support.fill(self.slab.base + c.offset, c.elements, self._poison)

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after a launch that followed `prepare` and has ended.

        A verdict against the kernel says `damaged` also when what it is judged by has changed,
        which an earlier kernel may have done.

        Args:
            accuracy: the accuracy class the kernel promises.
        """
        layout = self.slab.layout
        found = {name: self._inspect(getattr(layout, name.lower())) for name in "ABC"}
        damage = {
            name: next((place for place, count in zip(_PLACES, each, strict=False) if count), None)
            for name, each in found.items()
        }
        modified = {
            name: found[name][4] != hash_ for name, hash_ in zip("AB", self._hashes, strict=True)
        }
        verdict = find_flaw(self.case, damage, modified, unwritten=found["C"][3])
        if verdict is None:
            sizes = (self.case.m, self.case.n, self.case.k)
            tolerance = Tolerance.of(accuracy, self._dtype, sizes)
            error = self._reference.error(self.slab.base, layout.c, tolerance)
            verdict = grade(self.case, accuracy, error)
        if not verdict.right and not self._reference.intact():
            verdict = replace(verdict, damaged=True)
        return verdict

    def _inspect(self, placement: Placement) -> list[int]:
        return self._support.inspect(self.slab.base, placement, self._poison)


class _Reference(Protocol):
    """What C must be, for C on the device."""

    def error(self, base: int, placement: Placement, tolerance: Tolerance) -> float:
        """The largest error relative to `tolerance`; NaN where C is NaN."""
        ...

    def intact(self) -> bool:
        """Whether it is still what it was made as."""
        ...


class _DeviceFullReference:
    """Every element, against a float64 product on the device."""

    def __init__(self, reference: FullReference, support: Support) -> None:
        self._support = support
        self._largest = reference.largest
        self._size = reference.expected.nbytes
        self._expected, self._scale = upload(reference.expected), upload(reference.scale)
        self._hashes = self._hash()

    def error(self, base: int, placement: Placement, tolerance: Tolerance) -> float:
        scale = None if tolerance.normwise else int(self._scale)
        worst = self._support.largest_error(base, placement, int(self._expected), scale)
        return worst / (tolerance.factor * (self._largest if tolerance.normwise else 1.0))

    def intact(self) -> bool:
        return self._hash() == self._hashes

    def _hash(self) -> list[int]:
        return [
            self._support.hash(int(each), self._size) for each in (self._expected, self._scale)
        ]


class _DeviceSampledReference:
    """Some rows and columns, and C times random vectors; the reference itself is on the host."""

    def __init__(self, reference: SampledReference, support: Support) -> None:
        self._support = support
        self._host = reference
        self._packed = pack_signs(reference.vectors)

    def error(self, base: int, placement: Placement, tolerance: Tolerance) -> float:
        signs = upload(self._packed)
        return self._host.error_of(
            self._support.take(base, placement, self._host.rows, None),
            self._support.take(base, placement, None, self._host.columns),
            self._support.project(base, placement, int(signs)),
            tolerance,
        )

    def intact(self) -> bool:
        return True
