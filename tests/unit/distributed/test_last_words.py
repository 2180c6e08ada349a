"""A process that is about to be killed waits until its last line has been read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from autotune.distributed.mpi import processes
from autotune.distributed.mpi.processes import say_last

LAST = """
import os, signal
from autotune.distributed.mpi import processes
processes._READ_S = 3600.0
processes.say_last("autotune: the end")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_last_line_in_a_pipe_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", LAST], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        number = process.stderr.fileno()
        while not processes._unread(number):
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert os.read(number, 100) == b"autotune: the end\n"
        assert process.wait() == -signal.SIGKILL


def test_one_that_nobody_reads_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(processes, "_READ_S", 0.1)
        say_last("autotune: the end")
        assert processes._unread(read) == len("autotune: the end\n")


def test_other_files_keep_nothing_back(capsys: pytest.CaptureFixture[str]) -> None:
    say_last("autotune: the end")
    assert capsys.readouterr().err == "autotune: the end\n"
