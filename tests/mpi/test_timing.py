"""What a call of all ranks takes, as each of them is told."""

from __future__ import annotations

import json

from mpiexec import run_ranks

SCRIPT = """
import json, time
from mpi4py import MPI
from autotune.targets.mpi.ranks.timing import timed_together, time_together
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


def test_all_ranks_are_told_the_same_time_of_the_slowest() -> None:
    done = run_ranks(3, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    (seconds, median_s, calls), *others = json.loads(done.stdout)
    assert seconds >= 0.04
    assert median_s >= 0.002
    assert calls > 1
    assert others == [[seconds, median_s, calls]] * 2
