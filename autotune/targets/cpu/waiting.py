"""How the threads of kernels wait for work: for a moment only."""

from __future__ import annotations

import functools
import os

SPIN = "1000"
"""Times that a thread looks for work before it sleeps: some 0.1 milliseconds.

GNU's own 300,000 hold a core for 16 milliseconds. After a pause of the program, or beside another
one, a thread that wakes up may find itself on the core of one that waits for it in this way: a
product of 40 microseconds then took 2 to 8 milliseconds on two cores, and takes 0.3 to 0.6 now,
for as long as the system leaves both there. Calls that follow each other find the threads awake
all the same. Fewer are too few: woken for every call, such a product took 0.2 milliseconds.
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
