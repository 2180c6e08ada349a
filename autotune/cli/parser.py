"""Parsing a command line: options of all commands, and one clear line for what is wrong."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.cli.terminal import error_line, put
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.core.suggestions import did_you_mean, must_be

if TYPE_CHECKING:
    from autotune.core.errors import AutotuneError

_LEADING = ("--json", "-q", "--quiet", "--cache")
"""Options that every command has: they may come before it, and before its action."""

_INVALID_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)")


_LAST = ("problem", "target", "common")
"""Groups of options that several commands have: help has a command's own before them."""

_RARE = "rare"
_SECTION = "section"
"""Notes on options that `rare` and `within` are told of."""


def rare(action: argparse.Action) -> None:
    """Keep an option out of ``--help``: ``--help-all`` has it."""
    setattr(action, _RARE, True)


def within(action: argparse.Action, section: str) -> None:
    """Show an option in a section of help; argparse forgets it where options exclude others."""
    setattr(action, _SECTION, section)


class _HelpAll(argparse.Action):
    """Prints help with every option, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        put(parser.help_text(every=True), end="")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Reports bad usage in one line, like every other error, and keeps its help short.

    What it parses says in `parser` which parser it was that knew the command.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_defaults(parser=self)
        self.add_argument(
            "--help-all", action=_HelpAll, nargs=0, help="show all options, rare ones too"
        )

    def format_help(self) -> str:
        """The options that most need; ``--help-all`` has the others."""
        return self.help_text(every=False)

    def help_text(self, *, every: bool) -> str:
        """Help with every option, or without those that are rare.

        Args:
            every: whether to show rare options.
        """
        has_rare = any(hasattr(action, _RARE) for action in self._actions)
        shown = [
            action
            for action in self._actions
            if (every or not hasattr(action, _RARE)) and (has_rare or action.dest != "help_all")
        ]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [each for each in shown if not each.option_strings], [])
        usage = formatter.format_help().rstrip().removeprefix("usage: ")
        formatter = self._get_formatter()
        formatter.add_usage(usage.replace(self.prog, f"{self.prog} [options]", 1), [], [])
        formatter.add_text(self.description)
        for title, actions in self._sections(shown):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _sections(
        self, shown: Sequence[argparse.Action]
    ) -> Iterator[tuple[str | None, list[argparse.Action]]]:
        """Titles and options, what the command alone has first."""
        groups = self._action_groups
        own = [each for each in groups if each.title not in _LAST]
        first, *rest = own  # the arguments; then the options that are in no group
        others = sorted(
            (each for each in groups if each.title in _LAST),
            key=lambda each: _LAST.index(str(each.title)),
        )
        for group in (first, *rest[1:], rest[0], *others):
            moved = [each for each in shown if getattr(each, _SECTION, None) == group.title]
            yield (
                group.title,
                moved
                + [
                    each
                    for each in group._group_actions
                    if each in shown and not hasattr(each, _SECTION)
                ],
            )

    def error(self, message: str) -> NoReturn:
        """Print one line, with the name that was meant, and exit with 2."""
        found = _INVALID_CHOICE.fullmatch(message)
        if found is not None:
            name, given, listed = found.groups()
            message = must_be(name, given, re.findall(r"[\w-]+", listed))
        self.exit(2, error_line(self.prog, f"{message} (see {self.prog} --help)") + "\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print what is asked for, such as ``--help``, as results are printed."""
        if file is sys.stdout or file is None:
            put(message, end="")
        else:
            super()._print_message(message, file)

    def unknown(self, arguments: Sequence[str]) -> NoReturn:
        """Say that there are no such arguments, and exit with 2."""
        known = re.findall(r"--[a-z][a-z-]*", self.help_text(every=True))
        option = arguments[0].partition("=")[0]
        hint = did_you_mean(option, known) if option.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(arguments)}{hint}")


def is_common(argument: str) -> bool:
    """Return whether every command has the option."""
    return argument.partition("=")[0] in _LEADING


def normalized(arguments: Sequence[str]) -> list[str]:
    """The arguments with command and action first and negative numbers tied to their options.

    ``--json cache -q list`` becomes ``cache list --json -q``, and ``--shape -4x1x1`` becomes
    ``--shape=-4x1x1``: otherwise argparse takes the value for an option, and the error is about
    something else.
    """
    rest = list(arguments)
    first: list[str] = []
    leading: list[str] = []
    while rest and len(first) < 2:
        (leading if is_common(rest[0]) else first).append(rest.pop(0))
        if leading[-1:] == ["--cache"] and rest:
            leading.append(rest.pop(0))
    attached: list[str] = []
    for argument in [*first, *rest, *leading]:
        is_negative = argument[:1] == "-" and argument[1:2].isdigit()
        if is_negative and attached and attached[-1].startswith("--") and "=" not in attached[-1]:
            attached[-1] += f"={argument}"
        else:
            attached.append(argument)
    return attached


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
        printed: whether the command has printed its output itself.
    """

    document: Any
    text: str
    exit_code: int = 0
    failure: AutotuneError | None = None
    printed: bool = False
