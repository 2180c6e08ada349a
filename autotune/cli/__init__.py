"""The command line: ``autotune COMMAND``.

With ``--json`` a command puts one JSON document on stdout; logs and progress go to stderr.
Exit codes: 0 success, 1 the work failed, 2 usage or bad input (one line, no traceback), 128 and
the signal's number after a request to stop (130 after Ctrl-C), also where results were printed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.cli.parser import Parser, is_common, normalized
from autotune.core.errors import AutotuneError
from autotune.core.interrupt import CommandSignals
from autotune.core.printable import printable
from autotune.core.suggestions import must_be
from autotune.core.version import __version__

if TYPE_CHECKING:
    from autotune.cli.result import CommandResult

_COMMANDS: Mapping[str, str] = {
    "tune": "search the families' spaces for the fastest kernel and store it",
    "bench": "measure tuned kernels beside the vendor library",
    "space": "count configurations and show what prunes them",
    "emit": "print the source that a configuration generates",
    "device": "show the device's fingerprint, limits, toolchain and state",
    "families": "list the kernel families and their parameters",
    "cache": "list, show, export, import, verify and prune tuning records",
    "sweep": "measure every valid configuration, to study the space",
    "replay": "compare samplers on recorded spaces",
    "report": "write a page about studies and sweeps",
}
"""The commands and what they do, each in its own module: none is imported for another's sake."""

_DESCRIPTION = "Generates, prunes, searches, verifies and caches GEMM kernels."

_GREETING = f"""\
autotune: {_DESCRIPTION[0].lower()}{_DESCRIPTION[1:]}

  autotune tune        find the fastest 1024x1024x1024 product for this machine, in a minute
  autotune families    what can be tuned here
  autotune cache list  what has been tuned here

autotune --help lists all commands, autotune COMMAND --help the options of one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(stream=sys.stderr, format="autotune: %(message)s", level=logging.WARNING)
    given = normalized(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(_GREETING)
        return 0
    args = parse(given)
    # The command's entry point leaves Ctrl-C to the system until here.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with CommandSignals(_tell) as signals:
        try:
            result: CommandResult = args.run(args)
            exit_code = result.exit_code
            # Names in what is printed are of files that anybody may have written.
            text = json.dumps(result.document, indent=2) if args.json else printable(result.text)
            print(text, flush=True)
        except AutotuneError as error:
            print(f"autotune: error: {error}", file=sys.stderr)
            exit_code = error.exit_code
        except BrokenPipeError:
            # The reader went away (`| head`); point stdout at nothing so that exit stays quiet.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            exit_code = 1
        except KeyboardInterrupt:
            print("autotune: interrupted", file=sys.stderr)
            exit_code = 128 + signal.SIGINT
    return exit_code if signals.number is None else 128 + signals.number


def _tell(text: str) -> None:
    """Write a line to stderr from within a signal handler, which must not use what was broken off.

    On a terminal it replaces a progress line.
    """
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"{start}autotune: {text}\n".encode())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command that `arguments` begin with; bad usage exits with 2."""
    parser = Parser(prog="autotune", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"autotune {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, summary in _COMMANDS.items():
        if name == arguments[0]:
            importlib.import_module(f"autotune.cli.{name}_command").add_parser(commands)
        else:
            commands.add_parser(name, help=summary)
    if is_common(arguments[0]):
        parser.error(f"COMMAND is missing: one of {', '.join(_COMMANDS)}")
    if not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        parser.error(must_be("COMMAND", arguments[0], list(_COMMANDS)))
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        args.parser.unknown(unknown)
    return args
