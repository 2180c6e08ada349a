"""Thread schedules: what they promise, and that emitted code keeps it on every threading layer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from thread_schedule import SCHEDULES, ThreadSchedule

from autotune.core.errors import InputError
from autotune.core.paths import data_dir
from autotune.cpu.identity import read_cpu
from autotune.cpu.kernel import CpuKernel, load_kernel
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families, read_family

COUNTS = st.integers(0, 300)
THREADS = st.integers(1, 9)
CHUNKS = st.integers(0, 40)
KINDS = st.sampled_from(SCHEDULES)


@given(kind=KINDS, count=COUNTS, threads=THREADS, chunk=CHUNKS)
def test_chunks_cover_every_tile_once_and_in_order(
    kind: str, count: int, threads: int, chunk: int
) -> None:
    chunks = list(ThreadSchedule(kind, chunk).chunks(count, threads))
    assert [tile for each in chunks for tile in each] == list(range(count))
    assert all(chunks)


@given(count=COUNTS, threads=THREADS, chunk=CHUNKS)
def test_static_shares_are_the_chunks_dealt_out(count: int, threads: int, chunk: int) -> None:
    schedule = ThreadSchedule("static", chunk)
    shares = schedule.shares(count, threads)
    assert len(shares) == threads
    dealt = sorted((each for share in shares for each in share), key=lambda each: each.start)
    assert dealt == list(schedule.chunks(count, threads))
    if chunk == 0:
        sizes = [sum(map(len, share)) for share in shares]
        assert max(sizes) - min(sizes) <= 1
    else:
        owners = [first // chunk % threads for first in range(0, count, chunk)]
        assert [each.start // chunk % threads for each in dealt] == owners
        for thread, share in enumerate(shares):
            assert all(each.start // chunk % threads == thread for each in share)


@given(count=COUNTS, threads=THREADS, chunk=CHUNKS)
def test_guided_chunks_shrink_with_what_is_left(count: int, threads: int, chunk: int) -> None:
    sizes = [len(each) for each in ThreadSchedule("guided", chunk).chunks(count, threads)]
    assert sizes == sorted(sizes, reverse=True)
    left = count
    for size in sizes:
        # Never more than half of an even share, unless the chunk asks for it; the last takes less.
        assert size <= max(1, chunk, left / threads / 2 + 1)
        assert size >= min(max(1, chunk), left)
        left -= size


@given(
    kind=KINDS,
    costs=st.lists(st.floats(0.1, 10), min_size=1, max_size=60),
    threads=THREADS,
    chunk=CHUNKS,
)
def test_no_schedule_beats_its_threads(
    kind: str, costs: list[float], threads: int, chunk: int
) -> None:
    speedup = ThreadSchedule(kind, chunk).best_speedup(costs, threads)
    assert 1 - 1e-9 <= speedup <= min(threads, sum(costs) / max(costs)) + 1e-9


def test_a_triangle_is_shared_badly_by_number_and_well_in_chunks() -> None:
    rows = [i + 1.0 for i in range(1024)]
    assert ThreadSchedule("static").best_speedup(rows, 2) == pytest.approx(4 / 3, abs=0.01)
    for schedule in (ThreadSchedule("static", 16), ThreadSchedule("dynamic", 16)):
        assert schedule.best_speedup(rows, 2) > 1.95
    assert ThreadSchedule("guided", 4).best_speedup(rows, 2) > 1.95


@pytest.mark.parametrize(("kind", "chunk"), [("auto", 0), ("static", -1)])
def test_what_is_no_schedule_is_refused(kind: str, chunk: int) -> None:
    with pytest.raises(InputError, match=r"schedule must be one of|chunk must be"):
        ThreadSchedule(kind, chunk)
    with pytest.raises(InputError, match="only a static schedule has shares"):
        ThreadSchedule("guided", 2).shares(10, 2)


# --- the emitted code: every row of C is a tile, and says how often, by whom and in which chunk


FAMILY = """\
family = "report"
operation = "gemm"
target = "cpu"
template = "report.py.j2"
accuracy = "ieee"
summary = "Reports who takes which tiles"
include = ["schedule/threads.toml"]

[parameters]
unused = { values = [1] }

[derived]
tiles = "M"
"""

TEMPLATE = """\
{% from "_lib/chunks.j2" import first_chunk, next_chunk with context %}
{% include "_lib/numba_prelude.py.j2" %}


{% include "_lib/numba_schedule.py.j2" %}


@njit(**CALLED)
def work(thread, {{ "counter, " if schedule != "static" }}count, chunk, c, ldc):
    first, last = {{ first_chunk }}
    while first < last:
        for tile in range(first, last):
            row = view(c + tile * ldc * ITEMSIZE, 3)
            row[0] += 1
            row[1] = thread
            row[2] = first
        first, last = {{ next_chunk }}


{% include "_lib/numba_entry.py.j2" %}
def gemm({{ arguments }}):
    c = np.int64(c_address)
{% if schedule != "static" %}
    counter = new_counter()
{% endif %}
    for thread in prange(THREADS):
        work(thread, {{ "counter, " if schedule != "static" }}m, chunk, c, ldc)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], CpuKernel]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.toml").write_text(FAMILY)
    (folder / "report.py.j2").write_text(TEMPLATE)
    family = read_family(
        folder / "report.toml", (folder, data_dir("templates")), (data_dir("search_spaces"),)
    )
    programs = ProgramCache(folder / "programs")
    problem = Gemm(1, 1, 3, dtype="float64")
    return {
        (kind, threads): load_kernel(
            family,
            {"unused": 1, "schedule": kind, "threads": threads, "chunk": 0},
            problem,
            programs,
        )
        for kind, threads in (("static", 3), ("dynamic", 3), ("guided", 2), ("guided", 6))
    }


def with_chunk(kernel: CpuKernel, chunk: int) -> CpuKernel:
    """The kernel with another chunk: a compiled program takes any, whatever the space holds."""
    return CpuKernel(replace(kernel.program, runtime=(chunk,)))


def report(kernel: CpuKernel, count: int, chunk: int) -> NDArray[np.float64]:
    """How often, by whom and from which first tile on every tile was done."""
    told = np.zeros((count, 3))
    with_chunk(kernel, chunk)(np.zeros((count, 1)), np.zeros((1, 3)), told)
    return told


@settings(max_examples=150)
@given(count=st.integers(1, 300), chunk=CHUNKS, data=st.data())
def test_emitted_schedules_do_what_they_say(
    count: int, chunk: int, data: st.DataObject, kernels: Mapping[tuple[str, int], CpuKernel]
) -> None:
    kind, threads = data.draw(st.sampled_from(sorted(kernels)))
    told = report(kernels[kind, threads], count, chunk)
    schedule = ThreadSchedule(kind, chunk)
    np.testing.assert_array_equal(told[:, 0], 1, "every tile once")
    firsts = [each.start for each in schedule.chunks(count, threads) for _ in each]
    np.testing.assert_array_equal(told[:, 2], firsts, "the chunks")
    if kind == "static":
        owners = np.empty(count)
        for thread, share in enumerate(schedule.shares(count, threads)):
            for each in share:
                owners[each.start : each.stop] = thread
        np.testing.assert_array_equal(told[:, 1], owners, "who takes what")


def test_thousands_of_short_calls_from_two_threads_at_once(
    kernels: Mapping[tuple[str, int], CpuKernel],
) -> None:
    wrong: list[str] = []

    def call(kernel: CpuKernel) -> None:
        told = np.zeros((37, 3))
        a, b = np.zeros((37, 1)), np.zeros((1, 3))
        for number in range(1, 1001):
            kernel(a, b, told)
            if not (told[:, 0] == number).all():
                wrong.append(f"{kernel.program.path.name}, call {number}")
                return

    for name in (("dynamic", 3), ("guided", 6)):
        kernel = with_chunk(kernels[name], 2)
        callers = [threading.Thread(target=call, args=(kernel,)) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


ON_A_LAYER = """
import sys
import numpy as np
from pathlib import Path
from autotune.families.modules import load_module
import numba
for path in sys.argv[1:]:
    entry = load_module(Path(path)).gemm
    for count in (1, 2, 5, 64, 1000) * 20:
        told = np.zeros((count, 3))
        entry(count, 1, 3, 1.0, 0, 1, 0, 3, 0.0, told.ctypes.data, 3, 2)
        assert (told[:, 0] == 1).all(), (path, count)
print(numba.threading_layer())
"""


@pytest.mark.parametrize("layer", ["omp", pytest.param("workqueue", marks=pytest.mark.thorough)])
def test_schedules_hold_on_every_threading_layer(
    layer: str, kernels: Mapping[tuple[str, int], CpuKernel]
) -> None:
    paths = [str(kernel.program.path) for kernel in kernels.values()]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_LAYER, *paths],
        env=os.environ | {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "5"},
        capture_output=True,
        text=True,
    )
    if "No threading layer could be loaded" in done.stderr:
        pytest.skip(f"Numba has no {layer} here")
    assert (done.returncode, done.stdout) == (0, f"{layer}\n"), done.stderr


SCRIPT = """
import importlib.util, os, sys, threading

spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(spec)
sys.modules["emitted"] = emitted
spec.loader.exec_module(emitted)
keep_apart, this_processor = emitted.keep_apart, emitted.this_processor

@emitted.njit
def called_here():
    keep_apart(0, this_processor())  # no thread is number 0: somebody else called

every = os.sched_getaffinity(0)
said = []

def in_thread():
    os.sched_setaffinity(0, every)
    called_here()
    said.append(len(os.sched_getaffinity(0)) - len(every))

def run():
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()

run()
os.sched_setaffinity(0, {min(every)})  # of the first thread, whose processors the others are told
run()
print(said)
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two processors",
)
def test_a_thread_leaves_one_processor_of_those_that_all_may_use(tmp_path: Path) -> None:
    family = load_families(target="cpu")["unpacked"]
    limits = read_cpu().limits
    configuration = family.default(Gemm(512, 512, 512), limits)
    source = render(family, {**configuration, "threads": 2}, dtype="float32")
    path = ProgramCache(tmp_path).write(source, family.name)
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert finished.stdout == "[-1, 0]\n", finished.stderr
