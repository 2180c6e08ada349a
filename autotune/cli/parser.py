"""Parsing a command line: one clear line for what is wrong, and what was probably meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from autotune.cli.streams import put
from autotune.cli.style import Style, drawn, plain, styled
from autotune.core.suggestions import did_you_mean, must_be

_LEADING = ("--json", "-q", "--quiet", "--cache")
"""Options that every command has: they may come before it."""

_INVALID_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Reports bad usage in one line, like every other error.

    What it parses says in `parser` which parser it was that knew the command.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_defaults(parser=self)

    def error(self, message: str) -> NoReturn:
        """Print one line, with the name that was meant, and exit with 2."""
        found = _INVALID_CHOICE.fullmatch(message)
        if found is not None:
            name, given, listed = found.groups()
            message = must_be(name, given, re.findall(r"[\w-]+", listed))
        told = f"{self.prog}: {styled('error:', Style.RED)} {plain(message)}"
        self.exit(2, drawn(f"{told} (see {self.prog} --help)\n", sys.stderr))

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print what is asked for, such as ``--help``, as results are printed."""
        if file is sys.stdout or file is None:
            put(message, end="")
        else:
            super()._print_message(message, file)

    def unknown(self, arguments: Sequence[str]) -> NoReturn:
        """Say that there are no such arguments, and exit with 2."""
        known = re.findall(r"--[a-z][a-z-]*", self.format_help())
        option = arguments[0].partition("=")[0]
        hint = did_you_mean(option, known) if option.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(arguments)}{hint}")


def is_common(argument: str) -> bool:
    """Whether it is an option that every command has."""
    return argument.partition("=")[0] in _LEADING


def normalized(arguments: Sequence[str]) -> list[str]:
    """The arguments with the command first and negative numbers tied to their options.

    ``--json tune`` becomes ``tune --json``, and ``--shape -4x1x1`` becomes ``--shape=-4x1x1``:
    otherwise argparse takes the value for an option, and the error is about something else.
    """
    rest = list(arguments)
    leading: list[str] = []
    while rest and is_common(rest[0]):
        leading.append(rest.pop(0))
        if leading[-1] == "--cache" and rest:
            leading.append(rest.pop(0))
    attached: list[str] = []
    for argument in [*rest, *leading]:
        is_negative = argument[:1] == "-" and argument[1:2].isdigit()
        if is_negative and attached and attached[-1].startswith("--") and "=" not in attached[-1]:
            attached[-1] += f"={argument}"
        else:
            attached.append(argument)
    return attached
