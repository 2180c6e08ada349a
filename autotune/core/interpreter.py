"""Python processes that are started the way this one was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

from autotune.core.errors import WorkerError

_PATH = (
    "import sys; count = int(sys.argv[1]); sys.path[:] = sys.argv[2 : 2 + count]; "
    "del sys.argv[1 : 2 + count]; "
)


def executable() -> str:
    """Path of this interpreter.

    Raises:
        WorkerError: a program that embeds Python does not say where one is.
    """
    given = sys.executable
    if not given or shutil.which(given) is None:
        raise WorkerError(
            "processes of Python are started with sys.executable, which must be a program, got "
            f"{given!r}: set it to the `python` of this environment"
        )
    return given


def flags() -> list[str]:
    """Options of this interpreter, for its children: `-I`, `-E`, `-s`, `-P`, `-X`, `-W` and kin.

    Whoever keeps the environment's code out of a program keeps it out of them, too.
    """
    standard: Any = subprocess
    return list(standard._args_from_interpreter_flags())


def python(code: str, *arguments: str) -> list[str]:
    """Command of a process that runs code with this one's interpreter, options and `sys.path`.

    Args:
        code: finds its arguments in ``sys.argv[1:]``.
        arguments: these.

    Raises:
        WorkerError: there is no interpreter to start.
    """
    path = (str(len(sys.path)), *sys.path)
    return [executable(), *flags(), "-c", _PATH + code, *path, *arguments]
