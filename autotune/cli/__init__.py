"""The command line: ``autotune COMMAND``.

With ``--json`` a command puts one JSON document on stdout; logs and progress go to stderr.
Exit codes: 0 success, 1 the work failed, 2 usage or bad input (one line, no traceback).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from autotune import __version__
from autotune.cli import (
    bench_command,
    cache_command,
    device_command,
    emit_command,
    families_command,
    replay_command,
    space_command,
    sweep_command,
    tune_command,
)
from autotune.cli.result import CommandResult
from autotune.errors import AutotuneError
from autotune.printable import printable

_COMMANDS = (
    tune_command,
    bench_command,
    space_command,
    emit_command,
    device_command,
    families_command,
    cache_command,
    sweep_command,
    replay_command,
)


class _Parser(argparse.ArgumentParser):
    """Reports bad usage in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(stream=sys.stderr, format="autotune: %(message)s", level=logging.WARNING)
    args = _parser().parse_args(
        _attach_negatives(sys.argv[1:] if arguments is None else arguments)
    )
    try:
        result: CommandResult = args.run(args)
        # Names in what is printed are of files that anybody may have written.
        text = json.dumps(result.document, indent=2) if args.json else printable(result.text)
        print(text, flush=True)
    except AutotuneError as error:
        print(f"autotune: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`| head`); point stdout at nothing so that exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("autotune: interrupted", file=sys.stderr)
        return 130
    return result.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="autotune",
        description="Generates, prunes, searches, verifies and caches GEMM kernels.",
    )
    parser.add_argument("--version", action="version", version=f"autotune {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser


def _attach_negatives(arguments: Sequence[str]) -> list[str]:
    """Write ``--shape -4x1x1`` as ``--shape=-4x1x1``.

    Otherwise argparse takes the value for an option, and the error is about something else.
    """
    attached: list[str] = []
    for argument in arguments:
        is_negative = argument[:1] == "-" and argument[1:2].isdigit()
        if is_negative and attached and attached[-1].startswith("--") and "=" not in attached[-1]:
            attached[-1] += f"={argument}"
        else:
            attached.append(argument)
    return attached
