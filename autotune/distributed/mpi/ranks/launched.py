"""Processes of this node as /proc shows them: what an mpiexec started, without asking MPI."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
SIZE_NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
NODE_NAMES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""Where MPICH, Intel MPI and Open MPI tell a process its rank, how many ranks there are, and how
many of them are on its node."""


def told(names: tuple[str, ...], variables: Mapping[str, str]) -> int | None:
    """The number in the first of these environment variables; None where there is none."""
    for name in names:
        with contextlib.suppress(ValueError):
            return int(variables.get(name, ""))
    return None


@dataclass(frozen=True, slots=True)
class Process:
    """A process.

    Attributes:
        pid: its number.
        parent: its parent's.
        state: one letter: "T" is stopped by a signal, "Z" has ended.
    """

    pid: int
    parent: int
    state: str


def processes() -> dict[int, Process]:
    """All processes of this machine that can be seen; none without /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        process = process_of(int(path.parent.name))
        if process is not None:
            found[process.pid] = process
    return found


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
    for each in found:
        found += [child for child in among.values() if child.parent == each.pid]
    return found


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank on this node.

    Attributes:
        rank: its number.
        stopped: whether a process of it is stopped by a signal.
        command: what it runs.
        commands: what it and its children run.
    """

    rank: int
    stopped: bool
    command: str
    commands: tuple[str, ...]


def local_ranks(pid: int) -> dict[int, LocalRank]:
    """The ranks on this node that one mpiexec has started and that have not ended, by number.

    There are none where what started them is not to be seen, from within a container, say.

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
        members = [each for each in descendants(process.pid, among) if each.state != "Z"]
        if process.state == "Z" or not members:
            continue
        commands = tuple(_command(each.pid) for each in members)
        stopped = any(each.state == "T" for each in members)
        found[rank] = LocalRank(rank, stopped, commands[0], commands)
    return found


def _tops(launcher: int, among: Mapping[int, Process]) -> Iterator[tuple[int, Process]]:
    """What a launcher started as ranks, itself or by other launchers."""
    for process in among.values():
        if process.parent == launcher:
            rank = _rank(process.pid)
            if rank is None:
                yield from _tops(process.pid, among)
            else:
                yield rank, process


def _rank(pid: int) -> int | None:
    """Which rank a process is of; None where it is of none, or not the user's own."""
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        pairs = (os.fsdecode(entry).partition("=") for entry in entries)
        return told(RANK_NAMES, {name: value for name, _, value in pairs})
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return shlex.join(word.decode(errors="replace") for word in words if word)
    return ""
