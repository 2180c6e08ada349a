"""The mpiexec that is here, the command that starts ranks with it, and its MPI library."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from autotune.core.errors import AutotuneError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.core.interpreter import python
from autotune.distributed.mpi.patience import patience_s
from autotune.measuring.processes import START_TIMEOUT_S


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
