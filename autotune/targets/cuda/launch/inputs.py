"""Operands as a binary takes them: where they lie or as copies of theirs, and tensor maps."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES
from autotune.core.errors import LaunchError
from autotune.families.launch import ROW_BYTES, LaunchStep
from autotune.operations.parts import parsed
from autotune.targets.cuda.driver.interface import (
    MAP_ALIGNMENT,
    MAP_BYTES,
    Boxes,
    driver,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.families.launch import Extents, LaunchPlan, MappedOperand
    from autotune.targets.cuda.driver.interface import Module
    from autotune.targets.cuda.launch.program import CudaProgram
    from autotune.targets.cuda.launch.scratch import Allocate

_COPY_BLOCK = (32, 8, 1)
_COPY_TILE = 32

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
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        stored: tuple[int, int],
        flipped: bool,
        mapped: MappedOperand | None,
        module: Module,
    ) -> None:
        self.operand = name
        self.name = name.lower()
        self._stored = stored
        self._flipped = flipped
        self._itemsize = DTYPES[dtype].itemsize
        rows, columns = stored[::-1] if flipped else stored
        unit = ROW_BYTES // self._itemsize
        self._apart = columns if mapped is None else -(-columns // unit) * unit
        self._size = rows * self._apart * self._itemsize
        # Binaries of the first that were kept know no distance of rows.
        kernel = (
            ("transpose" if mapped is None else "transpose_apart") if flipped else "copy_apart"
        )
        self._distance = () if mapped is None else (self._apart,)
        self._pack = struct.Struct("PqqqP" + "q" * len(self._distance)).pack
        self._run = module.runner([LaunchStep(kernel, copy_grid(*stored), _COPY_BLOCK)])
        self._map = None
        if mapped is not None:
            boxes = Boxes(dtype, rows, columns, mapped.box, mapped.swizzle, mapped.rounded)
            encode = functools.partial(driver().tensor_map, boxes)
            self._map = functools.lru_cache(maxsize=_KEPT)(encode)

    def lies_badly(self, address: int, stride: int) -> bool:
        """Whether it has to be copied."""
        if self._flipped:
            return True
        return bool(address % ROW_BYTES or stride * self._itemsize % ROW_BYTES)

    def copy(self, address: int, stride: int, stream: Any, allocate: Allocate) -> tuple[int, int]:
        """Enqueue the copy; its address and leading dimension."""
        rows, columns = self._stored
        to = allocate(stream, self.name, self._size, 0)
        self._run(self._pack(address, stride, rows, columns, to, *self._distance), stream)
        return to, self._apart

    def tensor_map(self, address: int, stride: int) -> bytes:
        """The tensor map of the operand, or of its copy."""
        assert self._map is not None
        return self._map(address, stride)


def inputs_of(
    program: CudaProgram, plan: LaunchPlan, support: Module | None
) -> tuple[dict[str, Input], list[Input]]:
    """Operands that kernels do not merely take the addresses of, by name; and those with maps.

    Args:
        program: what is launched.
        plan: for which sizes.
        support: the kernels that copy.

    Raises:
        LaunchError: they are not there.
    """
    defined = program.defined
    sizes = dict(zip(defined.sizes, plan.sizes, strict=True))
    maps = {each.operand: each for each in plan.maps}
    flips = dict(zip("AB", program.flips, strict=True))
    layout = dict(zip("AB", program.layout, strict=True))
    made: dict[str, Input] = {}
    for operand in defined.operands:
        name = operand.name
        flipped = flips.get(name, False)
        if not flipped and name not in maps:
            continue
        if support is None:
            raise LaunchError(
                f"the kernels that copy {name} where a kernel cannot read it are missing: "
                "compile the program again"
            )
        rows, columns = (int(parsed(text).evaluate(sizes)) for text in operand.shape)
        stored = (columns, rows) if layout.get(name) == "t" else (rows, columns)
        made[name] = Input(name, program.dtype, stored, flipped, maps.get(name), support)
    return made, [made[each.operand] for each in plan.maps]


def packing(arguments: str, count: int) -> tuple[Callable[..., bytes], list[int]]:
    """What packs arguments with tensor maps after them, and where each begins then.

    Without maps arguments lie as kernels have them, and nobody need know where each begins.

    Args:
        arguments: the format of what comes before, for `struct`; a letter each.
        count: how many tensor maps.
    """
    if not count:
        return struct.Struct(arguments).pack, []
    places = [
        struct.calcsize(arguments[: each + 1]) - struct.calcsize(letter)
        for each, letter in enumerate(arguments)
    ]
    gap = -struct.calcsize(arguments) % MAP_ALIGNMENT
    first = struct.calcsize(arguments) + gap
    places += [first + MAP_BYTES * each for each in range(count)]
    return struct.Struct(f"{arguments}{gap}x{f'{MAP_BYTES}s' * count}").pack, places


def copy_grid(rows: int, columns: int) -> Extents:
    """The grid that covers a matrix with one tile a block."""
    tiles = -(-rows // _COPY_TILE) * -(-columns // _COPY_TILE)
    return min(tiles, 2**31 - 1), 1, 1
