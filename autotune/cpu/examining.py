"""Checks of this machine for the target `cpu`: processor, Numba and its threads, a BLAS."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from autotune.core.check import Check, attempt
from autotune.core.processors import affinity_count, integer_of
from autotune.serving.examining import Apart

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAYER = "NUMBA_THREADING_LAYER"
_INSTALL = "reinstall it: pip install --force-reinstall numba llvmlite"
_LIMITS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def examine() -> Iterator[Check]:
    """Look at each of them."""
    with Apart() as apart:
        yield attempt("processor", lambda: apart(processor))
        yield attempt("threads", lambda: apart(threads))
        yield attempt("Numba", lambda: apart(compiler), remedy=_remedy())
        yield attempt("threading layer", lambda: apart(layer), remedy=_remedy())
        yield attempt("BLAS", lambda: apart(blas))


def _remedy() -> str:
    """Remedy where Numba does not start: a variable keeps it from that, or it is broken."""
    given = os.environ.get(_LIMITS[0])
    if given and integer_of(given) < 1:
        return f"{_LIMITS[0]} is {given}: set it to 1 or more, or unset it"
    return _INSTALL


def processor() -> Check:
    """The processor, and whether its clock is free to rise."""
    from autotune.cpu.identity import read_cpu

    device = read_cpu()
    limits = device.limits.names()
    found = f"{device.fingerprint.name}, vectors of {limits['vector_bits']} bits"
    if device.state["governor"] == "powersave":
        return Check.note(
            "processor",
            f"{found}; its clock is governed by powersave, so that times vary",
            "where powersave is slow: cpupower frequency-set -g performance",
        )
    return Check.ok("processor", found)


def threads() -> Check:
    """Threads that a kernel may use, and the limit where they are fewer than processors."""
    from autotune.cpu.identity import read_cpu

    device = read_cpu()
    usable, there = device.limits.names()["max_threads"], os.cpu_count() or 1
    found = f"kernels may use {usable} of {there} processors"
    if usable == there:
        return Check.ok("threads", found)
    told = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    if affinity_count() < there:
        told.append(f"affinity to {affinity_count()} of them")
    if device.state["quota"] != "unlimited":
        told.append(f"a quota of {device.state['quota']} processors")
    because = f" ({', '.join(told)})" if told else ""
    return Check.note("threads", f"{found}{because}", "lift the limit where it is not meant")


def compiler() -> Check:
    """A function that Numba compiles and runs."""
    import numba

    compiled = numba.njit("int64(int64)")(_successor)
    if compiled(1) != 2:
        return Check.problem("Numba", f"{numba.__version__} compiles to wrong code", _INSTALL)
    return Check.ok("Numba", f"{numba.__version__} compiles")


def layer() -> Check:
    """The threads that Numba's parallel loops run on, once it has started them."""
    numba: Any = importlib.import_module("numba")
    given = os.environ.get(_LAYER)
    try:
        numba.set_num_threads(1)  # starts all there are
    except ValueError as error:
        named = f"{_LAYER}={given}" if given else "no threading layer"
        reason = str(error).partition("\n")[0].rstrip(".")
        return Check.problem(
            "threading layer",
            f"{named} cannot be loaded ({reason})",
            f"unset {_LAYER}, or choose omp or workqueue" if given else _INSTALL,
        )
    name = numba.threading_layer()
    if name == "workqueue":
        return Check.note(
            "threading layer",
            "workqueue: threads of a program take turns in parallel kernels",
            f"omp or tbb let them work at once: unset {_LAYER}" if given else None,
        )
    return Check.ok("threading layer", f"{name}, {numba.config.NUMBA_NUM_THREADS} threads")


def blas() -> Check:
    """The BLAS that NumPy multiplies with, which kernels are compared with."""
    import numpy as np

    from autotune.cpu.baseline import numpy_blas

    found = numpy_blas()
    text = f"NumPy {np.__version__} multiplies with {found.description}"
    if not found.version and not found.architecture:
        return Check.note(
            "BLAS",
            f"{text}: speeds relative to it may be those of a slow one",
            "pip install --force-reinstall numpy brings OpenBLAS",
        )
    return Check.ok("BLAS", text)


def _successor(value: int) -> int:
    return value + 1
