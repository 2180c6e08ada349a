"""Run by mpiexec: ranks of which one does what it must not, named by the argument."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import Gemm, load
from autotune.core.errors import OperandError
from autotune.distributed.mpi.kernel import DistributedKernel
from autotune.distributed.mpi.messages import MpiProgram, Setup
from autotune.distributed.mpi.processes import VARIABLE
from autotune.distributed.mpi.ranks import meeting
from autotune.distributed.mpi.ranks.world import AttachedRanks, attach
from autotune.families.rendering import Source, render
from autotune.measuring.effort import Effort
from autotune.measuring.messages import Evaluate
from autotune.targets.families import load_families

RANK = int(os.environ["PMI_RANK"])
PROBLEM = Gemm(6, 5, 4, dtype="float64")
FOR_EVER_S = 3600.0


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def attached(rank: int, deed: str, timeout_s: float = FOR_EVER_S) -> None:
    """Ranks attached for tuning, one of which does something instead of multiplying."""
    ranks = attach({"--seed": 0})
    if not isinstance(ranks, AttachedRanks):
        return
    text = (
        "import ctypes, os, signal\n"
        "def gemm(comm, m, n, k):\n"
        f"    if comm.rank == {rank}:\n"
        f"        {deed}\n"
        "    comm.Barrier()\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        ranks.call(Setup(PROBLEM, Effort(), Path(folder), False, seed=0), FOR_EVER_S)
        program = MpiProgram(Source(text, "gemm", (), "mpi"), "suspect", None)
        ranks.call(Evaluate(program, "ieee", None, 0.01), timeout_s)


def kernel(*, distributed: bool = False) -> DistributedKernel:
    """A kernel of all ranks, without a record."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    family = load_families(target="mpi")["rows"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(render(family, {"rows": comm.size, "threads": 1}, dtype="float64").text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    plan = module.gemm(comm, PROBLEM.m, PROBLEM.n, PROBLEM.k)
    return DistributedKernel(PROBLEM, comm, plan, distributed=distributed)


def call(multiply: DistributedKernel) -> None:
    a, b = np.ones((6, 5)), np.ones((5, 4))
    c = multiply(a, b) if RANK == 0 else multiply(None, None)
    assert RANK or (c == 5).all()


def stopped_between_requests() -> None:
    ranks = attach({})
    if isinstance(ranks, AttachedRanks):
        stop()


def never_loads() -> None:
    from mpi4py import MPI

    if RANK == 1:
        time.sleep(FOR_EVER_S)
    load(PROBLEM, "mpi", comm=MPI.COMM_WORLD)


def stopped_before_load() -> None:
    from mpi4py import MPI

    if RANK == 1:
        stop()
    load(PROBLEM, "mpi", comm=MPI.COMM_WORLD)


def raises_before_load() -> None:
    from mpi4py import MPI

    if RANK == 1:
        raise ValueError("no such file")
    load(PROBLEM, "mpi", comm=MPI.COMM_WORLD)


def raises_between_calls() -> None:
    multiply = kernel()
    call(multiply)
    if RANK == 1:
        raise ValueError("no such file")
    call(multiply)


def ends_between_calls() -> None:
    multiply = kernel()
    call(multiply)
    if RANK == 0:
        call(multiply)


def calls_on_one_rank() -> None:
    multiply = kernel()
    if RANK == 1:
        time.sleep(FOR_EVER_S)
    call(multiply)


class Noticed(io.StringIO):
    """A file that others see once something has been printed here."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def flush(self) -> None:
        self.path.write_text(self.getvalue())


def stopped_between_calls() -> None:
    """Without a limit of the user's, too, one that is stopped is not waited for."""
    del os.environ[VARIABLE]
    multiply = kernel()
    multiply._limit_s = 3.0
    if RANK == 1:
        stop()
    call(multiply)


def comes_late() -> None:
    """Without a limit of the user's, a rank that is busy elsewhere is waited for."""
    del os.environ[VARIABLE]
    multiply = kernel()
    multiply._limit_s = 0.5
    named = Path(sys.argv[2])
    if RANK == 0:
        sys.stderr = Noticed(named)
    else:
        while not named.exists():
            time.sleep(0.01)
    call(multiply)
    call(multiply)
    multiply.free()
    print("done", flush=True)


class Until:
    """An operation that is complete once something is true."""

    def __init__(self, true: Callable[[], object]) -> None:
        self.Test = true


def ends_early() -> None:
    """Rank 0 hears of the end of rank 1 in the wait before the one that rank 1 does not make."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def waiting() -> meeting.Waiting:
        return meeting.Waiting("the first wait", FOR_EVER_S, ends=False)

    if RANK == 1:
        meeting.wait(comm, Until(lambda: True), waiting)  # type: ignore[arg-type]
        meeting.say_gone(comm, "it has had enough")
        time.sleep(FOR_EVER_S)
    while not comm.iprobe(1, meeting._tag(comm)):
        time.sleep(0.01)
    heard = Until(lambda: not comm.iprobe(1, meeting._tag(comm)))
    meeting.wait(comm, heard, waiting)  # type: ignore[arg-type]
    meeting.meet(comm, "the second wait")


def late_for_a_roll() -> None:
    """Rank 0 comes when rank 1 has called the roll; that is not about the next wait."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if RANK == 1:
        meeting._send(comm, ("waits", 0, ""))
    else:
        while not comm.iprobe(1, meeting._tag(comm)):
            time.sleep(0.01)
    meeting.meet(comm, "the first wait")
    if RANK == 1:
        time.sleep(7.0)  # more than a rank that calls the roll waits for answers
    meeting.meet(comm, "the second wait", patience=FOR_EVER_S)
    print("done", flush=True)


def all_wait() -> None:
    """All are there, and what they wait for takes its time."""
    from mpi4py import MPI

    def waiting() -> meeting.Waiting:
        return meeting.Waiting("the wait", 0.1, ends=True)

    end = time.monotonic() + 3.0
    under_way = Until(lambda: time.monotonic() > end)
    meeting.wait(MPI.COMM_WORLD, under_way, waiting)  # type: ignore[arg-type]
    print("done", flush=True)


class Odd:
    """No array: it breaks where one asks what it is."""

    @property
    def dtype(self) -> str:
        raise ZeroDivisionError("nobody knows")

    shape = dtype


def one_is_refused() -> None:
    """What only one rank passes, and whatever it is, is refused by all, and they go on."""
    multiply = kernel(distributed=True)
    a, b, _ = (np.ones(block.shape) for block in multiply.blocks)
    for given, kind, told in (
        ([[1.0, 2.0], [3.0]], OperandError, "rank 1: a of rank 1 must be its block"),
        (None, OperandError, "rank 1: a of rank 1 must be its block"),
        (Odd(), ZeroDivisionError, "nobody knows"),
    ):
        with pytest.raises(kind if RANK == 1 else OperandError, match=told):
            multiply(a if RANK == 0 else given, b)
        multiply(a, b)
    multiply.free()
    print("done", flush=True)


def all_raise() -> None:
    multiply = kernel()
    try:
        call(multiply)
        multiply(np.ones(3) if RANK == 0 else None, None)
    except OperandError as error:
        raise SystemExit(3) from error


SCENARIOS = {
    "rank 0 stopped between requests": stopped_between_requests,
    "rank 0 stopped in a request": lambda: attached(0, "os.kill(os.getpid(), signal.SIGSTOP)"),
    "rank 1 stopped in a request": lambda: attached(1, "os.kill(os.getpid(), signal.SIGSTOP)"),
    "rank 1 raises in a request": lambda: attached(1, "raise ValueError('seven is right out')"),
    "rank 0 hangs in native code": lambda: attached(0, "ctypes.PyDLL(None).pause()", 2.0),
    "rank 1 never loads": never_loads,
    "rank 1 stopped before load": stopped_before_load,
    "rank 1 raises before load": raises_before_load,
    "rank 1 raises between calls": raises_between_calls,
    "rank 1 ends between calls": ends_between_calls,
    "rank 1 stopped between calls": stopped_between_calls,
    "only rank 0 calls": calls_on_one_rank,
    "rank 1 comes late": comes_late,
    "rank 1 ends a wait early": ends_early,
    "rank 0 is late for a roll": late_for_a_roll,
    "all wait": all_wait,
    "rank 1 is refused": one_is_refused,
    "all raise": all_raise,
}

SCENARIOS[sys.argv[1]]()
