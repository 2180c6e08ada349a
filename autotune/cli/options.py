"""Options that every command has."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.cli.parser import rare
from autotune.core.errors import InputError
from autotune.core.printable import shown

if TYPE_CHECKING:
    from autotune.core.errors import AutotuneError


def common() -> argparse.ArgumentParser:
    """A parent parser with ``--cache``, ``--json`` and ``--quiet``."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("common")
    group.add_argument(
        "--cache",
        metavar="PATH",
        help="folder or .sqlite file of the cache (default: $AUTOTUNE_CACHE, else the user's "
        "data folder)",
    )
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser


def run_options(group: argparse._ActionsContainer) -> None:
    """Add what every run of trials can be told and few are: ``--storage`` and ``--workers``."""
    rare(
        group.add_argument(
            "--storage", metavar="URL", help="Optuna storage (default: a journal beside the cache)"
        )
    )
    rare(
        group.add_argument(
            "--workers", type=int, metavar="N", help="compile workers (default: one per core)"
        )
    )


_PATHS = ("cache", "file", "studies")
"""Arguments that are text and may be a path: such may have bytes that are no text."""


def check_text(args: argparse.Namespace) -> None:
    """Refuse names with bytes that are no text here: nothing can be stored or found under them.

    Raises:
        InputError: a name has some.
    """
    for option, value in vars(args).items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and option not in _PATHS:
                check_name(option, each)


def check_name(what: str, name: str) -> None:
    """Refuse a name with bytes that are no text in the encoding of this locale.

    Raises:
        InputError: it has some.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} must be text in {sys.getfilesystemencoding()}, got {shown(name)}: choose "
            "another name, or a locale that has its characters, such as LC_ALL=C.UTF-8"
        ) from error


@dataclass(frozen=True, slots=True)
class CommandResult:
    """One command's output in both forms; the caller prints the one asked for.

    Attributes:
        document: JSON-able, for ``--json``.
        text: for people, without the last line end.
        exit_code: what the process exits with.
        failure: what is told after the output: a file could not be written in the end.
    """

    document: Any
    text: str
    exit_code: int = 0
    failure: AutotuneError | None = None
