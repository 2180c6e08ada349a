"""What a call of all ranks takes, as each of them is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mpiexec import run_ranks
from numpy.typing import NDArray

from autotune.distributed.mpi.ranks.timing import time_together
from autotune.measuring.timing import MIN_SPAN_S, never

SCRIPT = """
import json, time
from mpi4py import MPI
from autotune.distributed.mpi.ranks.timing import timed_together, time_together
comm = MPI.COMM_WORLD
lengths = 0.0, 0.02, 0.04
seconds = timed_together(comm, lambda: time.sleep(lengths[comm.rank]))
calls = []
series = time_together(comm, lambda: calls.append(time.sleep(0.002)), budget_s=0.01, interval=0.0,
    deadline_s=1.0, enough=lambda low_s: False)
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
        budget_s=0.3,
        interval=0.02,
        deadline_s=10.0,
        enough=never,
    )
    assert series.median_s == 2.0**-13
    assert now_s >= MIN_SPAN_S


def test_all_ranks_are_told_the_same_time_of_the_slowest() -> None:
    done = run_ranks(3, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    (seconds, median_s, calls), *others = json.loads(done.stdout)
    assert seconds >= 0.04
    assert median_s >= 0.002
    assert calls > 1
    assert others == [[seconds, median_s, calls]] * 2
