"""Kernels in programs with threads, and in programs that fork."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from suspect_family import suspect, write_suspects

from autotune.core import forking
from autotune.core.limits import CpuLimits
from autotune.cpu import kernel as kernel_module
from autotune.cpu.call import host_kernel
from autotune.families.program_cache import ProgramCache
from autotune.operations.problem import Gemm

TESTS = Path(__file__).parents[2]
LIMITS = CpuLimits(2, 256, 16, 32768, 524288, 0, 64)

THREADS = """
import faulthandler, sys, threading
from pathlib import Path
faulthandler.enable()
sys.path.insert(0, {tests!r})
import numpy as np
from suspect_family import suspect, write_suspects
from autotune.families import modules as module
from autotune.core.limits import CpuLimits
from autotune.cpu.call import host_kernel
from autotune.operations.problem import Gemm
from autotune.families.program_cache import ProgramCache

folder = Path(sys.argv[1])
family, programs = write_suspects(folder), ProgramCache(folder / "programs")
limits = CpuLimits(2, 256, 16, 32768, 524288, 0, 64)
imported, real = [], module._import
module._import = lambda path: (imported.append(path), real(path))[1]
sys.setswitchinterval(1e-5)
start, wrong = threading.Barrier(8), []

def work():
    start.wait()
    for number in range(16):
        problem = Gemm(4 + number, 5, 6)
        call = host_kernel(family, suspect().configuration, problem, limits, programs)
        a, b = np.ones(problem.a_shape, "f4"), np.ones(problem.b_shape, "f4")
        if not (call(a, b) == 5).all():
            wrong.append(number)

threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(len(imported), len(set(imported)), wrong)
"""


def test_threads_that_want_one_kernel_at_once_get_it(tmp_path: Path) -> None:
    for _ in range(2):  # compiled the first time, and loaded after that
        finished = subprocess.run(
            [sys.executable, "-c", THREADS.format(tests=str(TESTS)), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        # The kernel and what calls it are imported once each.
        assert (finished.returncode, finished.stdout) == (0, "2 2 []\n"), finished.stderr


def test_what_a_direct_call_is_lives_as_long_as_it(tmp_path: Path) -> None:
    from autotune.cpu.direct import direct_call

    family, programs = write_suspects(tmp_path), ProgramCache(tmp_path / "programs")
    made = kernel_module.load_kernel(family, suspect().configuration, Gemm(4, 5, 6), programs)
    calls = [direct_call(made, Gemm(4, 5, 6), programs) for _ in range(64)]
    a, b, c = np.ones((4, 5), "f4"), np.ones((5, 6), "f4"), np.empty((4, 6), "f4")
    for call in calls:
        assert call is not None
        assert call(a, b, c, 1.0, 0.0)
        assert call.__self__.method.name == b"call"  # type: ignore[attr-defined]


FORKS = """
import faulthandler, multiprocessing, os, signal, sys, threading
from pathlib import Path
faulthandler.enable()
sys.path.insert(0, {tests!r})
import numpy as np
from suspect_family import suspect, write_suspects
from autotune.core.limits import CpuLimits
from autotune.cpu.call import host_kernel
from autotune.operations.problem import Gemm
from autotune.families.program_cache import ProgramCache

folder, call_first = Path(sys.argv[1]), sys.argv[2] == "called"
family, programs = write_suspects(folder), ProgramCache(folder / "programs")
limits = CpuLimits(2, 256, 16, 32768, 524288, 0, 64)
problem = Gemm(4, 5, 6)
a, b = np.ones((4, 5), "f4"), np.ones((5, 6), "f4")

def load(problem=problem):
    return host_kernel(family, suspect(threads=2).configuration, problem, limits, programs)

kernel = load()

def right(_=0):
    other = load(Gemm(8, 5, 6))
    return bool((kernel(a, b) == 5).all() and (other(np.ones((8, 5), "f4"), b) == 5).all())

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0

if call_first:
    assert right()
said = []
with multiprocessing.get_context("fork").Pool(2) as pool:
    said.append(all(pool.map(right, range(4))))
said.append(in_child(lambda: right() and in_child(right)))
thread = threading.Thread(target=lambda: said.append(in_child(right)))
thread.start(); thread.join()
said.append(right())
print(said)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
@pytest.mark.parametrize("layer", ["omp", pytest.param("workqueue", marks=pytest.mark.thorough)])
def test_a_child_by_fork_calls_and_loads_threaded_kernels(tmp_path: Path, layer: str) -> None:
    script = FORKS.format(tests=str(TESTS))
    for first in ("loaded", "called"):
        finished = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script, str(tmp_path), first],
            env={**os.environ, "NUMBA_THREADING_LAYER": layer},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if "No threading layer could be loaded" in finished.stderr:
            pytest.skip(f"Numba has no {layer} layer here")
        assert finished.stdout == "[True, True, True, True]\n", finished.stderr


PRODUCTS = """
import os, signal, threading
import numpy as np
import numpy.random  # or a thread would import it at its first call, and no fork waits for that
from autotune import matmul

def multiply(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        m, n, k = rng.integers(20, 40, 3)
        a, b = np.ones((m, n), "f4"), np.ones((n, k), "f4")
        assert (matmul(a, b) == n).all()

threads = [threading.Thread(target=multiply, args=(seed, 50)) for seed in range(4)]
for each in threads: each.start()
for seed in range(4, 8):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        multiply(seed, 10)
        os._exit(0)
    print(os.waitpid(child, 0)[1], end=" ")
for each in threads: each.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
def test_forks_while_threads_look_kernels_up(warm_cache: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRODUCTS],
        env={**os.environ, "AUTOTUNE_CACHE": str(warm_cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert (finished.returncode, finished.stdout) == (0, "0 " * 4), finished.stderr


# A thread imports something for the first time, slowly, while the program forks.
IMPORTS = """
import importlib.abc, os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from suspect_family import suspect, write_suspects
import autotune, autotune.cpu.compiling
from autotune.families.program_cache import ProgramCache
from autotune.families.templating import expand
from autotune.operations.problem import Gemm

begun, name, folder = threading.Event(), sys.argv[1], Path(sys.argv[2])

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, found, path, target=None):
        if found == name and not begun.is_set():
            begun.set()
            time.sleep(1)

class Nobody:
    def ask(self, kind, make, request):
        raise SystemExit

for module in list(sys.modules):
    if module == name or module.startswith(name + "."):
        del sys.modules[module]
family = write_suspects(folder)
for module in list(sys.modules):
    if module == name or module.startswith(name + "."):
        del sys.modules[module]
autotune.families.templating.environment.cache_clear()
sys.meta_path.insert(0, Slow())

def work():
    if name == "jinja2":
        (folder / "plain.j2").write_text("text")
        return expand("plain.j2", (folder,), {{}})
    job = autotune.cpu.compiling.compile_job(
        family, suspect().configuration, Gemm(4, 5, 6), ProgramCache(folder / "programs"))
    return job.compile(Nobody())

thread = threading.Thread(target=work, daemon=True)
thread.start()
assert begun.wait(100)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        work()
    except SystemExit:
        pass
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
@pytest.mark.parametrize("name", ["jinja2", "autotune.families.rendering"])
def test_a_fork_waits_for_what_another_thread_imports(tmp_path: Path, name: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS.format(tests=str(TESTS)), name, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert finished.stdout == "0\n", finished.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
def test_a_fork_waits_for_what_another_thread_is_another_thread_is_loading() -> None:
    loading, loaded = threading.Event(), threading.Event()

    def load() -> None:
        with forking.LOADING:
            loading.set()
            loaded.wait()

    thread = threading.Thread(target=load)
    thread.start()
    loading.wait()
    timer = threading.Timer(0.1, loaded.set)
    timer.start()
    process = multiprocessing.get_context("fork").Process(target=_takes_the_locks)
    process.start()  # while the lock is held: the child would find it taken for ever
    process.join(60)
    thread.join()
    assert process.exitcode == 0


def _takes_the_locks() -> None:
    with forking.LOADING, forking.WORKQUEUE:
        pass


def test_without_a_configuration_of_one_thread_numpy_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, programs = write_suspects(tmp_path), ProgramCache(tmp_path / "programs")
    text = (tmp_path / "suspect.toml").read_text().replace("[1, 2, 64], default = 1", "[2, 64]")
    (tmp_path / "suspect.toml").write_text(text)
    from autotune.targets.families import read_family

    family = read_family(tmp_path / "suspect.toml", (tmp_path,))
    monkeypatch.setattr("autotune.cpu.call.threads_are_lost", lambda: True)
    problem = Gemm(4, 5, 6)
    call = host_kernel(family, suspect(threads=2).configuration, problem, LIMITS, programs)
    assert (call(np.ones((4, 5), "f4"), np.ones((5, 6), "f4")) == 5).all()
    assert not (tmp_path / "programs").exists()
