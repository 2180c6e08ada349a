"""Verifying what a kernel leaves in device memory, on the device."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autotune.gpu.measure.memory import Slab, operands
from autotune.gpu.measure.placement import Placement, lay_out
from autotune.gpu.measure.support import Support, pack_signs, upload
from autotune.gpu.nvidia.driver.interface import driver
from autotune.operations.accuracy import Tolerance
from autotune.operations.references import Deviation, Drawn, FullReference, SampledReference
from autotune.operations.verification import Verdict, find_flaw, grade

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.operations.cases import Case
    from autotune.operations.problem import Problem
    from autotune.operations.references import Matrix

_PLACES = ("before the first row", "after the last row", "past the end of a row")


class DeviceCheck:
    """A matrix product on the device: prepares a launch and judges what it left.

    The counterpart of `autotune.operations.verification.Check`: the same operands, references,
    tolerances and guard zones. Only sums and samples of C travel back to the host.

    Operands may have several contents, which take turns at the same addresses.

    Args:
        case: what is multiplied.
        problem: dtype and layout; its own sizes do not matter.
        rng: draws the operands.
        support: the device's helpers.
        others: distributions of further contents.

    Attributes:
        case: what is multiplied.
        problem: the problem at the case's sizes.
        slab: A, B and C.
        bases: addresses of all slabs that hold the content whose turn it is, this one's first.
    """

    def __init__(
        self,
        case: Case,
        problem: Problem,
        rng: np.random.Generator,
        support: Support,
        *,
        others: Sequence[str] = (),
    ) -> None:
        self.case = case
        self.problem = problem.with_sizes(*case.sizes)
        self._support = support
        self._cases = (case, *(case.drawn_from(each) for each in others))
        self._draw = functools.partial(Drawn.of, problem=problem)
        drawn = self._draw(case, rng=rng)
        placed = lay_out(self.problem.operands, case.padding)
        self.slab = Slab(placed, support)
        self.bases = [self.slab.base]
        # One content is where it is; of several, each also has an image of A and B to come from.
        self._images = [driver().allocate(self._inputs) for _ in self._cases if others]
        drawn_all = [drawn, *(self._draw(each, rng=rng) for each in self._cases[1:])]
        self._contents = [self._keep(*each) for each in enumerate(drawn_all)]
        self._turn = 0
        self._write()

    @property
    def contents(self) -> int:
        """How many contents take turns."""
        return len(self._contents)

    def turn(self) -> None:
        """Write the next content into A and B, wherever they are."""
        self._turn = (self._turn + 1) % len(self._contents)
        self._write()

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw every content afresh, and write one of them into A and B."""
        drawn = [self._draw(each, rng=rng) for each in self._cases]
        self._contents = [self._keep(*each) for each in enumerate(drawn)]
        self._write()

    @property
    def arguments(self) -> tuple[float, ...]:
        """What a launch is called with."""
        placed = operands(self.slab.layout, self.slab.base)
        return (*placed, *self.case.scalars_of(self.problem.defined, self.problem.dtype).values())

    def prepare(self) -> None:
        """Put C into its state before a launch: NaNs, or its values where beta is not zero."""
        c = self._placed["C"]
        values = self._contents[self._turn].c
        if values is not None:
            self.slab.store(c, values)
        else:
            self._support.fill(self.slab.base + c.offset, c.elements, c.itemsize)

    def judge(self, accuracy: str, base: int | None = None) -> Verdict:
        """Judge memory and result after a launch that followed `prepare` and has ended.

        A verdict against the kernel says `damaged` also when what it is judged by has changed,
        which an earlier kernel may have done.

        Args:
            accuracy: the accuracy class the kernel promises.
            base: address of the slab whose C is judged; None is this one's own. Memory is looked
                at in this one.
        """
        own = base is None or base == self.slab.base
        content = self._contents[self._turn]
        found = {name: self._inspect(placed) for name, placed in self._placed.items()}
        damage = {
            name: next((place for place, count in zip(_PLACES, each, strict=False) if count), None)
            for name, each in found.items()
        }
        modified = {
            name: found[name][4] != hash_ for name, hash_ in zip("AB", content.hashes, strict=True)
        }
        unwritten = found["C"][3] if own else 0
        verdict = find_flaw(
            self.case, self.problem, damage, modified, unwritten, self.problem.operands[-1]
        )
        if verdict is not None:
            return self._blame(verdict)
        return self.judge_result(self.slab.base if base is None else base, accuracy)

    def judge_result(self, base: int, accuracy: str) -> Verdict:
        """Judge C alone, in any of the slabs.

        Args:
            base: the slab's address.
            accuracy: the accuracy class the kernel promises.
        """
        tolerance = Tolerance.of(
            accuracy, self.problem.dtype, self.case.sizes, self.problem.out_dtype
        )
        reference = self._contents[self._turn].reference
        worst = reference.worst(base, self._placed["C"], tolerance)
        return self._blame(grade(self.case, self.problem, accuracy, worst))

    def _blame(self, verdict: Verdict) -> Verdict:
        """A verdict, which an earlier kernel may have to answer for."""
        if not verdict.right and not self._contents[self._turn].reference.intact():
            return replace(verdict, damaged=True)
        return verdict

    @property
    def _inputs(self) -> int:
        """Bytes from the start of the slab to the end of B and its guards."""
        return self._placed["B"].end

    @property
    def _placed(self) -> Mapping[str, Placement]:
        return self.slab.layout.placements

    def _keep(self, number: int, drawn: Drawn) -> _Content:
        """Store A and B in the slab, and an image of them where there are several contents."""
        inputs = [(self._placed[name], values) for name, values in drawn.inputs.items()]
        for each in inputs:
            self.slab.store(*each)
        if self._images:
            driver().duplicate(int(self._images[number]), self.slab.base, self._inputs)
        reference: _Reference = (
            _DeviceFullReference(drawn.reference, self._support)
            if isinstance(drawn.reference, FullReference)
            else _DeviceSampledReference(drawn.reference, self._support)
        )
        return _Content(
            hashes=[self._inspect(placed)[4] for placed, _ in inputs],
            c=drawn.before,
            reference=reference,
        )

    def _write(self) -> None:
        if self._images:
            for base in self.bases:
                driver().duplicate(base, int(self._images[self._turn]), self._inputs)

    def _inspect(self, placement: Placement) -> list[int]:
        return self._support.inspect(self.slab.base, placement)


@dataclass(frozen=True, slots=True)
class _Content:
    """What is known of one content of A and B.

    Attributes:
        hashes: of A and of B, as they are on the device.
        c: C before a launch; None where beta is zero.
        reference: what C must be after it.
    """

    hashes: list[int]
    c: Matrix | None
    reference: _Reference


class _Reference(Protocol):
    """What C must be, for C on the device."""

    def worst(self, base: int, placement: Placement, tolerance: Tolerance) -> Deviation:
        """What is farthest off, relative to `tolerance`; its error is NaN where C is NaN."""
        ...

    def intact(self) -> bool:
        """Whether it is still what it was made as."""
        ...


class _DeviceFullReference:
    """Every element, against a float64 product on the device."""

    def __init__(self, reference: FullReference, support: Support) -> None:
        self._support = support
        self._largest = reference.largest
        self._size, self._shape = reference.expected.nbytes, reference.expected.shape
        self._expected, self._scale = upload(reference.expected), upload(reference.scale)
        self._hashes = self._hash()

    def worst(self, base: int, placement: Placement, tolerance: Tolerance) -> Deviation:
        scale = None if tolerance.normwise else int(self._scale)
        factor = tolerance.factor * (self._largest if tolerance.normwise else 1.0)
        allowed = (factor, tolerance.rounding, tolerance.absolute)
        error = self._support.largest_error(base, placement, int(self._expected), scale, allowed)
        if error <= 1:
            return Deviation(error)
        # Where the fault is takes the host to say, which has no need to be quick.
        expected, scales = np.empty(self._shape), np.empty(self._shape)
        driver().download(expected, int(self._expected))
        driver().download(scales, int(self._scale))
        everything = np.arange(placement.rows)
        found = self._support.take(base, placement, everything, None)
        return FullReference(expected, scales).worst(found, tolerance)

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

    def worst(self, base: int, placement: Placement, tolerance: Tolerance) -> Deviation:
        signs = upload(self._packed)
        return self._host.worst_of(
            self._support.take(base, placement, self._host.rows, None),
            self._support.take(base, placement, None, self._host.columns),
            self._support.project(base, placement, int(signs)),
            tolerance,
        )

    def intact(self) -> bool:
        return True
