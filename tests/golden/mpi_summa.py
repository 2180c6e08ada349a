"""gemm for mpi: family summa, float64, layout nn.

template: gemm/mpi/summa.py.j2, digest f06dded13a4582f6
configuration: {"columns": 2, "lookahead": 1, "panel": 128, "rows": 2, "threads": 1}

C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C by message passing, every rank running this
program. `gemm` makes a plan for given sizes; `mpiexec -n 4 python FILE [M N K]` tries it.
"""

import sys

import numpy as np
from mpi4py import MPI

# The grid: parts that m and k are divided into, and the ranks that takes.
ROWS = 2
COLUMNS = 2
RANKS = 4

DTYPE = np.dtype("float64")
ELEMENT = MPI.DOUBLE

# Reduction steps broadcast at a time, and how many such panels are under way ahead of the product.
PANEL = 128
LOOKAHEAD = 1
SLOTS = LOOKAHEAD + 1


def span(extent, parts, index):
    """First and one past the last of part `index`; lengths differ by one at most."""
    return extent * index // parts, extent * (index + 1) // parts


def multiply(a, b, out, alpha, beta):
    """out = alpha a b + beta out by NumPy, where no other local product is given."""
    product = np.matmul(a, b)
    product *= alpha
    if beta:
        product += beta * out
    out[...] = product


class Plan:
    """One problem on one communicator; all that its calls share is made once, until `free`.

    Every rank of `comm` makes the plan and takes part in every call; ranks from RANKS on have
    nothing to do. `local(a, b, out, alpha, beta)` computes out = alpha a b + beta out within a
    rank, on arrays whose rows may lie apart; where beta is 0 it does not read out.
    """

    def __init__(self, comm, m, n, k, local=multiply):
        if comm.size < RANKS:
            raise ValueError(f"the grid takes {RANKS} ranks, the communicator has {comm.size}")
        self.m, self.n, self.k = m, n, k
        self.local = local
        self.buffers = {}
        self.resources = []
        self.comm = comm.Split(0 if comm.rank < RANKS else MPI.UNDEFINED, comm.rank)
        self.active = self.comm != MPI.COMM_NULL
        if self.active:
            self.rank = self.comm.rank
            self.keep(self.comm)
            self.prepare()

    def from_root(self, a, b, c, alpha=1.0, beta=0.0):
        """C in place on rank 0, from its whole operands (contiguous); others pass None."""
        if self.active:
            self.compute_from_root(a, b, c, alpha, beta)

    def free(self):
        """Give communicators and datatypes back; every rank calls it."""
        while self.resources:
            self.resources.pop().Free()

    def keep(self, resource):
        """Have a communicator or a datatype freed with the plan."""
        self.resources.append(resource)
        return resource

    def buffer(self, name, shape):
        """An array that is kept for the next call."""
        if name not in self.buffers:
            self.buffers[name] = np.empty(shape, DTYPE)
        return self.buffers[name]

    def product(self, a, b, out, alpha, beta):
        """The local product; the local kernel itself never meets an empty operand."""
        if a.shape[1] and out.size:
            self.local(a, b, out, alpha, beta)
        elif out.size:
            out[...] = beta * out if beta else 0


def shape_of(block):
    """Rows and columns of a block."""
    (top, bottom), (left, right) = block
    return bottom - top, right - left


def subarray(shape, block):
    """The datatype of a block within a matrix, and how many of them to send: none if empty."""
    sizes = shape_of(block)
    if 0 in sizes:
        return ELEMENT.Dup(), 0
    (top, _), (left, _) = block
    return ELEMENT.Create_subarray(shape, sizes, (top, left)).Commit(), 1


class Spread:
    """Rank 0's whole matrix, and a contiguous block of it on every rank of `comm`.

    One Alltoallw moves all blocks at once: unlike Scatterv's, its datatype may differ from rank to
    rank, so that blocks of unequal sizes need neither padding nor packing.
    """

    def __init__(self, plan, comm, shape, blocks):
        self.comm = comm
        self.none = [0] * comm.size
        self.elements = [ELEMENT] * comm.size
        self.types, self.counts = self.elements, self.none
        if comm.rank == 0:
            pairs = [subarray(shape, block) for block in blocks]
            self.types = [plan.keep(datatype) for datatype, _ in pairs]
            self.counts = [count for _, count in pairs]

    def scatter(self, whole, part):
        """From rank 0's matrix to everybody's block."""
        self.comm.Alltoallw(self.of_whole(whole), self.of_part(part))

    def gather(self, part, whole):
        """From everybody's block to rank 0's matrix."""
        self.comm.Alltoallw(self.of_part(part), self.of_whole(whole))

    def of_whole(self, whole):
        return [whole, (self.counts, self.none), self.types]

    def of_part(self, part):
        return [part, ([part.size, *self.none[1:]], self.none), self.elements]


class BlockPlan(Plan):
    """A plan on a grid of ranks, each of which can keep a block of A, B and C.

    The rank at (row, column) multiplies rows of A by columns of B. It keeps a piece of each: of A's
    columns one for each rank of its row, of B's rows one for each of its column.
    """

    def prepare(self):
        """Find the rank's place and make the communicators of its row and its column."""
        self.row, self.column = self.place(self.rank)
        self.row_comm = self.keep(self.comm.Split(self.row, self.column))
        self.column_comm = self.keep(self.comm.Split(self.column, self.row))
        self.spreads = {}

    def place(self, rank):
        """Row and column of a rank."""
        return divmod(rank, COLUMNS)

    def home_a(self, rank):
        """What the rank keeps of A, where the operands are distributed."""
        row, column = self.place(rank)
        return span(self.m, ROWS, row), span(self.n, COLUMNS, column)

    def home_b(self, rank):
        """What the rank keeps of B."""
        row, column = self.place(rank)
        return span(self.n, ROWS, row), span(self.k, COLUMNS, column)

    def home_c(self, rank):
        """What the rank keeps of C."""
        row, column = self.place(rank)
        return span(self.m, ROWS, row), span(self.k, COLUMNS, column)

    def homes(self):
        """This rank's blocks of A, B and C: for each the spans of its rows and its columns."""
        if not self.active:
            return [((0, 0), (0, 0))] * 3
        return [home(self.rank) for home in (self.home_a, self.home_b, self.home_c)]

    def on_blocks(self, a, b, c, alpha=1.0, beta=0.0):
        """This rank's block of C in place, from its blocks of A and B (all contiguous)."""
        if self.active:
            self.compute_on_blocks(a, b, c, alpha, beta)

    def scatter(self, name, whole, block_of):
        """This rank's block of rank 0's matrix, in a buffer."""
        part = self.buffer(name, shape_of(block_of(self.rank)))
        self.spread(name, block_of).scatter(whole, part)
        return part

    def gather(self, name, part, whole, block_of):
        """Every rank's block into rank 0's matrix."""
        self.spread(name, block_of).gather(part, whole)

    def spread(self, name, block_of):
        """How the blocks of an operand are spread; made when first asked for."""
        if name not in self.spreads:
            shape = {"a": (self.m, self.n), "b": (self.n, self.k), "c": (self.m, self.k)}[name]
            blocks = [block_of(rank) for rank in range(RANKS)]
            self.spreads[name] = Spread(self, self.comm, shape, blocks)
        return self.spreads[name]

    def c_part(self, c, beta):
        """A buffer for this rank's block of C, with C's values where they count."""
        if beta:
            return self.scatter("c", c, self.home_c)
        return self.buffer("c", shape_of(self.home_c(self.rank)))


class Summa(BlockPlan):
    """C's blocks stay; panels of A travel along the rows of ranks, panels of B down the columns.

    Step by step the owners of a panel of the reduction broadcast it, and every rank adds the
    product of what it got to its block of C.
    """

    def prepare(self):
        super().prepare()
        # A panel lies within one owner's columns of A and one owner's rows of B.
        self.own_a = span(self.n, COLUMNS, self.column)[0]
        self.own_b = span(self.n, ROWS, self.row)[0]
        self.steps = []
        for column in range(COLUMNS):
            for row in range(ROWS):
                of_a, of_b = span(self.n, COLUMNS, column), span(self.n, ROWS, row)
                first, last = max(of_a[0], of_b[0]), min(of_a[1], of_b[1])
                for start in range(first, last, PANEL):
                    self.steps.append((start, min(start + PANEL, last), column, row))
        height, width = shape_of(self.home_c(self.rank))
        self.panels_a = self.buffer("panels of a", (SLOTS, height * PANEL))
        self.panels_b = self.buffer("panels of b", (SLOTS, PANEL, width))

    def compute_from_root(self, a, b, c, alpha, beta):
        a = self.scatter("a", a, self.home_a)
        b = self.scatter("b", b, self.home_b)
        part = self.c_part(c, beta)
        self.compute_on_blocks(a, b, part, alpha, beta)
        self.gather("c", part, c, self.home_c)

    def compute_on_blocks(self, a, b, c, alpha, beta):
        under_way = []
        for index in range(len(self.steps)):
            while len(under_way) <= LOOKAHEAD and index + len(under_way) < len(self.steps):
                under_way.append(self.start(index + len(under_way), a, b))
            requests, panel_a, panel_b = under_way.pop(0)
            MPI.Request.Waitall(requests)
            self.product(panel_a, panel_b, c, alpha, beta)
            beta = 1.0

    def start(self, index, a, b):
        """Broadcast the panels of a step, or begin to; their requests and where they will be."""
        first, last, column, row = self.steps[index]
        depth, turn = last - first, index % SLOTS
        height = a.shape[0]
        panel_a = self.panels_a[turn, : height * depth].reshape(height, depth)
        if column == self.column:
            panel_a[...] = a[:, first - self.own_a : last - self.own_a]
        panel_b = self.panels_b[turn, :depth]
        if row == self.row:
            panel_b = b[first - self.own_b : last - self.own_b]
        requests = [
            self.row_comm.Ibcast([panel_a, ELEMENT], column),
            self.column_comm.Ibcast([panel_b, ELEMENT], row),
        ]
        return requests, panel_a, panel_b


def gemm(comm, m, n, k, local=multiply):
    """A plan for C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C on the ranks of `comm`."""
    return Summa(comm, m, n, k, local)


def main(arguments):
    """Multiply random matrices of the sizes given and compare with NumPy."""
    comm = MPI.COMM_WORLD
    sizes = arguments or ["512", "512", "512"]
    fault = None
    if len(sizes) != 3 or not all(each.isdecimal() and int(each) for each in sizes):
        fault = f"three sizes M N K are needed, at least 1 each, got: {' '.join(sizes)}"
    elif comm.size < RANKS:
        fault = f"the grid takes {RANKS} ranks, and there are {comm.size}: mpiexec -n {RANKS}"
    if fault is not None:  # every rank sees it, and the first one says it
        sys.exit(fault if comm.rank == 0 else 1)
    m, n, k = map(int, sizes)
    plan = gemm(comm, m, n, k)
    a = b = c = None
    if comm.rank == 0:
        rng = np.random.default_rng(0)
        a, b = rng.random((m, n)).astype(DTYPE), rng.random((n, k)).astype(DTYPE)
        c = np.empty((m, k), DTYPE)
    for _ in range(2):  # the second call finds connections and buffers made
        comm.Barrier()
        start = MPI.Wtime()
        plan.from_root(a, b, c)
        comm.Barrier()
    seconds = MPI.Wtime() - start
    plan.free()
    if comm.rank == 0:
        error = np.abs(c - a @ b).max() / (n * np.finfo(DTYPE).eps)
        print(f"{1e3 * seconds:.3f} ms, largest error {error:.2g} times n eps")


if __name__ == "__main__":
    main(sys.argv[1:])
