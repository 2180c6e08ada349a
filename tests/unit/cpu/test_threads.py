"""Threads of kernels: on whose they run, how they wait, and how Numba's compiler starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy  # noqa: F401  before its BLAS is looked for
import pytest

from autotune.cpu.threads import SPIN, lent_threads

lent = pytest.mark.skipif(
    sys.platform != "linux" or lent_threads() is None, reason="NumPy's BLAS lends no threads here"
)

BEGIN = """
import ctypes, faulthandler, os, signal, threading, time
import numpy as np
from numba import njit, prange
from autotune.cpu import threads as shared_threads
from autotune.cpu.threads import start_threads

faulthandler.enable()
signal.alarm(100)
start_threads()

def made():
    @njit("void(int64[:])", parallel=True, nogil=True)
    def count(x):
        for i in prange(len(x)):
            x[i] += i
    return count

with shared_threads.loops_of_kernels():
    ours = made()
loop = shared_threads._loop()

def at(name, kind):
    return kind.from_address(loop.get_global_value_address(name))

pool, clocks = at("pool", ctypes.c_int32), at("clocks", ctypes.c_int32 * 2)
when, seen = at("when", ctypes.c_int64), at("seen", ctypes.c_int64)
choose = ctypes.CFUNCTYPE(ctypes.c_int)(loop.get_function_address("choose"))
NUMBAS, OPENBLAS, NEVER = 0, 1, 2**62

def stay(there):
    pool.value, when.value = there, NEVER

def threads():
    return set(os.listdir("/proc/self/task"))
"""


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + program],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@lent
def test_every_call_is_made_once_on_either_pool() -> None:
    program = """
for there in (NUMBAS, OPENBLAS):
    stay(there)
    for size in (*range(9), 64, 1001):
        x = np.arange(size)
        ours(x)
        assert (x == 2 * np.arange(size)).all(), (there, size)
print("right")
"""
    assert run(program) == "right"


@lent
def test_kernels_on_openblas_start_no_threads_and_a_programs_own_loops_stay_numbas() -> None:
    program = """
import llvmlite.binding as llvm
from numba.np.ufunc import omppool
before = threads()
stay(OPENBLAS)
ours(np.arange(64))
print(threads() == before, llvm.address_of_symbol("numba_parallel_for") == omppool.parallel_for)
theirs = made()
theirs(np.arange(64))
print(threads() == before)
"""
    priority = {"NUMBA_THREADING_LAYER_PRIORITY": "omp tbb workqueue"}
    assert run(program, **priority).split() == ["True", "True", "False"]


@lent
def test_a_kernel_runs_there_however_it_was_loaded(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from suspect_family import suspect, write_suspects
from autotune.core.limits import CpuLimits
from autotune.families.program_cache import ProgramCache
from autotune.operations.problem import Gemm
from autotune.cpu.call import host_kernel

folder = Path({str(tmp_path)!r})
family, programs = write_suspects(folder), ProgramCache(folder / "programs")
limits = CpuLimits(2, 256, 16, 32768, 524288, 0, 64)
kernel = host_kernel(family, suspect(threads=2).configuration, Gemm(4, 5, 6), limits, programs)
before = threads()
stay(OPENBLAS)
right = kernel(np.ones((4, 5), "f4"), np.ones((5, 6), "f4")) == 5
print(right.all(), threads() == before)
"""
    for _ in range(2):  # compiled, then out of Numba's file cache
        assert run(program).split() == ["True", "True"]


@lent
def test_kernels_follow_whoever_uses_the_other_pool() -> None:
    # Clocks of processor time are replaced by one that stands still and one that goes on.
    program = """
asleep = threading.Event()
sleeper = threading.Thread(target=asleep.wait, daemon=True)
sleeper.start()
still = time.pthread_getcpuclockid(sleeper.ident)

def looked(clock):
    when.value, clocks[1 - pool.value] = 0, clock
    return choose()

def settle(there):
    pool.value, seen.value = there, -1

def stood_still(there):
    # The sleeper may be on its way to sleep: a clock that moved meanwhile is looked at anew.
    before = time.clock_gettime_ns(still)
    settle(there)
    pools = [looked(still) for _ in range(3)]
    return pools if time.clock_gettime_ns(still) == before else stood_still(there)

for there in (NUMBAS, OPENBLAS):
    assert stood_still(there) == [there] * 3
    settle(there)
    # The first look has nothing to compare with.
    assert [looked(time.CLOCK_MONOTONIC) for _ in range(2)] == [there, 1 - there]
    assert when.value > time.monotonic_ns() and seen.value == -1
    clocks[there] = time.CLOCK_MONOTONIC
    assert choose() == 1 - there  # too early to look again
asleep.set()
sleeper.join()
print("followed")
"""
    assert run(program) == "followed"


@pytest.mark.thorough
@lent
def test_a_thread_that_has_ended_is_replaced() -> None:
    program = """
clock = ~(2**22 - 1) << 3 | 6  # as Linux numbers that of a thread, which is none of ours
pool.value, when.value, clocks[:] = NUMBAS, 0, (clock, clock)
assert choose() == NUMBAS
assert clocks[OPENBLAS] not in (0, clock)  # another one of OpenBLAS's
pool.value, when.value = OPENBLAS, 0
assert choose() == NUMBAS  # where the next loop finds one
assert clocks[NUMBAS] == 0
ours(np.arange(64))
assert clocks[NUMBAS] not in (0, clock)
print("found")
"""
    assert run(program) == "found"


@lent
def test_forks_wait_for_openblas_threads() -> None:
    # OpenBLAS ends its threads before a fork, and waits for ever for one that was at work.
    program = """
over = False

def work():
    x = np.zeros(100_000, np.int64)
    while not over:
        ours(x)

stay(OPENBLAS)
workers = [threading.Thread(target=work) for _ in range(2)]
for each in workers: each.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
over = True
for each in workers: each.join()
x = np.arange(64)
ours(x)
assert (x == 2 * np.arange(64)).all()
print(at("closed", ctypes.c_int32).value, at("lent", ctypes.c_int32).value)
"""
    assert run(program) == "0 0"


@lent
def test_a_program_may_end_while_a_thread_computes() -> None:
    # Nor does OpenBLAS's end at the exit return while one of its threads is at work.
    program = """
with shared_threads.loops_of_kernels():
    @njit("void(float64[:])", parallel=True, nogil=True)
    def long(x):
        for i in prange(len(x)):
            for j in range(20_000_000):
                x[i] += np.sin(x[i] + j)

stay(OPENBLAS)
threading.Thread(target=long, args=(np.zeros(2),), daemon=True).start()
while not at("lent", ctypes.c_int32).value:
    time.sleep(0.001)
print("over", flush=True)
"""
    assert run(program) == "over"


@pytest.mark.thorough
@lent
def test_threads_of_openblas_keep_their_affinity() -> None:
    # What a kernel's loop does to a thread on its caller's processor (`keep_apart`) ends with it.
    program = """
from numba import types
allow = types.ExternalFunction(
    "sched_setaffinity", types.int32(types.int32, types.uint64, types.uint64)
)

with shared_threads.loops_of_kernels():
    @njit("void(int64[:], uint64)", parallel=True)
    def leave(x, mask):
        for i in prange(len(x)):
            x[i] = allow(0, 128, mask)

usable = sorted(os.sched_getaffinity(0))
mask = np.zeros(16, np.uint64)
for each in usable:
    mask[each // 64] |= np.uint64(1 << each % 64)
stay(OPENBLAS)
workers = [int(each) for each in threads() if int(each) != os.getpid()]
for each in (*workers, 0):
    os.sched_setaffinity(each, usable[:1])
x = np.ones(2, np.int64)
leave(x, mask.ctypes.data)
assert not x.any()
print([sorted(os.sched_getaffinity(each)) == usable[:1] for each in workers])
"""
    assert set(run(program).strip("[]").split(", ")) == {"True"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "environment", [{"NUMBA_THREADING_LAYER": "workqueue"}, {"OPENBLAS_NUM_THREADS": "1"}]
)
@lent
def test_a_layer_that_is_named_is_used(environment: dict[str, str]) -> None:
    program = "print(shared_threads._loop())"
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.partition("loop = ")[0] + program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "None", done.stderr


PROGRAM = """
import os
from unittest import mock
import numba
seen = []
with mock.patch.object(numba, "get_num_threads", lambda: seen.append(dict(os.environ))):
    from autotune.cpu.threads import start_threads
    start_threads()
    start_threads()
(environment,) = seen
print(environment.get("GOMP_SPINCOUNT"), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"{SPIN} None"),
        ({"GOMP_SPINCOUNT": "7"}, "7 7"),
        ({"OMP_WAIT_POLICY": "active"}, "None None"),
    ],
)
def test_threads_are_told_while_they_start(given: dict[str, str], told: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | given, capture_output=True, text=True
    )
    assert done.stdout.strip() == told, done.stderr


COMPILED = """
import sys
import numpy as np
from autotune.cpu.numba_start import import_numba

numba = import_numba()
square = numba.njit("float64(float64)")(lambda x: x * x)
assert square(3.0) == 9
print(*sorted(name for name in sys.modules if name.startswith("scipy.linalg")))
product = numba.njit("float64[:, ::1](float64[:, ::1], float64[:, ::1])")(lambda a, b: a @ b)
a = np.arange(12.0).reshape(3, 4)
assert np.allclose(product(a, a.T.copy()), a @ a.T)
print("scipy.linalg.cython_blas" in sys.modules)
"""

WITHOUT = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "scipy" else found(name, *more)
from autotune.cpu.numba_start import import_numba

assert import_numba().njit("float64(float64)")(lambda x: x * x)(3.0) == 9
print(import_numba().np.arraymath._HAVE_BLAS)
"""


def started(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


PRODUCTS = """
import numpy as np
from autotune import matmul
for rows in (300, 301):
    a, b = np.ones((rows, 80)), np.ones((80, 640))
    for _ in range(40):  # the library and kernels take turns
        assert (matmul(a, b) == 80).all()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("NUMBA_NUM_THREADS", "0", "Numba does not start (ValueError: Number of threads"),
        ("NUMBA_THREADING_LAYER", "none", "Numba does not start (ValueError: The threading layer"),
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT must be 0"),
    ],
)
def test_products_do_without_numba_where_it_does_not_start(
    variable: str, value: str, told: str, warm_cache: Path
) -> None:
    own = {"AUTOTUNE_CACHE": str(warm_cache), "AUTOTUNE_BACKGROUND": "0", variable: value}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTS],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("products are left to their libraries") == 1  # and not twice
    assert told in done.stderr


def test_only_what_calls_blas_imports_scipy_s() -> None:
    assert started(COMPILED) == ["", "True"]


def test_without_scipy_numba_is_told_so() -> None:
    assert started(WITHOUT) == ["False"]
