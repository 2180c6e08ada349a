"""The parent's side of a worker process: how it is started, how it ended, what it left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO

MARK = "AUTOTUNE_WORKER"
"""The variable by which whatever a worker started is found again, however it hides."""

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from autotune.measuring.processes import serve; serve(*map(int, sys.argv[1:4]))"
)


class Child:
    """A running child: its process, the socket to it, and what it printed."""

    def __init__(self, environment: Mapping[str, str], watched: bool) -> None:
        self.connection, theirs = Pipe(duplex=True)
        # Native code prints where it likes; none of it may reach the parent's standard output.
        # The last line is kept for `epitaph`.
        self._printed = _scratch_file()
        numbers = [str(theirs.fileno()), str(os.getpid()), str(int(watched))]
        mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *numbers, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment, MARK: mark},
                # Its own process group: killed as a whole, and spared the terminal's Ctrl-C,
                # which is for the parent to handle.
                start_new_session=True,
            )
        except BaseException:
            self.connection.close()
            self._printed.close()
            raise
        finally:
            theirs.close()  # only the child holds its end, so that its death is an end of file
        self.ready = False
        # Also for a worker that nobody closed: at the latest when the interpreter exits.
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self.process, self.connection, self._printed, mark
        )

    def end(self, grace_s: float) -> None:
        """Close the socket, which asks the child to exit; kill it when it has not in time."""
        self.connection.close()
        if grace_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        self._finalizer()

    def epitaph(self) -> str:
        """How the child ended, in one line."""
        try:
            code = self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "closed its connection and hung"
        text = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - 500))
        last = self._printed.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"{text}: {last[:200]}" if last else text


def _scratch_file() -> IO[bytes]:
    """A file without a name; in memory where that can be, as the temporary folder may be gone."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("printed", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


def _end(
    owner: int,
    process: subprocess.Popen[bytes],
    connection: Connection,
    printed: IO[bytes],
    mark: str,
) -> None:
    if os.getpid() != owner:  # a child by fork has a copy, and the worker is its parent's
        connection.close()
        printed.close()
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for left in _marked(mark):
        with contextlib.suppress(OSError):
            os.kill(left, signal.SIGKILL)
    connection.close()
    printed.close()


def _marked(mark: str) -> list[int]:
    """Processes that a worker left, also in groups and sessions of their own (Linux).

    They have inherited its environment, as the kernel keeps it.
    """
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # Those of others cannot be read, and some end meanwhile.
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
