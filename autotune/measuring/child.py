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
from pathlib import Path
from typing import IO

from autotune.core.errors import WorkerError
from autotune.core.interpreter import python
from autotune.measuring.channel import Channel

MARK = "AUTOTUNE_WORKER"
"""The variable by which whatever a worker started is found again, however it hides."""

RENEW_ANSWERS = 64
"""Answers after which a child that may be replaced is."""

RENEW_BYTES = 256 << 20
"""Bytes by which it may have grown before."""

_BOOT = "from autotune.measuring.processes import serve; serve(*map(int, sys.argv[1:]))"


class Child:
    """A running child: its process, the channel to it, and what it printed.

    Args:
        environment: variables to set on top of the inherited ones.
        watched: whether a request may not change the process.
        patience_s: seconds that the child may take to read what it is sent.

    Raises:
        WorkerError: no process can be started.

    Attributes:
        channel: to ask it.
        ready: whether it has started, as far as is known.
        answered: requests that it has answered.
    """

    def __init__(self, environment: Mapping[str, str], watched: bool, patience_s: float) -> None:
        mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as opened:
            try:
                self.channel, theirs = Channel.pair(patience_s)
                opened.callback(self.channel.close)
                with theirs:  # only the child holds its end: its death is an end of file
                    # Native code prints where it likes; none of it may reach the parent's
                    # standard output. The last line is kept for `epitaph`.
                    self._printed = opened.enter_context(_scratch_file())
                    self.process = subprocess.Popen(
                        python(_BOOT, *map(str, (theirs.fileno(), os.getpid(), int(watched)))),
                        stdin=subprocess.DEVNULL,
                        stdout=self._printed,
                        stderr=self._printed,
                        pass_fds=[theirs.fileno()],
                        env={**os.environ, **environment, MARK: mark},
                        # Its own process group: killed as a whole, and spared the terminal's
                        # Ctrl-C, which is for the parent to handle.
                        start_new_session=True,
                    )
            except OSError as error:
                raise WorkerError(
                    f"a worker process cannot be started: {error}: see the limits of open files "
                    "and of processes (ulimit -n, ulimit -u), and sys.executable"
                ) from error
            opened.pop_all()
        self.ready = False
        self.answered = 0
        self._begun_bytes = 0
        # Also for a worker that nobody closed: at the latest when the interpreter exits.
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self.process, self.channel, self._printed, mark
        )

    def end(self, grace_s: float) -> None:
        """Close the channel, which asks the child to exit; kill it when it has not in time."""
        self.channel.close()
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

    @property
    def innocent(self) -> bool:
        """Whether the death of this child may be the doing of others than its last request.

        What it answered before may have left damage behind, and who kills is not the child.
        """
        return self.answered > 0 or self.process.poll() == -signal.SIGKILL

    def note_answer(self) -> None:
        """Count an answer, and see how large the child is by the first."""
        if not self.answered:
            self._begun_bytes = _resident_bytes(self.process.pid)
        self.answered += 1

    @property
    def has_grown(self) -> bool:
        """Whether it has answered so much, or grown so much since, that another serves better."""
        if self.answered < 2:
            return False
        grown = _resident_bytes(self.process.pid) - self._begun_bytes
        return self.answered >= RENEW_ANSWERS or grown > RENEW_BYTES


def _scratch_file() -> IO[bytes]:
    """A file without a name; in memory where that can be, as the temporary folder may be gone."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("printed", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


def _end(
    owner: int,
    process: subprocess.Popen[bytes],
    channel: Channel,
    printed: IO[bytes],
    mark: str,
) -> None:
    if os.getpid() != owner:  # a child by fork has a copy, and the worker is its parent's
        channel.close()
        printed.close()
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for left in _marked(mark):
        with contextlib.suppress(OSError):
            os.kill(left, signal.SIGKILL)
    channel.close()
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


def _resident_bytes(pid: int) -> int:
    """Memory of a process; 0 where the system does not tell (it is Linux that does)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
