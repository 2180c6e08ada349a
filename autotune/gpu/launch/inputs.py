"""Operands as a binary takes them: where they lie or as copies of theirs, and tensor maps."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import LaunchError
from autotune.families.gpu.launch import ROW_BYTES, LaunchStep
from autotune.gpu.driver import driver
from autotune.gpu.interface import MAP_ALIGNMENT, MAP_BYTES, Boxes
from autotune.operations.parts import parsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.families.gpu.launch import Extents, LaunchPlan, MappedOperand, MappedRegion
    from autotune.gpu.interface import Module
    from autotune.gpu.launch.program import GpuProgram
    from autotune.gpu.launch.scratch import Allocate

Place: TypeAlias = tuple[int, ...]
"""Address and leading dimension of an operand; of a stack, before that, from matrix to matrix."""

CopyBoth: TypeAlias = "Callable[[Place, Place, Any, Allocate], tuple[Place, Place]]"
"""``copy(first, second, stream, allocate)``: enqueues copies of two operands; where they are."""

_TRANSPOSE_BLOCK = (32, 8, 1)
_TRANSPOSE_TILE = 32

_COPY_BLOCK = (256, 1, 1)
_COPY_UNITS = 8
"""Of 4 bytes, or an element: what a thread of a copying block copies."""

_KEPT = 256
"""Tensor maps of an operand that are remembered, by where it lies."""


class Input:
    """One operand, on the way to kernels that read it transposed, or by a tensor map.

    It is copied where it is stored otherwise than they read it, and where a tensor map cannot
    describe it: its address and the distance of its rows are whole 16 bytes for that.

    Args:
        name: the operand's.
        dtype: element type.
        stored: rows and columns, as callers store it.
        flipped: whether kernels read it transposed.
        mapped: its tensor map; None where they take an address alone.
        module: the kernels that copy.
        matrices: that a map of three dimensions has; 0 where it has two.
        stacked: whether they lie some distance apart, which comes before that of rows.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        stored: tuple[int, int],
        flipped: bool,
        mapped: MappedOperand | None,
        module: Module,
        matrices: int = 0,
        *,
        stacked: bool = False,
    ) -> None:
        self.operand = name
        self.numbers = 3 if stacked else 2
        self._matrices = matrices if stacked else 1
        self.name = name.lower()
        self._stored = stored
        self.flipped = flipped
        self._itemsize = ELEMENTS[dtype].itemsize
        rows, columns = stored[::-1] if flipped else stored
        unit = ROW_BYTES // self._itemsize
        self.apart = columns if mapped is None else -(-columns // unit) * unit
        self._size = rows * self.apart * self._itemsize
        self._rows = rows
        self._distance = () if mapped is None else (self.apart,)
        self._pack = struct.Struct("PqqqP" + "q" * len(self._distance)).pack
        if flipped:
            # Binaries of the first that were kept know no distance of rows.
            kernel = "transpose" if mapped is None else "transpose_apart"
            step = LaunchStep(kernel, transpose_grid(*stored), _TRANSPOSE_BLOCK)
        else:
            step = LaunchStep("copy_rows", (self.copy_blocks, 1, 1), _COPY_BLOCK)
        self._run = module.runner([step])
        self._map = None if mapped is None else _encoder(mapped, dtype, (rows, columns), matrices)

    def lies_badly(self, address: int, *strides: int) -> bool:
        """Does it have to be copied?"""
        return self.flipped or _between_units(address, strides, self._itemsize)

    @property
    def copy_blocks(self) -> int:
        """Blocks of the kernel that copies it as it is stored."""
        rows, columns = self._stored
        units = -(-columns * self._itemsize // max(4, self._itemsize))
        return min(-(-rows * self._matrices * units // (_COPY_BLOCK[0] * _COPY_UNITS)), 2**31 - 1)

    def copy(self, place: Place, stream: Any, allocate: Allocate) -> Place:
        """Enqueue the copy; its place."""
        if self.numbers == 2:
            to, packed = self.described(place, stream, allocate)
            self._run(packed, stream)
            return to, self.apart
        address, between, stride = place
        count = self._matrices if between else 1
        to = allocate(stream, self.name, count * self._size, 0)
        rows, columns = self._stored
        if between == rows * stride:  # one matrix of all rows
            count, rows = 1, count * rows
        for number in range(count):
            here, there = address + number * between * self._itemsize, to + number * self._size
            self._run(self._pack(here, stride, rows, columns, there, *self._distance), stream)
        return to, self._rows * self.apart if between else 0, self.apart

    def described(self, place: Place, stream: Any, allocate: Allocate) -> tuple[int, bytes]:
        """The address of its copy, and the arguments of the kernel that copies."""
        address, stride = place
        to = allocate(stream, self.name, self._size, 0)
        return to, self._pack(address, stride, *self._stored, to, *self._distance)

    def tensor_map(self, address: int, *strides: int) -> bytes:
        """The tensor map of the operand, or of its copy."""
        assert self._map is not None
        return self._map(address, *strides[::-1])


class Output:
    """The operand that kernels write, where they are given a tensor map of it.

    Nothing is copied: what a tensor map cannot describe, kernels store without one.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        stored: tuple[int, int],
        mapped: MappedOperand,
        matrices: int = 0,
        *,
        stacked: bool = False,
    ) -> None:
        self.operand = name
        self.numbers = 3 if stacked else 2
        self.name = name.lower()
        self._itemsize = ELEMENTS[dtype].itemsize
        # Of 16 bytes that a row ends in, hardware would write all.
        self._whole = stored[1] * self._itemsize % ROW_BYTES == 0
        self._map = _encoder(mapped, dtype, stored, matrices)

    def is_mapped(self, address: int, *strides: int) -> bool:
        """Can a tensor map describe it?"""
        return self._whole and not _between_units(address, strides, self._itemsize)

    def tensor_map(self, address: int, *strides: int) -> bytes:
        """The tensor map of the operand; zeros where there is none, as kernels see themselves."""
        if not self.is_mapped(address, *strides):
            return bytes(MAP_BYTES)
        return self._map(address, *strides[::-1])


class Area:
    """A region of the workspace, where kernels are given a tensor map of it.

    Args:
        mapped: its tensor map.
        region: where it lies.

    Attributes:
        offset: bytes from the start of the workspace.
    """

    def __init__(self, mapped: MappedOperand, region: MappedRegion) -> None:
        self.offset, self._leading = region.offset, region.leading
        self._map = _encoder(mapped, region.dtype, (region.rows, region.columns))

    def tensor_map(self, workspace: int) -> bytes:
        """The tensor map of the region in a workspace at an address."""
        return self._map(workspace + self.offset, self._leading)


def together(first: Input | None, second: Input | None, support: Module | None) -> CopyBoth | None:
    """A function that copies two operands by one launch; None where that is not for both.

    Args:
        first: one operand; None where kernels merely take its address.
        second: the other one.
        support: the kernels that copy.
    """
    if first is None or second is None or support is None or first.flipped or second.flipped:
        return None
    blocks = max(first.copy_blocks, second.copy_blocks)
    run = support.runner([LaunchStep("copy_rows_of_two", (blocks, 2, 1), _COPY_BLOCK)])

    def copy(one: Place, other: Place, stream: Any, allocate: Allocate) -> tuple[Place, Place]:
        to, packed = first.described(one, stream, allocate)
        other_to, other_packed = second.described(other, stream, allocate)
        run(packed + other_packed, stream)
        return (to, first.apart), (other_to, second.apart)

    return copy


def inputs_of(
    program: GpuProgram, plan: LaunchPlan, support: Module | None
) -> tuple[dict[str, Input], list[Input | Output | Area]]:
    """Operands that kernels do not merely read where they lie, by name; and what has maps.

    Raises:
        LaunchError: they are not there.
    """
    defined = program.defined
    sizes = dict(zip(defined.sizes, plan.sizes, strict=True))
    maps = {each.operand: each for each in plan.maps if each.region is None}
    flips = dict(zip("AB", program.flips, strict=True))
    layout = dict(zip("AB", program.layout, strict=True))
    stacks = any(len(operand.shape) == 3 for operand in defined.operands)
    made: dict[str, Input] = {}
    mapped: dict[str, Input | Output] = {}
    for operand in defined.operands:
        name = operand.name
        flipped = flips.get(name, False)
        if not flipped and name not in maps:
            continue
        *outer, rows, columns = (int(parsed(text).evaluate(sizes)) for text in operand.shape)
        matrices = outer[0] if outer else int(stacks)
        if operand.written:
            dtype = program.out_dtype or ELEMENTS[program.dtype].result
            mapped[name] = Output(
                name, dtype, (rows, columns), maps[name], matrices, stacked=bool(outer)
            )
            continue
        if support is None:
            raise LaunchError(
                f"the kernels that copy {name} where a kernel cannot read it are missing: "
                "compile the program again"
            )
        stored = (columns, rows) if layout.get(name) == "t" else (rows, columns)
        made[name] = Input(
            name,
            program.dtype,
            stored,
            flipped,
            maps.get(name),
            support,
            matrices,
            stacked=bool(outer),
        )
    mapped |= made
    return made, [
        mapped[each.operand] if each.region is None else Area(each, each.region)
        for each in plan.maps
    ]


def _encoder(
    mapped: MappedOperand, dtype: str, stored: tuple[int, int], matrices: int = 0
) -> Callable[..., bytes]:
    """A function that encodes tensor maps of an operand by address and distances, rows' first."""
    boxes = Boxes(dtype, *stored, mapped.box, mapped.swizzle, mapped.rounded, matrices)
    return functools.lru_cache(maxsize=_KEPT)(functools.partial(driver().tensor_map, boxes))


def _between_units(address: int, strides: Place, itemsize: int) -> bool:
    """Do rows or matrices begin where tensor maps know none?"""
    return bool(address % ROW_BYTES or any(each * itemsize % ROW_BYTES for each in strides))


def packing(
    arguments: str, count: int, *, apart: bool = False
) -> tuple[Callable[..., bytes], list[int]]:
    """A function that packs arguments with tensor maps after them, and where each begins then.

    Without maps arguments lie as kernels have them, and nobody need know where each begins, unless
    the driver wants each by itself.

    Args:
        arguments: the format of what comes before, for `struct`; a letter each.
        count: how many tensor maps.
        apart: whether the driver does, as for kernels whose blocks cooperate.
    """
    if not count and not apart:
        return struct.Struct(arguments).pack, []
    places = [
        struct.calcsize(arguments[: number + 1]) - struct.calcsize(letter)
        for number, letter in enumerate(arguments)
    ]
    gap = -struct.calcsize(arguments) % MAP_ALIGNMENT
    first = struct.calcsize(arguments) + gap
    places += [first + MAP_BYTES * number for number in range(count)]
    return struct.Struct(f"{arguments}{gap}x{f'{MAP_BYTES}s' * count}").pack, places


def transpose_grid(rows: int, columns: int) -> Extents:
    """The grid that covers a matrix with one tile a block."""
    tiles = -(-rows // _TRANSPOSE_TILE) * -(-columns // _TRANSPOSE_TILE)
    return min(tiles, 2**31 - 1), 1, 1
