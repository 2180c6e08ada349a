"""The packed arguments of a launch: sizes, addresses, distances, scalars and tensor maps."""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import ELEMENTS
from autotune.gpu.launch.inputs import Area, Output, inputs_of, packing
from autotune.operations.parts import Kind, operand_arguments
from autotune.serving.recorded import WORKSPACE, RecordedAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.families.gpu.launch import LaunchPlan
    from autotune.gpu.interface import Module
    from autotune.gpu.launch.program import GpuProgram

_MARK = 0x5A5A_5A50
"""In addresses that stand for others while a launch is recorded: no other argument has it."""


class Arguments:
    """Arguments of the kernels of a plan; all that no call changes is prepared here, once.

    Args:
        program: whose plan it is.
        plan: how it is launched.
        support: the kernels that copy operands.

    Raises:
        LaunchError: they are needed and not there.

    Attributes:
        pack: packs the arguments in the order in which kernels take them.
        places: see `autotune.gpu.interface.Module.runner`.
        inputs: operands that kernels do not merely read where they lie, by name.
        mapped: what has tensor maps.
        at: the places of an operand's address and distances among what a launch is given.
    """

    def __init__(self, program: GpuProgram, plan: LaunchPlan, support: Module | None) -> None:
        self._plan, self._defined = plan, program.defined
        self._order = order = _ArgumentOrder(program)
        last = ("" if plan.workspace_bytes is None else "P") + "i" * len(plan.runtime)
        apart = any(step.cooperative for step in plan.steps)
        self.pack, self.places = packing(order.formats + last, len(plan.maps), apart=apart)
        self.inputs, self.mapped = inputs_of(program, plan, support)
        operands = [*self.inputs.values(), *(e for e in self.mapped if not isinstance(e, Area))]
        starts = {each: order.given.index(each.name) for each in operands}
        self.at = {each: slice(start, start + each.numbers) for each, start in starts.items()}

    def last(self, workspace: int = 0) -> tuple[int, ...]:
        """Arguments after the operation's."""
        runtime = self._plan.runtime
        return runtime if self._plan.workspace_bytes is None else (workspace, *runtime)

    def packed(self, values: Sequence[Any], workspace: int = 0) -> bytes:
        """The arguments of a launch.

        Args:
            values: what a launch is given, without the stream; operands lie as kernels read them.
            workspace: its address.
        """
        maps = [
            each.tensor_map(workspace)
            if isinstance(each, Area)
            else each.tensor_map(*values[self.at[each]])
            for each in self.mapped
        ]
        return self.pack(
            *self._order.arranged(self._plan.sizes, values), *self.last(workspace), *maps
        )

    def recorded(
        self, distances: Sequence[tuple[int, ...]]
    ) -> tuple[bytes, tuple[RecordedAddress, ...], tuple[RecordedAddress, ...]] | None:
        """Arguments, where addresses lie among them, and tensor maps; None where one is copied.

        Args:
            distances: of every operand its strides but the last.
        """
        operands = [*range(len(distances)), WORKSPACE]
        marks = {number: (number + 2) << 40 | _MARK for number in operands}
        values = [
            value for number, steps in enumerate(distances) for value in (marks[number], *steps)
        ]
        if any(each.lies_badly(*values[self.at[each]]) for each in self.inputs.values()):
            return None
        packed = self.packed(values, marks[WORKSPACE])
        first_maps = self.places[len(self.places) - len(self.mapped) :]
        end = min(first_maps, default=len(packed))
        found = {struct.pack("P", mark): number for number, mark in marks.items()}
        words = [(at, packed[at : at + 8]) for at in range(0, end, 8)]
        addresses = [RecordedAddress(at, found[word], 0) for at, word in words if word in found]
        numbers = {each.name: number for number, each in enumerate(self._defined.operands)}
        maps = []
        for at, each in zip(first_maps, self.mapped, strict=True):
            if isinstance(each, Area):
                maps.append(RecordedAddress(at, WORKSPACE, each.offset))
            elif not isinstance(each, Output) or each.is_mapped(*values[self.at[each]]):
                maps.append(RecordedAddress(at, numbers[each.operand], 0))
        return packed, tuple(addresses), tuple(maps)


class _ArgumentOrder:
    """The order in which kernels take what a launch is given.

    Attributes:
        formats: of the kernel's arguments, a letter of `struct` each.
        given: names of the arguments of a launch, without the stream.
    """

    def __init__(self, program: GpuProgram) -> None:
        defined = program.defined
        formats = {Kind.SIZE: "i", Kind.LEADING: "i", Kind.BATCH: "q", Kind.ADDRESS: "P"}
        types = defined.scalar_types(program.dtype)
        self.formats = "".join(
            ELEMENTS[types[each.name]].letter if each.kind is Kind.SCALAR else formats[each.kind]
            for each in defined.arguments
        )
        self.given = [
            argument.name
            for operand in defined.operands
            for argument in operand_arguments(
                operand.name, len(operand.shape), written=operand.written
            )
        ]
        self.given += [name for name, _ in defined.scalars]
        self._defaults = tuple(default for _, default in defined.scalars)
        known = [*map(defined.spelled, defined.sizes), *self.given]
        self._pick = operator.itemgetter(
            *(known.index(argument.name) for argument in defined.arguments)
        )

    def arranged(self, sizes: tuple[int, ...], values: Any) -> tuple[Any, ...]:
        """The kernel's arguments; scalars that are left out have their defaults."""
        missing = len(self.given) - len(values)
        rest = self._defaults[len(self._defaults) - missing :] if missing else ()
        picked: tuple[Any, ...] = self._pick((*sizes, *values, *rest))
        return picked
