"""A world of ranks survives whatever a candidate does, and leaves no process behind."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from mpiexec import until

from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, MissingDependencyError, OutOfTimeError
from autotune.core.measurement import Outcome
from autotune.distributed.mpi.gpu.cuda import takes_gpu_memory
from autotune.distributed.mpi.messages import MeasureNetwork, MpiProgram, Network, Refused, Setup
from autotune.distributed.mpi.processes import (
    SEGMENTS,
    find_mpiexec,
    mapped,
    mapped_files,
    sweep,
    unlink,
)
from autotune.distributed.mpi.ranks.world import World
from autotune.families.rendering import Source
from autotune.measuring.effort import Effort
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.messages import Evaluate, Evaluated
from autotune.operations.problem import Gemm

RANKS = 2
LIMIT_S = 5.0


@pytest.fixture
def world() -> Iterator[World]:
    with World(RANKS) as world:
        yield world


@pytest.fixture(scope="module")
def idle() -> Iterator[World]:
    """For tests after which its ranks are as they were."""
    with World(RANKS) as world:
        yield world


def setup(folder: Path) -> Setup:
    return Setup(Gemm(20, 30, 10, dtype="float64"), Effort(budget_s=0.01), folder, False, seed=0)


def doing(statements: str) -> Evaluate:
    """A program whose rank 1 does something instead of making a plan."""
    text = (
        "import ctypes, os, signal\n"
        "def gemm(comm, m, n, k):\n"
        "    if comm.rank == 1:\n"
        f"        {statements}\n"
        "    comm.Barrier()\n"
    )
    return Evaluate(
        MpiProgram(Source(text, "gemm", (), "mpi"), "suspect", None), "ieee", None, 0.01
    )


def family_of(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended since
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def members(world: World) -> list[int]:
    assert world.pid is not None
    found = family_of(world.pid)
    assert len(found) > RANKS
    return found


def gone(processes: list[int]) -> bool:
    return until(lambda: not any(map(alive, processes)))


def test_no_rank_spins_in_anothers_way(idle: World) -> None:
    # Idle threads of OpenBLAS look at the variable when the library is loaded.
    idle.describe()
    started = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in members(idle)]
    assert all(b"OPENBLAS_THREAD_TIMEOUT=20" in variables for variables in started)


# MPICH's mpiexec says which signal ended a rank; where its own processes on the host end first,
# as one time in forty on a busy machine, this alone.
SIGNALS, UNTOLD = ("Killed", "Segmentation fault"), "mpiexec ended with 255: [mpiexec"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("deed", "kind", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", FailureKind.DIED, "Killed"),
        ("ctypes.string_at(0)", FailureKind.DIED, "Segmentation fault"),
        ("os._exit(3)", FailureKind.DIED, "3"),
        ("raise ValueError('seven is right out')", FailureKind.DIED, "rank 1: ValueError: seven"),
        ("while True: pass", FailureKind.TIMED_OUT, "no result from 2 ranks within 1 s"),
        ("ctypes.PyDLL(None).pause()", FailureKind.TIMED_OUT, "no result from 2 ranks within 1 s"),
    ],
    ids=["killed", "segfault", "exit", "exception", "loop", "native hang"],
)
def test_a_lost_rank_costs_one_request(
    world: World, tmp_path: Path, deed: str, kind: FailureKind, told: str
) -> None:
    assert world.call(setup(tmp_path), LIMIT_S) is None
    before = members(world)
    limit_s = 1.0 if kind is FailureKind.TIMED_OUT else LIMIT_S
    reply = world.call(doing(deed), limit_s)
    assert isinstance(reply, Failure)
    assert reply.kind is kind
    assert told in reply.reason or (told in SIGNALS and UNTOLD in reply.reason)
    assert "\n" not in reply.reason
    assert gone(before)
    assert isinstance(world.call(MeasureNetwork(), LIMIT_S), Network)


# To the socket alone whose number is not small: the others are MPI's.
FORGED = (
    "[os.write(int(each), (20).to_bytes(8) + bytes(16) + b'null') "
    "for each in os.listdir('/proc/self/fd') "
    "if int(each) >= 64 and 'socket:' in os.path.realpath(f'/proc/self/fd/{each}')]"
)


def test_what_a_program_writes_to_the_socket_is_no_reply(world: World, tmp_path: Path) -> None:
    assert world.call(setup(tmp_path), LIMIT_S) is None
    request = doing(FORGED)
    program = cast("MpiProgram", request.program)
    text = program.source.text.replace("rank == 1", "rank == 0")  # which has it
    source = Source(text, "gemm", (), "mpi")
    reply = world.call(replace(request, program=replace(program, source=source)), LIMIT_S)
    assert isinstance(reply, Failure)
    assert reply.kind is FailureKind.DIED
    assert "sent what is no reply (a reply to another request" in reply.reason
    assert isinstance(world.call(MeasureNetwork(), LIMIT_S), Network)


def test_what_a_rank_says_last_is_heard_whatever_mpiexec_passes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may end with what ranks printed still unread; this one reads nothing."""
    silent = tmp_path / "mpiexec"
    silent.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec {find_mpiexec()} --version\n'
        f'exec {find_mpiexec()} "$@" > /dev/null 2>&1\n'
    )
    silent.chmod(0o700)
    monkeypatch.setattr("autotune.distributed.mpi.ranks.world.find_mpiexec", lambda: silent)
    assert world.call(setup(tmp_path), LIMIT_S) is None
    reply = world.call(doing("raise ValueError('seven is right out')"), LIMIT_S)
    assert isinstance(reply, Failure)
    assert "rank 1: ValueError: seven" in reply.reason


def test_the_end_of_a_run_costs_the_ranks_and_no_time(world: World, tmp_path: Path) -> None:
    assert world.call(setup(tmp_path), LIMIT_S) is None
    before = members(world)
    deadline = Deadline()
    previous = signal.signal(signal.SIGALRM, lambda *_: deadline.hasten(0.1, grace_s=0.0))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(OutOfTimeError):
            world.call(doing("while True: pass"), 60.0, deadline)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert gone(before)
    with pytest.raises(OutOfTimeError):
        world.call(MeasureNetwork(), LIMIT_S, deadline)  # nor are others started
    assert isinstance(world.call(MeasureNetwork(), LIMIT_S), Network)


def test_a_program_that_does_not_import_costs_no_rank(idle: World, tmp_path: Path) -> None:
    idle.call(setup(tmp_path), LIMIT_S)
    before = members(idle)
    broken = MpiProgram(Source("import nowhere_to_be_found", "gemm", (), "mpi"), "broken", None)
    reply = idle.call(Evaluate(broken, "ieee", None, 0.01), LIMIT_S)
    assert isinstance(reply, Evaluated)
    assert reply.measurement.outcome is Outcome.COMPILE_FAILED
    assert "nowhere_to_be_found" in reply.measurement.reason
    assert members(idle) == before


def test_the_ranks_outlive_requests_and_end_with_the_world(tmp_path: Path) -> None:
    with World(RANKS) as world:
        described = world.describe()
        assert (described.ranks, described.nodes) == (RANKS, 1)
        assert described.library
        before = members(world)
        assert isinstance(world.call(doing("pass"), LIMIT_S), Refused)
        assert world.call(setup(tmp_path), LIMIT_S) is None
        assert members(world) == before
    assert gone(before)
    assert world.pid is None


def test_idle_ranks_sleep(idle: World) -> None:
    idle.describe()

    def asleep(pid: int) -> bool:
        # Who polls without a pause runs, or waits for a core to run on, whenever one looks.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    assert until(lambda: all(map(asleep, members(idle))))


@pytest.mark.thorough
def test_no_rank_outlives_a_parent_that_is_killed_at_their_start(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from autotune.distributed.mpi.ranks import world\n"
        "world.find_mpiexec = lambda: Path(sys.argv[1])\n"
        "world.World(2).describe()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(starter(tmp_path, "-STOP"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with parent:
        stopped = tmp_path / "started"
        assert until(lambda: stopped.exists() and stopped.read_text().endswith("\n"))
        ranks = family_of(parent.pid)
        parent.send_signal(signal.SIGKILL)
    assert gone([*ranks, int(stopped.read_text())])


def test_no_rank_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from test_world import World, doing, setup\n"
        "world = World(2)\n"
        "world.call(setup(Path(sys.argv[1])), 20)\n"
        "print(world.pid, flush=True)\n"
        "world.call(doing('ctypes.PyDLL(None).pause()'), 60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        ranks = family_of(int(parent.stdout.readline()))
        assert len(ranks) > RANKS
        parent.send_signal(signal.SIGKILL)
    assert gone(ranks)


@pytest.mark.parametrize("deed", ["-KILL", "-STOP"])
def test_a_rank_that_is_lost_at_the_start_is_started_again(
    deed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, that is: not where a rank is lost every time."""
    lost = starter(tmp_path, deed)
    monkeypatch.setattr("autotune.distributed.mpi.ranks.world.find_mpiexec", lambda: lost)
    if deed == "-STOP":
        monkeypatch.setenv("AUTOTUNE_MPI_TIMEOUT", "1")
    told = (
        f"(Killed|{re.escape(UNTOLD)})"
        if deed == "-KILL"
        else "within 1 s: see whether one is stopped"
    )
    with World(RANKS) as world, pytest.raises(AutotuneError, match=f"ranks did not start.*{told}"):
        world.describe()
    started = list(map(int, (tmp_path / "started").read_text().split()))
    assert len(started) == 2
    assert gone(started)

    if deed == "-KILL":  # who waits for one that is stopped does so for minutes
        (tmp_path / "started").unlink()
        monkeypatch.setenv("LOSE_ONCE", "1")
        with World(RANKS) as world:
            assert world.describe().ranks == RANKS


def starter(folder: Path, deed: str) -> Path:
    """An mpiexec whose rank 1 sends itself a signal at its start, every time or only once."""
    path = folder / "mpiexec"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec {find_mpiexec()} --version\n'
        "shift 2\n"
        f'exec {find_mpiexec()} -n 1 "$@" : -n 1 sh -c \''
        f"d={folder}/started; again=$(cat $d 2>/dev/null); echo $$ >> $d; "
        f'[ "$LOSE_ONCE" ] && [ "$again" ] || kill {deed} $$; '
        'exec "$0" "$@"\' "$@"\n'
    )
    path.chmod(0o700)
    return path


@pytest.mark.parametrize("deed", ["", pytest.param("-STOP", marks=pytest.mark.thorough)])
def test_a_lost_mpiexec_costs_one_request(world: World, tmp_path: Path, deed: str) -> None:
    assert world.call(setup(tmp_path), LIMIT_S) is None
    before = members(world)
    assert world.pid is not None
    if deed:
        os.kill(before[-1], signal.SIGSTOP)
    os.kill(world.pid, signal.SIGKILL)
    reply = world.call(doing("pass"), LIMIT_S)
    assert isinstance(reply, (Failure, Refused))
    assert gone(before)
    assert isinstance(world.call(MeasureNetwork(), LIMIT_S), Network)


def test_started_ranks_have_left_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file that would outlive ranks, or the process that tunes, were they killed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with World(RANKS) as world:
        world.describe()
        assert list(tmp_path.iterdir()) == []
        assert mapped(members(world)) == set()
        assert any("mpich_shm_" in maps(pid) for pid in members(world))


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_files_may_have_names_that_are_no_text(tmp_path: Path) -> None:
    segment = Path(SEGMENTS) / f"mpich_shm_test_{os.getpid()}_beside"
    odd, plain = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / "with a space"
    with contextlib.ExitStack() as opened:
        opened.callback(unlink, [segment])
        for path in (odd, plain, segment):
            path.write_bytes(b"\0" * 4096)
            file = opened.enter_context(path.open("r+b"))
            opened.enter_context(mmap.mmap(file.fileno(), 0))
        assert {str(odd), str(plain), str(segment)} <= mapped_files("self")
        assert segment in mapped(["self"])
        assert isinstance(takes_gpu_memory(), bool)


def test_segments_of_ranks_killed_at_their_start_are_swept() -> None:
    name = f"mpich_shm_test_{os.getpid()}_"
    unused, young, used, foreign = (Path(SEGMENTS) / each for each in (
        f"{name}unused", f"{name}young", f"{name}used", f"not_{name}",
    ))  # fmt: skip
    try:
        for path in (unused, young, used, foreign):
            path.write_bytes(b"\0" * 4096)
        for path in (unused, used, foreign):
            os.utime(path, (0, 0))
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            os.utime(used, (0, 0))
            sweep()
            assert not unused.exists()
            assert young.exists()
            assert used.exists()
            assert foreign.exists()
        sweep()
        assert not used.exists()
    finally:
        unlink([unused, young, used, foreign])


def test_a_missing_mpiexec_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MissingDependencyError, match="needs mpiexec: pip install"):
        find_mpiexec()


def test_ranks_that_do_not_start_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "mpiexec"
    broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 4\n")
    broken.chmod(0o700)
    monkeypatch.setattr("autotune.distributed.mpi.ranks.world.find_mpiexec", lambda: broken)
    with pytest.raises(AutotuneError, match=r"did not start: .*4: out of luck"):
        World(RANKS).describe()
