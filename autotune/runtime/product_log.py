"""Log of products: ``AUTOTUNE_LOG=FILE``, or ``stderr``, gets who computes, once per shape.

Records go to the logger `NAME`, at level DEBUG, so that a program may as well take them with
handlers of its own.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import InputError
from autotune.core.paths import expanded
from autotune.core.writing import check_lines

if TYPE_CHECKING:
    from autotune.operations.problem import Problem
    from autotune.serving.kernel import Kernel

VARIABLE = "AUTOTUNE_LOG"
"""The environment variable that names the file, or says "stderr"."""

NAME = "autotune.products"
"""The logger's name."""

_LINES = 4096
"""Lines that are remembered, so as not to be logged again."""

_log = logging.getLogger(NAME)
_warnings = logging.getLogger(__name__)


def log_product(caller: str, problem: Problem | None, target: str, way: str) -> None:
    """Log who computes a product, unless that was logged before.

    Args:
        caller: the function that was called.
        problem: what it computes; None where no problem says it.
        target: where; may be empty.
        way: what computes it, and why.
    """
    given = os.environ.get(VARIABLE)
    if given:
        _listen(given)
    if _log.isEnabledFor(logging.DEBUG):
        what = ""
        if problem is not None:
            known = problem.operation in ("gemm", caller)
            layer = "" if known else f" {problem.operation}"
            what = f"{layer} {problem.label}"
        where = f" on {target}" if target else ""
        _log_once(f"{caller}{what}{where}: {way}", given)


def summary(kernel: Kernel) -> str:
    """A kernel for the log: what computes, how well it fits, and why not better."""
    what = kernel.library or str(kernel.candidate)
    reason = f" ({kernel.reason})" if kernel.reason else ""
    return f"{what}, {kernel.match}{reason}"


@session.cached()
def warn_once(text: str) -> None:
    """Warn, once and not for every shape."""
    _warnings.warning("%s", text)


@session.cached(most=_LINES)
def _log_once(line: str, listener: str | None) -> None:
    _log.debug("%s", line)


class _Lines(logging.FileHandler):
    """Appends lines to a file, at once and whole, so that processes may share it.

    A program must not end, nor wait, for its log: a file that cannot be written is given up.
    """

    def _open(self) -> TextIOWrapper:
        # A pipe that nobody reads would be waited for.
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_at_once)

    def handleError(self, record: logging.LogRecord) -> None:
        """Write no more."""
        _log.removeHandler(self)
        _give_up(self.baseFilename, sys.exception())
        with suppress(OSError):  # what is left to write
            self.close()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _give_up(given: str, error: BaseException | None) -> None:
    why = getattr(error, "strerror", None) or error
    _warnings.warning("%s=%s cannot be written (%s): nothing is told", VARIABLE, given, why)


@session.cached()
def _listen(given: str) -> None:
    """Have a file written, or the standard error stream, from now on."""
    handler: logging.Handler
    try:
        if given == "stderr":
            handler = logging.StreamHandler(sys.stderr)
        else:
            path = expanded(given).absolute()
            check_lines(path)
            handler = _Lines(path)
    except (OSError, InputError) as error:
        _give_up(given, error)
        return
    handler.setFormatter(logging.Formatter("autotune: %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
    _log.propagate = False  # a program's own handlers would have it once more
