"""How the threads of kernels wait for work: for a moment only."""

from __future__ import annotations

import functools
import os

SPIN = "5000"
"""Times that a thread looks for work before it sleeps: some 0.5 milliseconds.

GNU's own 300,000 hold a core for 16 milliseconds, which is not ours when the program does
something else. Fewer are too few: where a thread sleeps between the loops of one call, the system
wakes it up on the core of the one that waits for it, time and again, and one that then leaves for
another core (`keep_apart` in the emitted sources) has the other one woken up there. On two cores,
with other libraries' products in between, 300x300x300 took 1.0 milliseconds with 1000 and 0.3
with 5000, as it does alone.
"""

_VARIABLE = "GOMP_SPINCOUNT"


@functools.cache
def start_threads() -> None:
    """Start Numba's threads, which wait briefly unless the environment says how they wait.

    GNU's OpenMP reads the variable when it is loaded, and nobody else is meant.
    """
    import numba

    if _VARIABLE in os.environ or "OMP_WAIT_POLICY" in os.environ:
        numba.get_num_threads()
        return
    os.environ[_VARIABLE] = SPIN
    try:
        numba.get_num_threads()
    finally:
        del os.environ[_VARIABLE]
