"""Threads of kernels: how many there may be, how they wait for work, and whose they are.

Idle threads of Numba and of NumPy's OpenBLAS look for work before they sleep: GNU's OpenMP for
2 milliseconds (see `SPIN`), OpenBLAS for 100. A product of one right after that of the other then
has half of every core, for whole turns of the system's. So there is one pool: kernels run on the
threads of whoever else computes. OpenBLAS lends its own (`gotoblas_pthread`); nothing of its state
is changed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import threadpoolctl

from autotune.core import session
from autotune.core.processors import integer_of
from autotune.cpu.numba_start import import_numba, working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_OPENBLAS_THREADS = 64
"""Threads that NumPy's OpenBLAS is built for; it has no more on any machine."""


def usable_threads(
    affinity: int, quota: float | None, numba_threads: str | None, pools: int | None
) -> int:
    """The threads a kernel may use: the least of the limits there are.

    Args:
        affinity: processors this process may run on.
        quota: processors' worth of time; a begun one counts. None if unlimited.
        numba_threads: the variable NUMBA_NUM_THREADS, which Numba cannot exceed.
        pools: as `pool_limit` gives it.
    """
    limits = [affinity]
    if quota is not None:
        limits.append(math.ceil(quota))
    if numba_threads and integer_of(numba_threads) > 0:
        limits.append(integer_of(numba_threads))
    if pools is not None:
        limits.append(pools)
    return max(1, min(limits))


def pool_limit(pools: Iterable[Mapping[str, Any]] | None = None) -> int | None:
    """The least that `threadpoolctl`, or a variable such as OMP_NUM_THREADS, leaves a thread pool.

    Pools that Numba starts later are not among them: before it does, NumPy's OpenBLAS alone tells
    of limits.

    Args:
        pools: as `threadpoolctl.threadpool_info` describes them; None asks it.

    Returns:
        Threads; None where no pool tells.
    """

    def tells(pool: Mapping[str, Any]) -> bool:
        if pool["user_api"] == "openmp":
            return True
        # MKL has a thread per core of its own accord, and BLIS one in all.
        is_openblas = pool["internal_api"] == "openblas" and pool["threading_layer"] != "disabled"
        return is_openblas and int(pool["num_threads"]) < _OPENBLAS_THREADS

    found = _thread_pools() if pools is None else pools
    return min((pool["num_threads"] for pool in found if tells(pool)), default=None)


def _thread_pools() -> list[Mapping[str, Any]]:
    """The libraries with thread pools in this process, as they describe themselves now."""
    found: list[Mapping[str, Any]] = _libraries(len(sys.modules)).info()
    return found


def numpy_library() -> Mapping[str, Any] | None:
    """The BLAS that NumPy calls, as `threadpool_info` describes it.

    The one shipped in NumPy's own wheel is preferred where SciPy, say, has loaded another.
    """
    found = [pool for pool in _thread_pools() if pool["user_api"] == "blas"]
    return next((pool for pool in found if "numpy" in pool["filepath"]), next(iter(found), None))


def lent_threads() -> tuple[Any, int] | None:
    """The function that has OpenBLAS's threads do a job, and their number with the caller's.

    It is ``gotoblas_pthread(jobs, function, arguments, bytes of one's arguments)``. None where
    NumPy calls another BLAS, or one without threads of its own.
    """
    found = numpy_library()
    if found is None or found.get("threading_layer") != "pthreads":
        return None
    library = ctypes.CDLL(found["filepath"])
    try:
        threads = ctypes.c_int.in_dll(library, "blas_num_threads").value
        return (library.gotoblas_pthread, threads) if threads > 1 else None
    except (AttributeError, ValueError):  # built otherwise
        return None


@session.cached(most=1)
def _libraries(modules: int) -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


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
    is_chosen = _VARIABLE in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not is_chosen:
        os.environ[_VARIABLE] = SPIN
    try:
        with working():
            numba.get_num_threads()
    finally:
        if not is_chosen:
            del os.environ[_VARIABLE]


_NAME = "numba_parallel_for"
"""The function of Numba's threading layer that compiled loops call."""

_LOOP = Path(__file__).with_suffix(".ll")

_LOOK_NS = 200_000
"""Looking at another thread's clock takes up to some microseconds."""

_SETTLED_NS = 250_000_000
"""OpenBLAS's threads sleep 2**28 cycles after their last work."""


@contextlib.contextmanager
def loops_of_kernels() -> Iterator[None]:
    """Bind what is loaded meanwhile to a loop that chooses the threads; Numba's have started.

    Loops of the program's own stay Numba's.
    """
    import llvmlite.binding as llvm
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        loop = _loop()
        if loop is None:
            yield
            return
        numbas = llvm.address_of_symbol(_NAME)
        llvm.add_symbol(_NAME, loop.get_function_address("parallel_for"))
        try:
            yield
        finally:
            llvm.add_symbol(_NAME, numbas)


@session.cached()
def _loop() -> Any:
    """Owner of the loop; None where NumPy's BLAS lends no threads, or the user named a layer."""
    import llvmlite.binding as llvm

    lent = lent_threads() if sys.platform == "linux" else None
    if lent is None or import_numba().config.THREADING_LAYER != "default":
        return None
    function, threads = lent
    numbers = {
        "MOST": threads,
        "OPENBLAS": ctypes.cast(function, ctypes.c_void_p).value,
        "NUMBA": llvm.address_of_symbol(_NAME),
        "LOOK": _LOOK_NS,
        "SETTLED": _SETTLED_NS,
    }
    text = _LOOP.read_text()
    for name, number in numbers.items():
        text = text.replace(f"@{name}@", str(number))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    _calls.update(
        (name, ctypes.CFUNCTYPE(ctypes.c_int)(engine.get_function_address(name)))
        for name in ("probe", "close", "left", "reopen")
    )
    _calls["probe"]()
    return engine


_calls: dict[str, Callable[[], int]] = {}
"""Functions of the loop, once there is one."""

_forks: list[None] = []
"""An entry for every fork under way."""


def _close() -> None:
    """Wait until OpenBLAS's threads have done what kernels gave them; they get no more."""
    if _calls:
        _forks.append(None)
        left = _calls["close"]()
        while left:
            time.sleep(1e-4)
            left = _calls["left"]()


def _reopen() -> None:
    if _forks:
        _forks.pop()
        _calls["reopen"]()


atexit.register(_close)
session.at_fork(before=_close, parent=_reopen, child=_reopen)
