"""Communicators, blocks and clocks of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mpiexec import run_ranks
from numpy.typing import NDArray

from autotune.distributed.mpi.ranks.harness import time_together
from autotune.measuring.timing import MIN_SPAN_S, Stop

SCRIPT = """
from mpi4py import MPI
from autotune import Gemm, load
from autotune.core.errors import InputError

held = []
try:
    while True:
        held.append(MPI.COMM_SELF.Dup())
except MPI.Exception:
    pass
try:
    load(Gemm(8, 8, 8), "mpi", comm=MPI.COMM_SELF, match="nearest")
except InputError as error:
    print(error)
for each in held:
    each.Free()
load(Gemm(8, 8, 8), "mpi", comm=MPI.COMM_SELF, match="nearest").free()
print("loaded")
"""


@pytest.mark.thorough
def test_what_is_never_freed_is_told_of() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    told, loaded = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert told.startswith("MPI gives no communicator (")
    assert told.endswith("until its free() is called: free those that are done with")
    assert loaded == "loaded"


CHECK = Path(__file__).with_name("check_blocks.py")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_a_rank_must_not_do_is_told_on_all(ranks: int) -> None:
    done = run_ranks(ranks, str(CHECK))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(alike for *_, alike in told.values())
    verdicts = {fault: (right, damaged) for fault, (right, damaged, *_) in told.items()}
    assert verdicts == {
        "none": (True, False),
        "wrong": (False, False),
        "input": (False, True),
        "before": (False, True),
        "after": (False, True),
    }
    assert f"modified B, an input, on rank {ranks - 1}" in told["input"][2]
    for fault in ("before", "after"):
        assert f"wrote outside C on rank {ranks - 1}" in told[fault][2]


TIMING = """
import json, time
from mpi4py import MPI
from autotune.distributed.mpi.ranks.harness import RankBench, timed_together, time_together
from autotune.measuring.timing import Stop
comm = MPI.COMM_WORLD
lengths = 0.0, 0.02, 0.04

class Placed:
    def prepare(self):
        pass

    def call(self):
        time.sleep(lengths[comm.rank])

bench = RankBench(comm, Placed())
seconds = [timed_together(comm, Placed().call), bench.once(), bench.settle(), bench.again()]
calls = []
series = time_together(comm, lambda: calls.append(time.sleep(0.002)), Stop(0.01, 0.0, 1.0))
told = comm.gather((seconds, series.median_s, len(calls)))
if comm.rank == 0:
    print(json.dumps(told))
"""


class OneRank:
    """A communicator of one rank, before a clock that its calls move on."""

    def Barrier(self) -> None:
        pass

    def Allreduce(self, mine: NDArray[Any], most: NDArray[Any], op: object) -> None:
        most[...] = mine


def test_steady_short_calls_still_span_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def call() -> None:
        nonlocal now_s
        now_s += 2.0**-13

    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    series = time_together(
        OneRank(),  # type: ignore[arg-type]
        call,
        Stop(0.3, 0.02, 10.0),
    )
    assert series.median_s == 2.0**-13
    assert now_s >= MIN_SPAN_S


def test_all_ranks_are_told_the_same_time_of_the_slowest() -> None:
    done = run_ranks(3, "-c", TIMING)
    assert done.returncode == 0, done.stderr
    (seconds, median_s, calls), *others = json.loads(done.stdout)
    assert min(seconds) >= 0.04
    assert median_s >= 0.002
    assert calls > 1
    assert others == [[seconds, median_s, calls]] * 2
