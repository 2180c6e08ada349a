"""Verification of what a kernel leaves in device memory, on the device or by a mirror on the host.

Both are counterparts of `autotune.operations.verification.Check`: the same operands, references,
tolerances and guard zones. Operands may have several contents, which take turns at the same
addresses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autotune.gpu.driver import driver
from autotune.gpu.measure.memory import Slab, lay_out
from autotune.gpu.measure.support import Support, pack_signs, upload
from autotune.operations.contents import Drawn
from autotune.operations.hard import norm_of_errors
from autotune.operations.problem import multiplies
from autotune.operations.references import (
    SAMPLES,
    Deviation,
    FullReference,
    SampledReference,
)
from autotune.operations.verification import Check, Verdict, find_flaw, grade, tolerance_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.gpu.interface import Memory
    from autotune.gpu.measure.memory import Placement
    from autotune.operations.accuracy import Relative, Tolerance
    from autotune.operations.cases import Case
    from autotune.operations.poke import Change
    from autotune.operations.problem import Problem
    from autotune.operations.references import Matrix

_PLACES = ("before the first row", "after the last row", "past the end of a row")


class SlabCheck(ABC):
    """Prepares a launch and judges what it left in a slab.

    Args:
        case: what is computed.
        problem: operation, dtypes and layout; its own sizes do not matter.
        support: the device's helpers.

    Attributes:
        case: what is computed.
        problem: the problem at the case's sizes.
        slab: the operands on the device.
        bases: addresses of all slabs that hold the content whose turn it is, this one's first.
    """

    def __init__(self, case: Case, problem: Problem, support: Support) -> None:
        self.case = case
        self.problem = problem.with_sizes(*case.sizes)
        self._support = support
        self.slab = Slab(lay_out(self.problem.operands, case.padding), support.fill)
        self.bases = [self.slab.base]

    @property
    def arguments(self) -> tuple[float, ...]:
        """Arguments of a launch."""
        placed = self.slab.layout.operands(self.slab.base)
        scalars = self.case.scalars_of(self.problem.defined, self.problem.dtype)
        return (*placed, *scalars.values())

    @property
    @abstractmethod
    def contents(self) -> int:
        """The number of contents that take turns."""

    @abstractmethod
    def turn(self) -> None:
        """Write the next content into the inputs, wherever they are."""

    @abstractmethod
    def redraw(self, rng: np.random.Generator) -> None:
        """Draw every content afresh, and write one of them into the inputs."""

    @abstractmethod
    def prepare(self) -> None:
        """Put the output into its state before a launch: NaNs, or its values where it is read."""

    @abstractmethod
    def judge(self, accuracy: str, base: int | None = None) -> Verdict:
        """Judge memory and result after a launch that followed `prepare` and has ended.

        A verdict against the kernel says `damaged` also when what it is judged by has changed,
        which an earlier kernel may have done.

        Args:
            accuracy: the accuracy class the kernel promises.
            base: address of the slab whose output is judged; None is this one's own. Inputs are
                looked at in this one.
        """

    @abstractmethod
    def judge_result(self, base: int, accuracy: str) -> Verdict:
        """Judge the output alone, in the slab of an address."""

    def change(self, rng: np.random.Generator) -> Change | None:
        """A change of the inputs whose effect is known; see `Check.change`. None has none."""
        return None

    @property
    def _placed(self) -> Mapping[str, Placement]:
        return self.slab.layout.placements


class DeviceCheck(SlabCheck):
    """A matrix product on the device: only sums and samples of C travel back to the host.

    Args:
        case: what is multiplied.
        problem: dtype and layout; its own sizes do not matter.
        rng: draws the operands.
        support: the device's helpers.
        others: distributions of further contents.
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
        self._cases = (case, *(case.drawn_from(other) for other in others))
        drawn = Drawn.of_all(self._cases, problem, rng)
        super().__init__(case, problem, support)
        # Bytes from the start of the slab to the end of B and its guards.
        self._inputs = self._placed["B"].end
        # One content is where it is; of several, each also has an image of A and B to come from.
        self._images = [driver().allocate(self._inputs) for _ in self._cases if others]
        self._contents = [self._keep(*numbered) for numbered in enumerate(drawn)]
        self._turn = 0
        self._write()

    @property
    def contents(self) -> int:
        return len(self._contents)

    def turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._contents)
        self._write()

    def redraw(self, rng: np.random.Generator) -> None:
        drawn = Drawn.of_all(self._cases, self.problem, rng)
        self._contents = [self._keep(*numbered) for numbered in enumerate(drawn)]
        self._write()

    def prepare(self) -> None:
        c = self._placed["C"]
        values = self._contents[self._turn].c
        if values is not None:
            self.slab.store(c, values)
        else:
            self._support.fill(self.slab.base + c.offset, c.elements, c.itemsize)

    def judge(self, accuracy: str, base: int | None = None) -> Verdict:
        own = base is None or base == self.slab.base
        content = self._contents[self._turn]
        found = {
            name: self._support.inspect(self.slab.base, placed)
            for name, placed in self._placed.items()
        }
        damage = {
            name: next((place for place, count in zip(_PLACES, each, strict=False) if count), None)
            for name, each in found.items()
        }
        modified = {
            name: found[name][4] != hash_ for name, hash_ in zip("AB", content.hashes, strict=True)
        }
        unwritten = found["C"][3] if own else 0
        verdict = find_flaw(self.case, self.problem, damage, modified, {"C": unwritten})
        if verdict is not None:
            return self._blame(verdict)
        return self.judge_result(self.slab.base if base is None else base, accuracy)

    def judge_result(self, base: int, accuracy: str) -> Verdict:
        tolerance = tolerance_of(self.case, self.problem, accuracy)
        reference = self._contents[self._turn].reference
        worst = reference.worst(base, self._placed["C"], tolerance)
        return self._blame(grade(self.case, self.problem, accuracy, worst))

    def _blame(self, verdict: Verdict) -> Verdict:
        """A verdict, which an earlier kernel may have to answer for."""
        if not verdict.right and not self._contents[self._turn].reference.intact():
            return replace(verdict, damaged=True)
        return verdict

    def _keep(self, number: int, drawn: Drawn) -> _Content:
        """Store A and B in the slab, and an image of them where there are several contents."""
        inputs = [(self._placed[name], values) for name, values in drawn.inputs.items()]
        for placed, values in inputs:
            self.slab.store(placed, values)
        if self._images:
            driver().duplicate(int(self._images[number]), self.slab.base, self._inputs)
        reference: _Reference = (
            _DeviceFullReference(drawn.reference, self._support)
            if isinstance(drawn.reference, FullReference)
            else _DeviceSampledReference(drawn.reference, self._support)
        )
        return _Content(
            hashes=[self._support.inspect(self.slab.base, placed)[4] for placed, _ in inputs],
            c=drawn.before.get("C"),
            reference=reference,
        )

    def _write(self) -> None:
        if self._images:
            for base in self.bases:
                driver().duplicate(base, int(self._images[self._turn]), self._inputs)


@dataclass(frozen=True, slots=True)
class _Content:
    """One content of A and B.

    Attributes:
        hashes: of A and of B, as they are on the device.
        c: C before a launch; None where beta is zero.
        reference: what C must be after it.
    """

    hashes: list[int]
    c: Matrix | None
    reference: _Reference


class _Reference(Protocol):
    """A reference for C on the device."""

    def worst(self, base: int, placement: Placement, tolerance: Tolerance) -> Deviation:
        """The deviation farthest off, relative to `tolerance`; its error is NaN where C is NaN."""

    def intact(self) -> bool:
        """Is it still what it was made as?"""


class _DeviceFullReference:
    """Every element, against a float64 product on the device."""

    def __init__(self, reference: FullReference, support: Support) -> None:
        self._support = support
        self._largest, self._norms = reference.largest, reference.norms
        self._size, self._shape = reference.expected.nbytes, reference.expected.shape
        self._rows = np.unique(np.linspace(0, self._shape[0] - 1, SAMPLES).astype(np.int64))
        self._expected = reference.expected[self._rows]
        self._kept = {name: upload(getattr(reference, name)) for name in ("expected", "scale")}
        self._hashes = {name: self._hash(place) for name, place in self._kept.items()}

    def worst(self, base: int, placement: Placement, tolerance: Tolerance) -> Deviation:
        by_largest = tolerance.relative == "largest"
        scale = None if by_largest else int(self._scale(tolerance.relative))
        factor = tolerance.factor * (self._largest if by_largest else 1.0)
        allowed = (factor, tolerance.rounding, tolerance.absolute)
        expected = int(self._kept["expected"])
        error = self._support.largest_error(base, placement, expected, scale, allowed)
        if error <= 1:
            sampled = self._support.take(base, placement, self._rows, None)
            return Deviation(error, norm=norm_of_errors(sampled, self._expected))
        # Where the fault is takes the host to say, which has no need to be quick.
        everything = np.arange(placement.rows)
        found = self._support.take(base, placement, everything, None)
        reference = FullReference(self._download("expected"), self._download("scale"), self._norms)
        return reference.worst(found, tolerance)

    def intact(self) -> bool:
        return all(self._hash(self._kept[name]) == each for name, each in self._hashes.items())

    def _scale(self, relative: Relative) -> Memory:
        """The address of what errors are relative to; norms are there once they are asked for."""
        if relative == "terms" or self._norms is None:
            return self._kept["scale"]
        if relative not in self._kept:
            self._kept[relative] = upload(self._norms.product())
            self._hashes[relative] = self._hash(self._kept[relative])
        return self._kept[relative]

    def _download(self, name: str) -> Matrix:
        values = np.empty(self._shape)
        driver().download(values, int(self._kept[name]))
        return values

    def _hash(self, place: Memory) -> int:
        return self._support.hash(int(place), self._size)


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


class MirrorCheck(SlabCheck):
    """A check whose operands have a mirror on the host, guard zones and all.

    For operations of which no device kernel knows the reference: outputs are brought back to be
    judged, unless they have the hash of some that were right, and inputs if they have changed.
    What outputs are before a launch is kept on the device, too. Arguments are those of
    `DeviceCheck`.
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
        self._host = Check(case, problem, rng, others=others)
        super().__init__(case, problem, support)
        arrays = self.problem.operands
        self._inputs = [array.name for array in arrays if not array.written]
        self._outputs = [array.name for array in arrays if array.written]
        self._before = {
            name: driver().allocate(self._host.guarded[name].words.nbytes)
            for name in self._outputs
        }
        self._found: dict[str, tuple[int, ...]] = {}
        self._write()

    @property
    def contents(self) -> int:
        return self._host.contents

    def turn(self) -> None:
        self._host.turn()
        self._write()

    def redraw(self, rng: np.random.Generator) -> None:
        self._host.redraw(rng)
        self._write()

    def prepare(self) -> None:
        for name, before in self._before.items():
            size = self._host.guarded[name].words.nbytes
            driver().duplicate(self.slab.base + self._placed[name].start, int(before), size)

    def judge(self, accuracy: str, base: int | None = None) -> Verdict:
        own = self.slab.base
        changed = [name for name in self._inputs if self._inspect(name, own) != self._found[name]]
        for name in changed:
            self._download(name, own)
        base = own if base is None else base
        return self._judge_whole(base, accuracy) if changed else self.judge_result(base, accuracy)

    def judge_result(self, base: int, accuracy: str) -> Verdict:
        key = tuple(self._inspect(name, base) for name in self._outputs)
        known = self._host.recall(accuracy, key)
        if known is not None:
            return known
        return self._host.remember(accuracy, key, self._judge_whole(base, accuracy))

    def change(self, rng: np.random.Generator) -> Change | None:
        return self._host.change(rng)

    def _judge_whole(self, base: int, accuracy: str) -> Verdict:
        for name in self._outputs:
            self._download(name, base)
        return self._host.judge(accuracy)

    def _write(self) -> None:
        for name in self._inputs:
            driver().upload(
                self.slab.base + self._placed[name].start, self._host.guarded[name].words
            )
            self._found[name] = self._inspect(name, self.slab.base)
        self._host.prepare()
        for name, before in self._before.items():
            driver().upload(int(before), self._host.guarded[name].words)
        self.prepare()  # elements that a kernel leaves alone are what they were in every set
        for base in self.bases[1:]:
            driver().duplicate(base, self.slab.base, self.slab.layout.size)

    def _inspect(self, name: str, base: int) -> tuple[int, ...]:
        """Hash and counts of an operand and its guard zones, which change with them."""
        placed = self._placed[name]
        if placed.itemsize == 1:
            return (self._support.hash(base + placed.start, placed.end - placed.start, 2),)
        word = min(placed.itemsize, 8)
        count = placed.elements * placed.itemsize // word
        whole = replace(placed, shape=(1, count), strides=(count, 1), itemsize=word)
        return tuple(self._support.inspect(base, whole))

    def _download(self, name: str, base: int) -> None:
        driver().download(self._host.guarded[name].words, base + self._placed[name].start)


def check_on_device(
    case: Case,
    problem: Problem,
    rng: np.random.Generator,
    support: Support,
    *,
    others: Sequence[str] = (),
) -> DeviceCheck | MirrorCheck:
    """The check of a case on the device; arguments are those of `DeviceCheck`."""
    # Kernels that judge know nothing of NaN and infinity that must be.
    known = multiplies(problem.defined) and not case.special
    kind = DeviceCheck if known else MirrorCheck
    return kind(case, problem, rng, support, others=others)
