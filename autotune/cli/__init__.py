"""The command line: ``autotune COMMAND``.

With ``--json`` a command puts one JSON document on stdout; logs and progress go to stderr.
Exit codes: 0 success, 1 the work failed or its result could not be printed, 2 usage or bad input
(one line, no traceback), 128 and the signal's number after a request to stop (130 after Ctrl-C),
also where results were printed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.cli.parser import Parser, check_text, is_common, normalized
from autotune.cli.terminal import Style, drawn, error_line, put, standard_streams, styled
from autotune.core.errors import AutotuneError, InputError
from autotune.core.interrupt import CommandSignals
from autotune.core.printable import printable, shown
from autotune.core.suggestions import must_be
from autotune.core.version import __version__

if TYPE_CHECKING:
    from autotune.cli.parser import CommandResult

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "tune": ("tune", "search the families' spaces for the fastest kernel and store it"),
    "bench": ("accuracies", "measure tuned kernels beside the vendor library"),
    "space": ("spaces", "count configurations and show what prunes them"),
    "emit": ("emit", "print the source that a configuration generates"),
    "export": ("files", "write a record's kernel to a folder, for programs without this package"),
    "device": ("machine", "show the device's fingerprint, limits, toolchain and state"),
    "families": ("spaces", "list the kernel families and their parameters"),
    "cache": ("cache", "list, show, export, import, verify and prune tuning records"),
    "check": ("check", "verify and time a kernel that somebody else wrote"),
    "sweep": ("research", "measure every valid configuration, to study the space"),
    "replay": ("research", "compare samplers on recorded spaces"),
    "compare": ("recordings", "compare samplers on recorded spaces, with charts for a paper"),
    "convert": ("recordings", "write a recording in another format: T4, Kernel Tuner, Parquet"),
    "report": ("files", "write a page about studies and sweeps"),
    "doctor": ("machine", "look at this machine, and say how to mend what is wrong"),
    "completion": ("completion", "print the completion script for bash, zsh or fish"),
}
"""The module of each command, whose `add_NAME` adds it, and what it does: only the module of the
command given is imported."""

_MEANT = "; 'families' lists kernels, your own by name, and 'cache list' what is tuned"

_DESCRIPTION = "Generates, prunes, searches, verifies and caches GEMM kernels."

_GREETING = f"""\
autotune: {_DESCRIPTION[0].lower()}{_DESCRIPTION[1:]}

{styled("Tune this machine", Style.BOLD)}, in a minute for one shape, in minutes for all:
  autotune tune                      the fastest 1024x1024x1024 product
  autotune tune --preset cpu         a set of shapes, and a choice for every other (or gpu)

{styled("Use what was tuned", Style.BOLD)} in a program:
  python -c "from autotune import matmul; help(matmul)"
  autotune cache list                what has been tuned here

{styled("Study a space", Style.BOLD)} of parameters, with no device needed:
  autotune space                     what there is to choose from, and what prunes it

autotune families lists what can be tuned, autotune doctor looks at this machine, autotune --help
lists all commands, and autotune COMMAND --help the options of one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks
        from autotune.cli.completion import command_of, complete

        complete(_parser(command_of(os.environ.get("COMP_LINE", ""))))
    with standard_streams():
        given = normalized(sys.argv[1:] if arguments is None else arguments)
        return _ended(lambda: _answer(given))


def _answer(given: Sequence[str]) -> int:
    """Do what the arguments ask for, and return the exit code."""
    logging.basicConfig(stream=sys.stderr, format="autotune: %(message)s", level=logging.WARNING)
    if not given:
        put(drawn(_GREETING, sys.stdout))
        return 0
    args = parse(given)
    check_text(args)
    # The command's entry point leaves Ctrl-C to the system until here.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with CommandSignals(_tell) as signals:
        try:
            exit_code = _ended(lambda: _run(args))
        except KeyboardInterrupt:
            print("autotune: interrupted", file=sys.stderr)
            exit_code = 128 + signal.SIGINT
    return exit_code if signals.number is None else 128 + signals.number


def _run(args: argparse.Namespace) -> int:
    """Run a command and print its result, also where something is to be said after it."""
    from autotune.cli.own_kernels import place_own_kernels

    place_own_kernels(args)
    result: CommandResult = args.run(args)
    if not result.printed:
        # Names in what is printed are of files that anybody may have written.
        put(
            json.dumps(result.document, indent=2)
            if args.json
            else drawn(printable(result.text), sys.stdout)
        )
    if result.failure is not None:
        raise result.failure
    return result.exit_code


def _ended(work: Callable[[], int]) -> int:
    """The exit code of some work, also where it ends with an error: that is one line on stderr."""
    try:
        return _with_files(work)
    except AutotuneError as error:
        print(error_line("autotune", str(error)), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader went away (`| head`)
        return 1


def _with_files(work: Callable[[], int]) -> int:
    """The exit code of some work.

    Raises:
        AutotuneError: the system lets this process open no more files.
        InputError: it takes no path as long as one that was named.
    """
    try:
        return work()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"a path must be shorter than {shown(error.filename)}") from error
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        remedy = "let processes open 64 at least (`ulimit -n 64`)"
        raise AutotuneError(f"{error.strerror}: {remedy}") from error


def _tell(text: str) -> None:
    """Write a line to stderr from within a signal handler, which must not use what was broken off.

    On a terminal it replaces a progress line.
    """
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"{start}autotune: {text}\n".encode())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command that `arguments` begin with; bad usage exits with 2."""
    parser = _parser(arguments[0])
    if is_common(arguments[0]):
        parser.error(f"COMMAND is missing: one of {', '.join(_COMMANDS)}")
    if not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        hint = _MEANT if arguments[0] in ("list", "ls") else ""
        parser.error(must_be("COMMAND", arguments[0], list(_COMMANDS)) + hint)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        args.parser.unknown(unknown)
    return args


def _parser(command: str) -> Parser:
    """The parser of all commands, with the options of one: no other's module is imported."""
    parser = Parser(prog="autotune", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"autotune {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, (module, summary) in _COMMANDS.items():
        if name == command:
            found = importlib.import_module(f"autotune.cli.{module}")
            getattr(found, f"add_{name}")(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser
