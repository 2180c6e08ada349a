"""Compiling while a program goes on: what computes meanwhile, and what becomes of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuned_suspect import PROBLEM, store, tuned

from autotune.core.configuration import Configuration
from autotune.core.errors import CompileError, InputError
from autotune.core.paths import CacheLocations
from autotune.cpu.call import host_kernel
from autotune.cpu.identity import read_cpu
from autotune.cpu.target import CpuTarget
from autotune.families import modules
from autotune.families.program_cache import ProgramCache
from autotune.gpu.launch import code as code_module
from autotune.gpu.launch.code import make_program
from autotune.gpu.nvidia import nvrtc
from autotune.gpu.nvidia.cubin import read_cubin
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.measuring.processes import MARK
from autotune.model import TERMS, Entry, Portfolio
from autotune.operations.problem import Gemm
from autotune.runtime.loading import Kernel, load
from autotune.serving import background as background_module
from autotune.serving.background import Background, Job, Workers, background, is_wanted
from autotune.store import MatchQuality, TuningCache
from autotune.targets.families import load_families

pytestmark = pytest.mark.cold

PATIENCE_S = 120.0


def eventually(met: Callable[[], object]) -> bool:
    """Whether something comes to hold; how long that takes is no part of any test."""
    until = time.monotonic() + PATIENCE_S
    while not met():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has jobs of its own, and no thread of it goes on."""
    monkeypatch.setattr(background_module, "IDLE_S", 0.05)
    monkeypatch.setattr(background_module, "_background", Background())
    yield
    assert eventually(lambda: background()._thread is None)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "1")


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that import emitted modules."""
    threads: list[str] = []
    real = modules._import

    def noting(path: Path) -> Any:
        threads.append(threading.current_thread().name)
        return real(path)

    monkeypatch.setattr(modules, "_import", noting)
    return threads


def near(folder: Path, problem: Gemm = PROBLEM, **options: Any) -> Kernel:
    return load(problem, "cpu", match="nearest", extra_families=[folder], **options)


def is_right(kernel: Kernel) -> bool:
    m, n, k = kernel.problem.shape
    a, b = np.full((m, n), 2, "f4"), np.full((n, k), 3, "f4")
    return bool((kernel(a, b) == 6 * n).all())


# --- kernels ---


@pytest.mark.usefixtures("on")
def test_the_library_computes_until_the_kernel_is_there(
    tmp_path: Path, imports: list[str]
) -> None:
    store(tmp_path)
    kernel = near(tmp_path)
    assert kernel.reason == (
        "suspect for float32 is being compiled: the library of its operands computes meanwhile"
    )
    assert is_right(kernel)
    assert "MainThread" not in imports
    assert eventually(lambda: kernel.reason == "")
    assert is_right(kernel)
    # Further sizes find it, and wait for nothing.
    other = near(tmp_path, Gemm(11, 8, 4))
    assert other.reason == "tuned for 16x8x4"
    assert is_right(other)
    assert "MainThread" not in imports


@pytest.mark.thorough
@pytest.mark.usefixtures("on")
def test_what_is_on_disk_is_not_compiled(tmp_path: Path) -> None:
    store(tmp_path)
    script = (
        "import sys; from pathlib import Path; from autotune import Gemm, load\n"
        "kernel = load(Gemm(16, 8, 4), 'cpu', match='nearest', extra_families=[Path(sys.argv[1])],"
        " background=sys.argv[2] == 'True')\n"
        "from autotune.serving.background import background\n"
        "print(kernel.reason, background()._thread)"
    )
    for asked in ("False", "True"):
        command = [sys.executable, "-c", script, str(tmp_path), asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == " None\n", done.stderr


@pytest.mark.parametrize(
    "way", ["argument", pytest.param("variable", marks=pytest.mark.thorough), "exact"]
)
def test_it_compiles_at_once_where_that_is_asked_for(
    tmp_path: Path, imports: list[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "0" if way == "variable" else "1")
    store(tmp_path)
    if way == "exact":
        kernel = load(PROBLEM, "cpu", extra_families=[tmp_path])
    else:
        kernel = near(tmp_path, background=False if way == "argument" else None)
    assert kernel.reason == ""
    assert "MainThread" in imports
    assert background()._thread is None
    assert is_right(kernel)


def test_where_no_thread_can_be_started_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, [3]

    def full(thread: threading.Thread) -> None:
        if thread.name == "autotune-background" and refused[0]:
            refused[0] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    told: list[str] = []
    done: list[str] = []
    job = Job("key", "a kernel", lambda workers: done.append("done"))
    for _ in range(3):
        assert not background().submit(job, told.append)
        assert not background().has("key")
        assert not background().busy
    assert background().submit(job, told.append)
    assert eventually(lambda: told == [""])
    assert done == ["done"]
    assert [each.message for each in caplog.records] == [
        "nothing is compiled in the background for now: can't start new thread"
    ]


@pytest.mark.usefixtures("on")
def test_a_call_has_compiled_what_could_not_be_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path)
    start, refused = threading.Thread.start, [1]

    def full(thread: threading.Thread) -> None:
        if thread.name == "autotune-background" and refused and refused.pop():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    kernel = near(tmp_path)
    assert "being compiled" in kernel.reason
    assert background()._thread is None
    assert is_right(kernel)
    assert eventually(lambda: kernel.reason == "")
    assert is_right(kernel)


def test_the_variable_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_BACKGROUND")
    assert is_wanted(None)
    assert not is_wanted(False)
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "off")
    with pytest.raises(InputError, match="AUTOTUNE_BACKGROUND must be 0 or 1, got 'off'"):
        is_wanted(None)
    assert is_wanted(True)


@pytest.mark.usefixtures("on")
def test_what_does_not_compile_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path, tuned(tmp_path, fault="does_not_compile"))
    kernel = near(tmp_path)
    assert eventually(lambda: "cannot be used" in kernel.reason)
    assert "no_such_attribute" in kernel.reason
    assert "the library of its operands computes" in kernel.reason
    assert is_right(kernel)
    again = near(tmp_path, Gemm(10, 8, 4))
    assert "cannot be used" in again.reason
    assert again.reason.endswith("tuned for 16x8x4")
    assert is_right(again)
    told = [each for each in caplog.records if "not tried again" in each.getMessage()]
    assert len(told) == 1


@pytest.mark.usefixtures("on")
def test_threads_share_one_compilation(tmp_path: Path) -> None:
    store(tmp_path)
    kernels: list[Kernel] = []
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        ready.wait()
        kernels.append(near(tmp_path, Gemm(10 + number // 2, 8, 4)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kernels) == 6
    assert all(map(is_right, kernels))
    assert eventually(lambda: all(each.reason == "tuned for 16x8x4" for each in kernels))
    assert all(map(is_right, kernels))


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("on")
def test_a_child_by_fork_compiles_for_itself(tmp_path: Path) -> None:
    store(tmp_path)
    kernel = near(tmp_path)
    assert "being compiled" in kernel.reason
    child = os.fork()
    if child == 0:
        right = is_right(kernel)  # which begins it
        right &= eventually(lambda: kernel.reason == "")
        os._exit(0 if right and is_right(kernel) else 1)
    assert eventually(lambda: kernel.reason == "")
    assert is_right(kernel)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


EXIT = """
import os, sys, time
from pathlib import Path
from autotune import Gemm, load
kernel = load(Gemm(16, 8, 4), "cpu", match="nearest", extra_families=[Path(sys.argv[1])])
assert "being compiled" in kernel.reason
children = Path("/proc/self/task")
while not any((task / "children").read_text() for task in children.iterdir()):
    time.sleep(0.01)
print(os.getpid())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
@pytest.mark.usefixtures("on")
def test_a_program_ends_while_something_is_compiled(tmp_path: Path) -> None:
    store(tmp_path, tuned(tmp_path, fault="compiles_forever"))
    command = [sys.executable, "-c", EXIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    assert eventually(lambda: not workers_of(int(done.stdout)))


def workers_of(process: int) -> list[str]:
    """The worker processes that a process has started, as the kernel shows them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={process}-".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("on")
def test_what_is_half_compiled_is_waited_for_by_nobody(tmp_path: Path, imports: list[str]) -> None:
    """Other values of what is passed at the call are the same program, which is under way."""
    store(tmp_path, *(tuned(tmp_path, Gemm(16, 8, step), step=step) for step in (1, 2, 3)))
    first = near(tmp_path, Gemm(16, 8, 1))
    others = []
    while first.reason:
        others += [near(tmp_path, Gemm(16, 8, step)) for step in (2, 3)]
        assert all(map(is_right, others[-2:]))
        time.sleep(0.01)
    assert "MainThread" not in imports
    assert eventually(lambda: not any(each.reason for each in others))
    assert all(map(is_right, others))


@pytest.mark.usefixtures("on")
@pytest.mark.slow
def test_the_library_computes_meanwhile_though_another_program_is_here() -> None:
    family, device = load_families(target="cpu")["goto"], read_cpu()
    problem = Gemm(200, 200, 200, threads=1)
    default = family.default(problem, CpuTarget().device(problem).limits)
    slow, fast = (Configuration({**default, "ty": ty}) for ty in (8, default["ty"]))
    entries = tuple(
        Entry(
            family="goto",
            family_digest=family.digest,
            layout="nn",
            configuration=configuration,
            free=(),
            calls=(),
            resident=1.0,
            prices=tuple(price for _ in TERMS),
            spread=0.1,
            measured=9,
        )
        for configuration, price in ((slow, 2e-9), (fast, 1e-9))
    )
    portfolio = Portfolio(
        operation="gemm",
        target="cpu",
        fingerprint=device.fingerprint,
        dtype="float32",
        out_dtype="float32",
        accuracy="ieee",
        threads=1,
        architecture="",
        toolchain=dict(device.toolchain),
        entries=entries,
        families={},
        shapes=9,
        loss=0.01,
        created="2026-01-31T12:00:00.000000Z",
    )
    place = CacheLocations.at().create()
    TuningCache(place.database).put_portfolio(portfolio)
    host_kernel(family, slow, problem, device.limits, ProgramCache(place.programs))
    kernel = load(problem, "cpu", match="nearest")
    assert kernel.match is MatchQuality.PREDICTED
    assert kernel.candidate.configuration == fast
    assert "is being compiled: the library of its operands computes meanwhile" in kernel.reason
    assert is_right(kernel)
    assert eventually(lambda: kernel.reason.startswith("predicted"))
    assert is_right(kernel)


def test_cuda_code_is_compiled_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    family, limits = load_families(target="cuda")["naive"], find_gpu("h200").limits
    problem = Gemm(64, 48, 80, layout="nt")
    chosen = family, family.default(problem, limits), problem, limits, ProgramCache(tmp_path)
    wanted = code_module.compile_job(*chosen)
    assert wanted is not None
    told: list[str] = []
    background().submit(wanted, told.append)
    assert told or code_module.compile_job(*chosen) is not None  # it is under way
    assert eventually(lambda: told == [""])
    assert code_module.compile_job(*chosen) is None
    # In a process that has compiled nothing it is found on disk, and nothing is rendered.
    monkeypatch.setattr(code_module, "_CODE", {})
    monkeypatch.setattr(code_module, "render", None)
    monkeypatch.setattr(nvrtc, "compile_cuda", None)
    assert code_module.compile_job(*chosen) is None
    program = make_program(*chosen)
    assert "gemm" in read_cubin(program.cubin)
    assert "transpose" in read_cubin(program.support)


@pytest.mark.usefixtures("on")
def test_kernels_whose_calls_are_counted_are_told_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_RECORD", str(tmp_path / "shapes.jsonl"))
    store(tmp_path)
    kernel = near(tmp_path)
    assert "being compiled" in kernel.reason
    assert is_right(kernel)
    assert eventually(lambda: kernel.reason == "")
    assert is_right(kernel)


# --- jobs ---


def job(key: str, compile_: Callable[[Workers], None] = lambda workers: None) -> Job:
    return Job(key, f"the job {key}", compile_)


def test_equal_jobs_are_one_and_all_are_told() -> None:
    made: list[str] = []
    told: list[tuple[int, str]] = []
    go = threading.Event()

    def slowly(workers: Workers) -> None:
        go.wait(PATIENCE_S)
        made.append("a")

    for number in range(3):
        background().submit(job("a", slowly), lambda error, n=number: told.append((n, error)))
    go.set()
    assert eventually(lambda: len(told) == 3)
    assert (made, told) == (["a"], [(0, ""), (1, ""), (2, "")])
    # What was done may be asked for again: whoever asks finds it compiled.
    background().submit(job("a", slowly), lambda error: told.append((3, error)))
    assert eventually(lambda: len(told) == 4)


def test_a_failure_is_not_tried_again_until_that_is_forgotten() -> None:
    tried: list[str] = []
    told: list[str] = []

    def fail(workers: Workers) -> None:
        tried.append("once")
        raise CompileError("it is wrong")

    for _ in range(3):
        background().submit(job("f", fail), told.append)
        assert eventually(lambda: told)
    assert eventually(lambda: len(told) == 3)
    assert (tried, told) == (["once"], ["it is wrong"] * 3)
    background().forget()
    background().submit(job("f", fail), told.append)
    assert eventually(lambda: len(tried) == 2)


def test_whatever_a_job_raises_the_next_one_is_done() -> None:
    told: list[str] = []

    def break_(workers: Workers) -> None:
        raise ZeroDivisionError("of somebody's")

    background().submit(job("broken"), told.append)
    background().submit(job("b", break_), told.append)
    background().submit(job("c"), told.append)
    assert eventually(lambda: len(told) == 3)
    assert told == ["", "ZeroDivisionError: of somebody's", ""]


def test_whatever_hears_of_a_job_the_next_one_is_done(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def break_(failure: str) -> None:
        raise ZeroDivisionError("of somebody's")

    background().submit(job("a"), break_)
    background().submit(job("a"), told.append)
    background().submit(job("b"), told.append)
    assert eventually(lambda: len(told) == 2)
    assert told == ["", ""]
    assert "what was compiled cannot be used" in caplog.text


def test_a_thread_that_has_gone_is_begun_again() -> None:
    told: list[str] = []
    for number in range(3):
        background().submit(job(str(number)), told.append)
        assert eventually(lambda: background()._thread is None)
    assert told == [""] * 3
