"""Who runs a trial: enough to tell whether that process is still there."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, identified beyond the reuse of its number.

    Attributes:
        host: the host's name.
        boot: identity of the host's running system; empty where the platform does not tell.
        namespace: the process-number namespace (containers have their own); may be empty.
        pid: process number.
        start: when the process started, in clock ticks since boot; 0 where not known.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls(socket.gethostname(), *_system(), os.getpid(), _start(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `str` wrote; None when it is something else."""
        parts = text.rsplit(":", 4)
        if len(parts) != 5 or not parts[3].isdecimal() or not parts[4].isdecimal():
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))

    def __str__(self) -> str:
        return f"{self.host}:{self.boot}:{self.namespace}:{self.pid}:{self.start}"

    def alive(self) -> bool | None:
        """Whether the process is running; None when it cannot be seen from here."""
        if self.host != socket.gethostname():
            return None
        boot, namespace = _system()
        if self.boot != boot:
            return False
        if self.namespace != namespace:
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists and belongs to somebody else
        return _start(self.pid) == self.start


@cache
def _system() -> tuple[str, str]:
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return boot, namespace


def _start(pid: int) -> int:
    """The process's start in clock ticks since boot; -1 when it has ended and is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The second field is the program's name in parentheses and may hold spaces and parentheses;
    # the third is the state, the twenty-second the start.
    fields = text.rpartition(")")[2].split()
    return -1 if fields[0] == "Z" else int(fields[19])
