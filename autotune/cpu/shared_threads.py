"""Parallel loops of kernels, on Numba's threads or on those of NumPy's OpenBLAS.

Idle threads of both look for work before they sleep: GNU's OpenMP for 2 milliseconds (see `SPIN`),
OpenBLAS for 100. A product of one right after that of the other then has half of every core, for
whole turns of the system's. So there is one pool: kernels run on the threads of whoever else
computes. OpenBLAS lends its own (`gotoblas_pthread`); nothing of its state is changed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.cpu.numba_start import import_numba
from autotune.cpu.thread_limits import lent_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    """What has the loop; None where NumPy's BLAS lends no threads, or the user named a layer."""
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
