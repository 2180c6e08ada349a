"""docs/commands.md has every command and every option that there is, and no other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import _COMMANDS, _parser

PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
TOLD = {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", PAGE)} - {"--help"}


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options(each)
        yield from action.option_strings


def of_command(name: str) -> set[str]:
    [commands] = [
        action
        for action in _parser(name)._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return {*options(commands.choices[name])} - {"-h", "--help"}


@pytest.mark.parametrize("name", _COMMANDS)
def test_options_are_on_the_page(name: str) -> None:
    assert re.search(rf"^\| \[`{name}`\]", PAGE, re.MULTILINE)
    assert of_command(name) <= TOLD


def test_there_are_no_others() -> None:
    known = {option for name in _COMMANDS for option in of_command(name)}
    assert known >= TOLD
    assert set(re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)) == set(_COMMANDS)
