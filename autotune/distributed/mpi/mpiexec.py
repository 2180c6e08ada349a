"""The mpiexec that is here, and the command that starts ranks with it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from autotune.core.errors import AutotuneError, MissingDependencyError
from autotune.core.installing import install_hint
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
