"""The mpiexec that is here, and processes of this node as /proc shows them.

MPI is not asked: ranks may be killed, stopped, or not started yet. `patience_s` is the time that
ranks wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError, InputError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.core.interpreter import python
from autotune.core.processors import status_of
from autotune.measuring.processes import START_TIMEOUT_S

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

VARIABLE = "AUTOTUNE_MPI_TIMEOUT"
"""Environment variable with the seconds that ranks wait for each other."""

DEFAULT_S = 60.0

MOST_S = 1e9
"""Seconds that the system's clocks can count from now on, and more than anybody waits."""


def patience_s(default_s: float = DEFAULT_S) -> float:
    """Seconds to wait for other ranks: those of the environment variable, or the default.

    Raises:
        InputError: the variable is not a positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MOST_S:
        raise InputError(
            f"{VARIABLE} must be the seconds that ranks wait for each other, got {text!r}: give a "
            f"positive number, at most {MOST_S:g}, or unset it for {default_s:g}"
        )
    return seconds


def is_set() -> bool:
    """Tell whether somebody has said how long to wait."""
    return bool(os.environ.get(VARIABLE))


class OwnTime:
    """Seconds that this process has been running, as far as it looked.

    Time between two looks counts as `most_s` at most: a process that was stopped, or a machine
    that slept, has not been waiting meanwhile.

    Attributes:
        seconds: the sum so far.
    """

    def __init__(self, most_s: float = 1.0) -> None:
        self.seconds = 0.0
        self._most_s = most_s
        self._last = time.monotonic()

    def look(self) -> float:
        """Count the time since the last look; the sum."""
        now = time.monotonic()
        self.seconds += min(now - self._last, self._most_s)
        self._last = now
        return self.seconds


RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
SIZE_NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
NODE_NAMES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""Environment variables of MPICH, Intel MPI and Open MPI with a process's rank, the number of
ranks, and the number of those on its node."""

SEGMENTS = "/dev/shm"
PREFIXES = ("mpich_shm_", "mpich_shar_tmp")
"""MPICH's names for the segments of its ranks and their windows. It unlinks windows when it has
made them, but the segment of a node only when MPI ends, which ranks that are killed do not see."""

_READ_S = 5.0
"""Seconds that an mpiexec on a loaded machine may take to read a line."""

OLD_S = 60.0
"""A segment that no process has mapped is somebody's who is just starting, unless it is so old."""


def number_in(names: tuple[str, ...], variables: Mapping[str, str]) -> int | None:
    """The number in the first of these environment variables; None where there is none."""
    for name in names:
        with contextlib.suppress(ValueError):
            return int(variables.get(name, ""))
    return None


def named_ranks(ranks: list[int]) -> str:
    """Ranks by number, the first few of many."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:8]))}{more}"


def say_last(line: str) -> None:
    """Print a line to standard error before ranks are killed, and wait until it has been read.

    MPICH's mpiexec reads no more of the pipes of ranks once one of them has aborted.
    """
    print(line, file=sys.stderr, flush=True)
    end = time.monotonic() + _READ_S
    with contextlib.suppress(OSError, ValueError):  # a standard error that is no file
        while _unread(sys.stderr.fileno()) and time.monotonic() < end:
            time.sleep(0.01)


def _unread(number: int) -> int:
    """Bytes in a pipe; 0 of whatever else a file is."""
    if not stat.S_ISFIFO(os.fstat(number).st_mode):
        return 0
    found = fcntl.ioctl(number, termios.FIONREAD, bytes(4))
    return int.from_bytes(found, sys.byteorder)


@dataclass(frozen=True, slots=True)
class Process:
    """A process; its state is one letter: "T" is stopped by a signal, "Z" has ended."""

    pid: int
    parent: int
    state: str


def processes() -> dict[int, Process]:
    """All processes of this machine that can be seen; none without /proc."""
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return {pid: process for pid in pids if (process := process_of(pid)) is not None}


def process_of(pid: int) -> Process | None:
    """One process; None where there is none any more."""
    status = status_of(Path(f"/proc/{pid}"))
    return Process(pid, int(status[1]), status[0]) if status else None


def descendants(pid: int, among: Mapping[int, Process]) -> list[Process]:
    """A process and all that descend from it, parents first."""
    found = [among[pid]] if pid in among else []
    for process in found:
        found += [child for child in among.values() if child.parent == process.pid]
    return found


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank on this node.

    Attributes:
        rank: its number.
        stopped: a process of it is stopped by a signal.
        command: its command.
        commands: that, and its children's.
    """

    rank: int
    stopped: bool
    command: str
    commands: tuple[str, ...]


def local_ranks(pid: int) -> dict[int, LocalRank]:
    """The ranks on this node that one mpiexec has started and that have not ended, by number.

    There are none where their launcher is not to be seen, from within a container, say.

    Args:
        pid: a process of one of them.
    """
    among = processes()
    # The launcher is the nearest ancestor that is not of a rank itself: a rank may be a script
    # that starts Python.
    top = pid
    while top in among and _rank(among[top].parent) is not None:
        top = among[top].parent
    if top not in among or among[top].parent not in among or among[top].parent == 1:
        return {}
    found = {}
    for rank, process in _tops(among[top].parent, among):
        members = [one for one in descendants(process.pid, among) if one.state != "Z"]
        if process.state == "Z" or not members:
            continue
        commands = tuple(_command(member.pid) for member in members)
        stopped = any(member.state == "T" for member in members)
        found[rank] = LocalRank(rank, stopped, commands[0], commands)
    return found


def _tops(launcher: int, among: Mapping[int, Process]) -> Iterator[tuple[int, Process]]:
    """The ranks that a launcher started, itself or by other launchers."""
    for process in among.values():
        if process.parent == launcher:
            rank = _rank(process.pid)
            if rank is None:
                yield from _tops(process.pid, among)
            else:
                yield rank, process


def _rank(pid: int) -> int | None:
    """The rank that a process is of; None where it is of none, or not the user's own."""
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        pairs = (os.fsdecode(entry).partition("=") for entry in entries)
        return number_in(RANK_NAMES, {name: value for name, _, value in pairs})
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return shlex.join(word.decode(errors="replace") for word in words if word)
    return ""


def mapped_files(process: int | str) -> set[str]:
    """Paths of the files that a process has mapped, whatever bytes their names consist of.

    Raises:
        OSError: there is no such process, or it is somebody else's.
    """
    maps = Path(f"/proc/{process}/maps").read_text("utf-8", "surrogateescape")
    return {line.split(maxsplit=5)[-1] for line in maps.split("\n") if "/" in line}


def mapped(processes: Iterable[int | str]) -> set[Path]:
    """The segments of MPI that processes have mapped, of those that still have a name."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for path in map(Path, mapped_files(process)):
                if path.parent == Path(SEGMENTS) and path.name.startswith(PREFIXES):
                    found.add(path)
    return {path for path in found if path.exists()}


def unlink(segments: Iterable[Path]) -> None:
    """Remove segments' names; another rank may have removed them before."""
    for segment in segments:
        with contextlib.suppress(OSError):
            segment.unlink()


def unlink_segments(comm: Intracomm) -> None:
    """Take the names of MPI's segments away, on all ranks: all of them have them mapped."""
    comm.Barrier()
    unlink(mapped(["self"]))


def sweep() -> None:
    """Remove the user's segments that no process has mapped: of ranks killed at their start."""
    old = set()
    for path in Path(SEGMENTS).glob("mpich_*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_old = time.time() - status.st_mtime > OLD_S
            if is_old and status.st_uid == os.getuid() and path.name.startswith(PREFIXES):
                old.add(path)
    if old:
        unlink(old - mapped(path.name for path in Path("/proc").glob("[0-9]*")))


def find_mpiexec() -> Path:
    """The mpiexec beside the interpreter, where pip installs it, or on the path.

    Raises:
        MissingDependencyError: there is none, or no mpi4py.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependencyError(
            f"target mpi needs mpi4py: {install_hint('mpi')}", name="mpi4py"
        )
    beside = [str(Path(sys.executable).parent)] if sys.executable else []
    places = os.pathsep.join([*beside, os.environ.get("PATH", "")])
    found = shutil.which("mpiexec", path=places)
    if found is None:
        raise MissingDependencyError(
            f"target mpi needs mpiexec: {install_hint('mpi')}, or put one on the path"
        )
    return Path(found)


def launch_command(mpiexec: Path, ranks: int) -> list[str]:
    """The mpiexec command that starts so many ranks here.

    Open MPI wants to be told that more ranks than cores, and root, are meant.

    Raises:
        AutotuneError: mpiexec does not print its version.
    """
    command = [str(mpiexec), "-n", str(ranks)]
    asked = [str(mpiexec), "--version"]
    limit_s = patience_s(START_TIMEOUT_S)
    try:
        version = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=limit_s
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AutotuneError(
            f"{mpiexec} does not work ({error}): put another one on the path"
        ) from error
    if "Open MPI" in version or "OpenRTE" in version:
        command[1:1] = ["--oversubscribe", "--allow-run-as-root"]
    return command


def ask_apart(code: str, failure: str, remedy: str = "", limit_s: float | None = None) -> str:
    """The output of Python code that imports mpi4py, in a process of its own.

    Importing mpi4py starts MPI, which a program does once, if at all, and as it likes.

    Args:
        code: the program.
        failure: the message where it fails, before the last line of its output.
        remedy: stands after that.
        limit_s: seconds that it may take.

    Raises:
        MissingDependencyError: it fails or takes too long.
    """
    try:
        asked = subprocess.run(
            python(code), capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise MissingDependencyError(
            f"MPI does not start within {limit_s:g} s: see what `python -c 'import mpi4py.MPI'` "
            "does",
            name="mpi4py",
        ) from None
    if asked.returncode:
        last = asked.stderr.strip().rpartition("\n")[2]
        raise MissingDependencyError(f"{failure} ({last[:200]}){remedy}", name="mpi4py")
    return asked.stdout


def parse_library(text: str) -> tuple[str, str, str]:
    """Name, version and transport from the text of ``MPI_Get_library_version``.

    MPICH calls the transport its device; others do not say, and it is empty.
    """
    first = text.strip().splitlines()[0] if text.strip() else ""
    known = re.match(r"(MPICH|Open MPI|Intel\(R\) MPI)\D*([\d.]+)", first)
    name, version = (known[1], known[2]) if known else (first.split(",")[0] or "unknown", "")
    device = re.search(r"^MPICH Device:\s*(.+)$", text, re.MULTILINE)
    return name, version.strip("."), device[1].strip() if device else ""
