"""Run by mpiexec after tuning: loads the kernels on every rank. Prints one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from autotune import Gemm, load
from autotune.core.errors import NotTunedError, OperandError
from autotune.store import MatchQuality

comm = MPI.COMM_WORLD
root = comm.rank == 0
wrong: list[str] = []
PROBLEM = Gemm(60, 50, 40, dtype="float64")


def expect(true: bool, what: str) -> None:
    if not true:
        wrong.append(f"rank {comm.rank}: {what}")


def refused(kind: type[Exception], told: str, call: Callable[[], object]) -> None:
    """Every rank gets the same error, and the ranks go on together."""
    try:
        call()
        message = "no error"
    except kind as error:
        message = str(error)
    expect(told in message, f"{told!r} expected, got {message!r}")
    expect(len(set(comm.allgather(message))) == 1, f"ranks get different errors: {message!r}")


rng = np.random.default_rng(0)
a, b, c0 = rng.random((60, 50)), rng.random((50, 40)), rng.random((60, 40))
right = 2.0 * (a @ b) - 0.5 * c0

kernel = load(PROBLEM, target="mpi", comm=comm)
expect(kernel.match is MatchQuality.EXACT, f"match is {kernel.match}: {kernel.reason}")
c = kernel(a, b) if root else kernel(None, None)
expect(np.allclose(c, a @ b) if root else c is None, "a plain call from the root")
padded = np.zeros((60, 48))[:, :40]
padded[...] = c0
if root:
    kernel(np.asfortranarray(a), b[:, :], out=padded, alpha=2.0, beta=-0.5)
    expect(np.allclose(padded, right), "strided operands, alpha and beta")
else:
    kernel(None, None, alpha=2.0, beta=-0.5)
refused(OperandError, "same alpha: rank 0 passes 1.0, rank 1 passes 2.0", lambda: (
    kernel(a if root else None, b if root else None, alpha=1.0 + comm.rank)
))  # fmt: skip
refused(OperandError, "rank 1: alpha must be a real number, got 'x'", lambda: (
    kernel(a if root else None, b if root else None, alpha=1.0 if root else "x")  # type: ignore
))  # fmt: skip
refused(OperandError, "same beta: rank 0 passes nan, rank 1 passes 0.0", lambda: (
    kernel(a, b, c0.copy(), beta=np.nan) if root else kernel(None, None)
))  # fmt: skip
c = kernel(a if root else None, b if root else None, alpha=float("nan"))
expect(np.isnan(c).all() if root else c is None, "a scale that is no number")
refused(OperandError, "rank 0: a must have shape (60, 50), got (50, 40)", lambda: (
    kernel(b if root else None, b if root else None)
))  # fmt: skip
refused(OperandError, "operands are rank 0's alone, and rank 1 passes some", lambda: kernel(a, b))
kernel.free()  # type: ignore[attr-defined]

blocked = load(PROBLEM, comm=comm, operands="distributed", match="nearest")
# What was tuned for operands at the root serves, and is not what was asked for.
expect(blocked.match is not MatchQuality.EXACT, f"match is {blocked.match}")
homes = [block.slices for block in blocked.blocks]
mine = [np.array(whole[home]) for whole, home in zip((a, b, c0), homes, strict=True)]
c = blocked(mine[0], mine[1])
expect(np.allclose(c, (a @ b)[homes[2]]), "a plain call on blocks")
blocked(*mine, alpha=2.0, beta=-0.5)
expect(np.allclose(mine[2], right[homes[2]]), "blocks, alpha and beta")
shared = np.zeros(max(mine[0].size, mine[2].size))
part_of_a, part_of_c = (shared[: each.size].reshape(each.shape) for each in (mine[0], mine[2]))
refused(OperandError, "rank 0: out overlaps a in memory", lambda: (
    blocked(part_of_a, mine[1], part_of_c)
))  # fmt: skip
refused(OperandError, "must be its block", lambda: blocked(a[: 1 + comm.rank], mine[1]))
blocked.free()

refused(OperandError, "same problem", lambda: load(Gemm(9 + comm.rank, 9, 9), "mpi", comm=comm))
refused(NotTunedError, "--target mpi --ranks 2`", lambda: load(Gemm(9, 9, 9), "mpi", comm=comm))
refused(NotTunedError, "--target mpi --ranks 2 --operands distributed`", lambda: (
    load(Gemm(9, 9, 9), comm=comm, operands="distributed")
))  # fmt: skip
wrong = [text for texts in comm.allgather(wrong) for text in texts]
if root:
    print(json.dumps({"wrong": wrong}))
