"""Parts of a kernel family: how it is launched, how it divides a product, its presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration, Value
from autotune.space import Expression, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Mapping

ONE, ZERO = Expression.parse("1"), Expression.parse("0")

SWIZZLES = (0, 32, 64, 128)
"""Bytes of the rows within which hardware permutes what it copies."""


@dataclass(frozen=True, slots=True)
class AuxiliaryKernel:
    """A further kernel of the same source, run with the main one's arguments.

    Attributes:
        kernel: its name in the source.
        when: where this is false it is not run.
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
        shared_bytes: dynamic shared memory of one block.
    """

    kernel: str
    when: Expression
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression = ZERO


@dataclass(frozen=True, slots=True)
class Keeps:
    """Work on an operand that need not be done again while that stays as it is.

    Attributes:
        operand: its name.
        kernel: the one of the kernels before the main one that makes it.
        grid: thread blocks of that for this operand alone, where all sizes but its own are 0.
        rest: thread blocks for the other operands alone.
        bytes: how much of the workspace, from its start on, holds it.
    """

    operand: str
    kernel: str
    grid: tuple[Expression, ...]
    rest: tuple[Expression, ...]
    bytes: Expression


@dataclass(frozen=True, slots=True)
class Region:
    """A row-major matrix in the workspace, which one kernel writes for another to read.

    Attributes:
        dtype: element type.
        offset: bytes from the start of the workspace.
        rows: rows.
        columns: elements of a row.
        leading: elements from one row to the next.
    """

    dtype: str
    offset: Expression
    rows: Expression
    columns: Expression
    leading: Expression


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A matrix that kernels are given as boxes which hardware copies (TMA).

    That is an operand, which they have the address of, too, or a region of the workspace. Where
    some operand of the operation is a stack of matrices, maps of operands have three dimensions:
    boxes are of one matrix, and a matrix alone is a stack of one.

    Attributes:
        operand: name of the operand, or of the region.
        box: rows and columns of a box, of the operand as it is stored; rows and bytes of a row
            where the operand is written, whose elements may have one size or another.
        transposed_box: the same where the layout says that it is stored transposed; None where
            that makes no difference.
        swizzle: bytes of the rows within which a box's pieces of 16 bytes are permuted in shared
            memory: one of `SWIZZLES`, of which 0 leaves them in order.
        rounded: what elements are rounded to on their way ("tf32"); empty for nothing.
        when: where this is false kernels are not given it; it follows from what is compiled in.
        region: the region of the workspace; None for an operand.
    """

    operand: str
    box: tuple[Expression, ...]
    transposed_box: tuple[Expression, ...] | None = None
    swizzle: Expression = ZERO
    rounded: str = ""
    when: Expression = ONE
    region: Region | None = None

    @property
    def argument(self) -> str:
        """Name of the kernels' argument."""
        return f"{self.operand.lower()}_map"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The boxes, the swizzle, and offset, rows, columns, leading dimension of the region."""
        where = self.region
        of_region = (
            () if where is None else (where.offset, where.rows, where.columns, where.leading)
        )
        return (*self.box, *(self.transposed_box or ()), self.swizzle, *of_region)

    def stored_box(self, *, transposed: bool) -> tuple[Expression, ...]:
        """Rows and columns of a box where the operand is stored so."""
        return self.transposed_box if transposed and self.transposed_box else self.box


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of a GPU kernel; every division in it must be whole.

    Attributes:
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
        shared_bytes: dynamic shared memory of one block.
        resident_blocks: the least number of blocks that must fit a multiprocessor at once.
        workspace_bytes: device memory that the kernels are given as their last argument; None
            means that they take no such argument.
        before: kernels run before the main one, in this order.
        after: kernels run after it.
        zeroed_bytes: how much of the workspace, from its start on, is zero whenever a call
            begins; kernels leave it zero.
        cluster: thread blocks of a cluster along x, y and z, as the source itself says by
            ``__cluster_dims__``.
        cooperative: whether blocks of the main kernel wait for each other, so that all of them
            must be resident at once: CUDA C++ Programming Guide, "Cooperative Groups".
        tensor_maps: what kernels are given after all other arguments.
        architecture_features: whether kernels are compiled for the device's very architecture,
            "sm_90a", whose features no other one has.
        dependent: 1 where all these kernels wait themselves for those before them in the stream
            (``griddepcontrol.wait``), so that they may begin earlier: CUDA C++ Programming Guide,
            "Programmatic Dependent Launch".
        spill_limit: bytes of spill code that the main kernel may have; None takes the usual.
        keeps: what need not be made again for an operand that stays as it is; None for nothing.
    """

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression
    resident_blocks: Expression = ONE
    workspace_bytes: Expression | None = None
    before: tuple[AuxiliaryKernel, ...] = ()
    after: tuple[AuxiliaryKernel, ...] = ()
    zeroed_bytes: Expression = ZERO
    cluster: tuple[Expression, ...] = (ONE, ONE, ONE)
    cooperative: bool = False
    tensor_maps: tuple[TensorMap, ...] = ()
    architecture_features: bool = False
    dependent: Expression = ZERO
    spill_limit: int | None = None
    keeps: Keeps | None = None

    def maps(self, constants: Mapping[str, Value]) -> tuple[TensorMap, ...]:
        """The tensor maps that kernels are given, by what is compiled in."""
        return tuple(each for each in self.tensor_maps if each.when.holds(constants))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All of them, those of further kernels and of tensor maps too."""
        further = [
            part
            for each in (*self.before, *self.after)
            for part in (each.when, *each.grid, *each.block, each.shared_bytes)
        ]
        maps = [part for each in self.tensor_maps for part in (each.when, *each.expressions)]
        workspace = () if self.workspace_bytes is None else (self.workspace_bytes,)
        own = (self.shared_bytes, self.resident_blocks, *workspace, self.zeroed_bytes)
        own = (*own, self.dependent)
        if (kept := self.keeps) is not None:
            own = (*own, *kept.grid, *kept.rest, kept.bytes)
        return (*self.grid, *self.block, *self.cluster, *own, *further, *maps)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a program, as the cost model counts it (`autotune.model`).

    Attributes:
        tile: rows and columns of C and reduction steps of a unit of work: of a thread block on a
            GPU, of a tile in registers on a CPU.
        parts: that the reduction of a tile is divided into, each a unit of its own.
        in_block: 1 where the last unit of a tile adds up its parts, 0 where a kernel of its own
            adds up all.
        copied: 1 where operands whose rows are no whole vectors are copied first.
        share: least reduction steps of a unit where units are as many as the device holds at once
            and divide all steps of all tiles evenly; 0 where every tile has units of its own.
        rate: products in the time of one for each thread, over limits of the device: more than 1
            for tensor cores.
        warp: rows and columns of C for which a warp reads its operands once; None where every
            thread reads those of its own.
        blocks: thread blocks that a unit has, which are a cluster.
        idle: multiprocessors that no cluster of such a size can have.
    """

    tile: tuple[Expression, Expression, Expression]
    parts: Expression
    in_block: Expression
    copied: Expression
    share: Expression
    rate: Expression
    warp: tuple[Expression, Expression] | None = None
    blocks: Expression = ONE
    idle: Expression = ZERO

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions that divide a product: tile, parts, in_block, copied and share."""
        return (*self.tile, self.parts, self.in_block, self.copied, self.share)


@dataclass(frozen=True, slots=True)
class Local:
    """The product that a rank, or a thread that drives a GPU, makes at a time.

    Attributes:
        m: rows of its A and C.
        n: its reduction.
        k: columns of its B and C.
        on: the target whose kernel multiplies.
        threads: that the kernel may use; None for a GPU's, which has none.
    """

    m: Expression
    n: Expression
    k: Expression
    on: str
    threads: Expression | None


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration with a name: a known-good one, or a rung of a ladder.

    Attributes:
        name: what users call it.
        summary: one line for listings.
        configuration: a value for every parameter; it need not be valid for every problem.
        stated: the parameters that it is about; the others have their declared defaults.
    """

    name: str
    summary: str
    configuration: Configuration
    stated: frozenset[str]

    def placed(self, space: SearchSpace) -> Configuration:
        """The nearest valid configuration that is what the preset states; as declared if none."""
        row = space.nearest(self.configuration)
        if row is not None and all(
            space[row][name] == self.configuration[name] for name in self.stated
        ):
            return space[row]
        return self.configuration
