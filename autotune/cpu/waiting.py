"""How the threads of kernels wait for work: for a moment only."""

from __future__ import annotations

import os

from autotune.core import session
from autotune.cpu.numba_start import import_numba, working

SPIN = "20000"
"""Times that a thread looks for work before it sleeps: some 2 milliseconds.

GNU's own 300,000 hold a core for 16 milliseconds or more, which is not ours when the program does
something else. Fewer are too few: where one of two threads on a core sleeps before the system
gives the other its turn, it is woken up on the core of the one that woke it, time and again, and
no thread that then leaves (`keep_apart` in the emitted sources) gets ahead of that. On two cores,
with other libraries' products in between, 3x1151x574 took 480 microseconds with 5000 in most
turns of 10 milliseconds, and 70 to 135 in all with 20,000.
"""

_VARIABLE = "GOMP_SPINCOUNT"


@session.cached()
def start_threads() -> None:
    """Start Numba's threads, which wait briefly unless the environment says how they wait.

    GNU's OpenMP reads the variable when it is loaded, and nobody else is meant.

    Raises:
        UnavailableError: Numba has no threads, or not as its variables ask for them.
    """
    numba = import_numba()
    if _VARIABLE in os.environ or "OMP_WAIT_POLICY" in os.environ:
        with working():
            numba.get_num_threads()
        return
    os.environ[_VARIABLE] = SPIN
    try:
        with working():
            numba.get_num_threads()
    finally:
        del os.environ[_VARIABLE]
