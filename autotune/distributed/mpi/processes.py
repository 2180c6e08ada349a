"""Processes of this node as /proc shows them: ranks that an mpiexec started, and their segments.

MPI is not asked: ranks may be killed, stopped, or not started yet.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
SIZE_NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
NODE_NAMES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""Environment variables of MPICH, Intel MPI and Open MPI with a process's rank, the number of
ranks, and the number of those on its node."""

SEGMENTS = "/dev/shm"
PREFIXES = ("mpich_shm_", "mpich_shar_tmp")
"""MPICH's names for the segments of its ranks and their windows. It unlinks windows when it has
made them, but the segment of a node only when MPI ends, which ranks that are killed do not see."""

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
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return Process(pid, int(fields[1]), fields[0])
    except (OSError, IndexError, ValueError):
        return None


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
