"""Process grids, the blocks that they divide a matrix product into, and checks of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.device import Device
from autotune.core.errors import InputError, OperandError

if TYPE_CHECKING:
    from autotune.operations.problem import Problem

Span: TypeAlias = tuple[int, int]
"""First index, and one past the last; equal for a span with nothing in it."""


def span(extent: int, parts: int, index: int) -> Span:
    """Part `index` of `extent` elements in `parts`, whose lengths differ by one at most.

    Nothing is padded: a length that does not divide gives some ranks one row more than others,
    where blocks of one size would leave whole ranks with padding only (9 rows on 4 ranks: 3, 2, 2
    and 2, not 3, 3, 3 and 0). Parts nest: those of ``2 * parts`` halve those of ``parts``.
    """
    return extent * index // parts, extent * (index + 1) // parts


@dataclass(frozen=True, slots=True, order=True)
class ProcessGrid:
    """Ranks arranged over rows of C, columns of C and the reduction.

    Rank ``(layer * rows + row) * columns + column`` is at (row, column, layer); ranks from `size`
    on are idle.

    Attributes:
        rows: parts that M is divided into.
        columns: parts that K is divided into.
        reduction: parts that N is divided into: layers, each with a partial sum of all of C.

    Raises:
        InputError: an extent is less than 1.
    """

    rows: int
    columns: int
    reduction: int = 1

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.reduction) < 1:
            raise InputError(f"a grid's extents must be at least 1, got {self}")

    def __str__(self) -> str:
        layers = f"x{self.reduction}" if self.reduction > 1 else ""
        return f"{self.rows}x{self.columns}{layers}"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.rows * self.columns * self.reduction

    def place(self, rank: int) -> tuple[int, int, int] | None:
        """Row, column and layer of a rank; None for one that is idle."""
        if rank >= self.size:
            return None
        rest, column = divmod(rank, self.columns)
        layer, row = divmod(rest, self.rows)
        return row, column, layer

    def rank(self, row: int, column: int, layer: int = 0) -> int:
        """The rank at a place."""
        return (layer * self.rows + row) * self.columns + column


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a matrix."""

    rows: Span
    columns: Span

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def size(self) -> int:
        """Elements in it."""
        rows, columns = self.shape
        return rows * columns

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its place in a NumPy array."""
        return slice(*self.rows), slice(*self.columns)


@dataclass(frozen=True, slots=True)
class BlockPartition:
    """The blocks that each rank computes and keeps of C[M x K] = A[M x N] B[N x K] on a grid.

    The rank at (i, j, l) multiplies A(i, l) by B(l, j): a partial sum of C(i, j) over slice l of
    the reduction. Where the operands are distributed, what it multiplies is kept in pieces, with
    no element on two ranks: A(i, l) in columns by the ranks of its row, B(l, j) in rows by those
    of its column, C(i, j) by the layers: all of it by layer 0, or a part of its rows by each.

    Idle ranks, and those whose part has no elements, have empty blocks.

    Attributes:
        grid: the ranks.
        m: rows of A and C.
        n: the reduction.
        k: columns of B and C.
        scattered: whether every layer keeps a part of C, and not layer 0 all of it.
    """

    grid: ProcessGrid
    m: int
    n: int
    k: int
    scattered: bool = field(default=False, kw_only=True)

    def task_a(self, rank: int) -> Block:
        """The block of A that a rank multiplies."""
        return self._block(rank, lambda i, j, layer: (self._rows(i), self._slice(layer)))

    def task_b(self, rank: int) -> Block:
        """The block of B that a rank multiplies."""
        return self._block(rank, lambda i, j, layer: (self._slice(layer), self._columns(j)))

    def task_c(self, rank: int) -> Block:
        """The block of C that a rank computes, over its slice of the reduction."""
        return self._block(rank, lambda i, j, layer: (self._rows(i), self._columns(j)))

    def home_a(self, rank: int) -> Block:
        """The block of A that a rank keeps."""
        grid = self.grid
        parts = grid.reduction * grid.columns
        return self._block(
            rank,
            lambda i, j, layer: (self._rows(i), span(self.n, parts, layer * grid.columns + j)),
        )

    def home_b(self, rank: int) -> Block:
        """The block of B that a rank keeps."""
        grid = self.grid
        parts = grid.reduction * grid.rows
        return self._block(
            rank,
            lambda i, j, layer: (span(self.n, parts, layer * grid.rows + i), self._columns(j)),
        )

    def home_c(self, rank: int) -> Block:
        """The block of C that a rank keeps."""
        layers = self.grid.reduction
        if not self.scattered:
            return self._block(
                rank, lambda i, j, layer: ((0, 0) if layer else self._rows(i), self._columns(j))
            )
        parts = self.grid.rows * layers
        return self._block(
            rank, lambda i, j, layer: (span(self.m, parts, i * layers + layer), self._columns(j))
        )

    def received(self, rank: int) -> int:
        """Elements of A and B that a rank needs and does not keep, and of partial sums it adds.

        A sum over r layers counts as r - 1 times the block it leaves: as much as a ring or a tree
        of additions brings to those who keep the sum, all together.
        """
        inputs = self.task_a(rank).size - self.home_a(rank).size
        inputs += self.task_b(rank).size - self.home_b(rank).size
        return inputs + (self.grid.reduction - 1) * self.home_c(rank).size

    def _block(self, rank: int, at: Callable[[int, int, int], tuple[Span, Span]]) -> Block:
        """The block at a rank's row, column and layer; an empty one if it is idle."""
        if rank < 0:
            raise InputError(f"a rank must be at least 0, got {rank}")
        place = self.grid.place(rank)
        return Block((0, 0), (0, 0)) if place is None else Block(*at(*place))

    def _rows(self, row: int) -> Span:
        return span(self.m, self.grid.rows, row)

    def _columns(self, column: int) -> Span:
        return span(self.k, self.grid.columns, column)

    def _slice(self, layer: int) -> Span:
        return span(self.n, self.grid.reduction, layer)


def factorisations(ranks: int, *, layers: bool = True) -> Iterator[ProcessGrid]:
    """Every grid of exactly `ranks` ranks, in order of layers, then rows.

    Args:
        ranks: at least 1.
        layers: whether the reduction may be divided too.
    """
    if ranks < 1:
        raise InputError(f"ranks must be at least 1, got {ranks}")
    for reduction in _divisors(ranks) if layers else (1,):
        for rows in _divisors(ranks // reduction):
            yield ProcessGrid(rows, ranks // reduction // rows, reduction)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def check_layout(problem: Problem | None, target: str) -> None:
    """Refuse a problem that is no gemm, or whose operands are transposed."""
    from autotune.operations.problem import only_gemm  # late: listing targets needs no NumPy

    if problem is not None and only_gemm(problem, f"target {target}").layout != "nn":
        raise InputError(
            f"layout must be nn on target {target}, got {problem.label}: transpose the operands"
        )


def check_beta(beta: float, out: object) -> None:
    """Refuse a beta without an output that it scales."""
    if out is None and beta != 0:
        raise OperandError(f"beta = {beta} scales what out holds: pass out=, or use beta = 0")


def described_gpu(name: int | str, which: str) -> Device:
    """The GPU of that name, which need not be here.

    Args:
        name: as for target cuda.
        which: "target mpi uses ..", for who gives a number.
    """
    from autotune.gpu.nvidia.target import CudaTarget

    if str(name).strip().isdecimal():
        raise InputError(f"{which}, got device {name}: choose them with CUDA_VISIBLE_DEVICES")
    return CudaTarget().device(None, name)
