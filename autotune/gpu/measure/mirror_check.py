"""Verifying, on the host, what a kernel of any operation leaves in device memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.gpu.measure.device_check import DeviceCheck
from autotune.gpu.measure.memory import Slab, operands
from autotune.gpu.measure.placement import lay_out
from autotune.gpu.nvidia.driver.interface import driver
from autotune.operations.problem import multiplies
from autotune.operations.verification import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from autotune.gpu.measure.support import Support
    from autotune.operations.cases import Case
    from autotune.operations.problem import Problem


class MirrorCheck:
    """A check whose operands have a mirror on the device, guard zones and all.

    The counterpart of `DeviceCheck` for operations of which no device kernel knows the reference:
    what a launch leaves is brought back to be judged. Inputs are only if they have changed.

    Args:
        case: what is computed.
        problem: operation and dtypes; its own sizes do not matter.
        rng: draws the operands.
        support: the device's helpers.
        others: distributions of further contents, which take turns at the same addresses.

    Attributes:
        case: what is computed.
        problem: the problem at the case's sizes.
        slab: the operands on the device.
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
        self._support = support
        self._host = Check(case, problem, rng, others=others)
        self.problem = self._host.problem
        arrays = self.problem.operands
        self._inputs = [each.name for each in arrays if not each.written]
        (self._output,) = (each.name for each in arrays if each.written)
        self.slab = Slab(lay_out(arrays, case.padding), support)
        self.bases = [self.slab.base]
        self._found: dict[str, list[int]] = {}
        self._write()

    @property
    def contents(self) -> int:
        """How many contents take turns."""
        return self._host.contents

    @property
    def arguments(self) -> tuple[float, ...]:
        """What a launch is called with."""
        problem = self._host.problem
        scalars = self.case.scalars_of(problem.defined, problem.dtype)
        return (*operands(self.slab.layout, self.slab.base), *scalars.values())

    def turn(self) -> None:
        """Write the next content into the inputs, wherever they are."""
        self._host.turn()
        self._write()

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw every content afresh, and write one of them into the inputs."""
        self._host.redraw(rng)
        self._write()

    def prepare(self) -> None:
        """Put the output into its state before a launch: NaNs, or its values where it is read."""
        self._host.prepare()
        self._upload(self._output)

    def judge(self, accuracy: str, base: int | None = None) -> Verdict:
        """Judge memory and result after a launch that followed `prepare` and has ended.

        Args:
            accuracy: the accuracy class the kernel promises.
            base: address of the slab whose output is judged; None is this one's own. Inputs are
                looked at in this one.
        """
        for name in self._inputs:
            if self._inspect(name) != self._found[name]:
                self._download(name, self.slab.base)
        return self.judge_result(self.slab.base if base is None else base, accuracy)

    def judge_result(self, base: int, accuracy: str) -> Verdict:
        """Judge the output alone, in any of the slabs.

        Args:
            base: the slab's address.
            accuracy: the accuracy class the kernel promises.
        """
        self._download(self._output, base)
        return self._host.judge(accuracy)

    def _write(self) -> None:
        for name in self._inputs:
            self._upload(name)
            self._found[name] = self._inspect(name)
        for base in self.bases[1:]:
            driver().duplicate(base, self.slab.base, self.slab.layout.size)

    def _inspect(self, name: str) -> list[int]:
        """What is known of an input and its guard zones, which changes with them."""
        placed = self.slab.layout.placements[name]
        whole = replace(placed, shape=(1, placed.elements), strides=(placed.elements, 1))
        return self._support.inspect(self.slab.base, whole)

    def _upload(self, name: str) -> None:
        start = self.slab.layout.placements[name].start
        driver().upload(self.slab.base + start, self._host.guarded[name].words)

    def _download(self, name: str, base: int) -> None:
        start = self.slab.layout.placements[name].start
        driver().download(self._host.guarded[name].words, base + start)


def check_on_device(
    case: Case,
    problem: Problem,
    rng: np.random.Generator,
    support: Support,
    *,
    others: Sequence[str] = (),
) -> DeviceCheck | MirrorCheck:
    """The check of a case on the device; arguments are those of `MirrorCheck`."""
    # Kernels that judge know nothing of NaN and infinity that must be.
    known = multiplies(problem.defined) and not case.special
    kind = DeviceCheck if known else MirrorCheck
    return kind(case, problem, rng, support, others=others)
