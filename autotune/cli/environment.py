"""The environment variables of autotune, and whether those that are set can be meant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.core.arguments import is_on
from autotune.core.check import Check, attempt
from autotune.core.errors import InputError
from autotune.core.paths import expanded
from autotune.core.printable import shown
from autotune.core.suggestions import did_you_mean

PREFIX = "AUTOTUNE_"

_THREADS = "NUMBA_NUM_THREADS"

VARIABLES: Mapping[str, str] = {
    "AUTOTUNE_BACKGROUND": "0 compiles in the call that needs it, nothing in the background",
    "AUTOTUNE_CACHE": "folder or .sqlite file of the user's cache",
    "AUTOTUNE_FAMILIES": "folders with families of one's own",
    "AUTOTUNE_GPUS": "files that describe GPUs of one's own",
    "AUTOTUNE_LOG": "a file, or stderr, that is told which kernel computes what",
    "AUTOTUNE_MPI_TIMEOUT": "seconds that ranks wait for each other",
    "AUTOTUNE_RECORD": "a file that a program writes the shapes to that it computes",
    "AUTOTUNE_RECORDS": "read-only layers of records under the cache",
    "AUTOTUNE_TUNE": "0 forbids kernels of one's own to tune at a call",
}
"""The meaning of each; `docs/commands.md` says more."""

_OTHERS = frozenset({"AUTOTUNE_REQUIRE_GPU", "AUTOTUNE_WORKER"})
"""Of the tests, and of worker processes."""


def environment_checks() -> Iterator[Check]:
    """Look at the variables that are set: unknown ones, and values that are none."""
    known = {*VARIABLES, *_OTHERS}
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        if name not in known:
            meant = did_you_mean(name, VARIABLES).removeprefix("; ")
            yield Check.note(name, "is no variable of autotune's", meant or f"unset {name}")
    yield attempt("variables", _choices)
    if os.environ.get(_THREADS):
        yield attempt(_THREADS, _threads)
    listed = os.environ.get("AUTOTUNE_RECORD")
    if listed:
        yield attempt("AUTOTUNE_RECORD", lambda: _recorded(expanded(listed)))


def check_threads() -> None:
    """Refuse a variable with which Numba does not start in the user's programs.

    Raises:
        InputError: it is not a number of threads.
    """
    told = os.environ.get(_THREADS) or "1"
    if not told.isdecimal() or int(told) < 1:
        raise InputError(
            f"{_THREADS} must be a whole number, at least 1, got {shown(told)}: set it to one, or "
            "unset it"
        )


def _threads() -> Check:
    check_threads()
    return Check.ok(_THREADS, os.environ[_THREADS])


def _choices() -> Check:
    """The values that are choices.

    Raises:
        InputError: one is none.
    """
    for name in ("AUTOTUNE_BACKGROUND", "AUTOTUNE_TUNE"):
        is_on(name)
    given = [name for name in VARIABLES if os.environ.get(name)]
    return Check.ok("variables", f"{', '.join(given)} set" if given else "none set")


def _recorded(path: Path) -> Check:
    """A check that a program can write its shapes there."""
    place = path if path.exists() else path.absolute().parent
    if not place.exists() or path.is_dir() or not os.access(place, os.W_OK):
        return Check.note(
            "AUTOTUNE_RECORD",
            f"{path} cannot be written: shapes are not recorded",
            "name a file in a folder that can be written",
        )
    return Check.ok("AUTOTUNE_RECORD", f"shapes are written to {path}")
