"""Colour: where it is shown, that widths do not count it, and that strangers have none."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import record

from autotune.cli import main
from autotune.cli.terminal import Style, drawn, folded, plain, ratio, shows_colour, styled, table
from autotune.core.paths import CacheLocations
from autotune.core.printable import printable
from autotune.store import BaselineRecord, TuningCache

ROOT = Path(__file__).parents[3]
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("variables", "terminal", "shown"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_where_colour_is_shown(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], terminal: bool, shown: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    assert shows_colour(stream) is shown
    text = drawn(styled("red", Style.RED), stream)
    assert text == ("\x1b[1;31mred\x1b[0m" if shown else "red")


def test_ratios() -> None:
    assert ratio("1.00", 1.0) == styled("1.00", Style.GREEN)
    assert ratio("0.99", 0.99) == styled("0.99", Style.YELLOW)


WORDS = st.text("ab x", max_size=60)
PIECES = st.lists(st.tuples(WORDS, st.sampled_from([None, *Style])), max_size=6)


def marked(pieces: list[tuple[str, Style | None]]) -> str:
    return "".join(text if style is None else styled(text, style) for text, style in pieces)


def styles(text: str) -> list[tuple[str, str]]:
    """Every character that is to be seen, with its style."""
    found, style = [], ""
    for character in text:
        if plain(character) == "":
            style = character if character in [*Style] else ""
        elif not character.isspace():
            found.append((character, style))
    assert style == ""
    return found


@settings(max_examples=50)
@given(PIECES, PIECES)
def test_widths_do_not_count_it(
    label: list[tuple[str, Style | None]], text: list[tuple[str, Style | None]]
) -> None:
    """Lines are where they are without colour, and every mark is there still."""
    begins, told = marked(label), marked(text)
    laid_out = folded(begins, told)
    assert plain(laid_out) == folded(plain(begins), plain(told))
    assert styles(laid_out) == styles(begins + told)
    rows = [(begins, told), (told, begins)]
    bare = [(plain(begins), plain(told)), (plain(told), plain(begins))]
    for fold in (False, True):
        assert plain(table(("one", "two"), rows, right=("two",), fold=fold)) == plain(
            table(("one", "two"), bare, right=("two",), fold=fold)
        )


def test_strangers_have_no_colour() -> None:
    assert drawn(printable("\x1b[31mred"), Terminal()) == "\\x1b[31mred"


def test_it_is_in_what_people_read_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = record(baseline=BaselineRecord("NumPy", 1e-3, 0.8))
    TuningCache(CacheLocations.at().create().database).add(slow, record(m=8))
    main(["cache", "list"])
    bare = capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["cache", "list"])
    coloured = capsys.readouterr().out
    assert ESCAPE.sub("", coloured) == bare
    assert "\x1b[33m0.80x\x1b[0m" in coloured
    assert "\x1b[32m1.20x\x1b[0m" in coloured
    assert coloured.startswith("\x1b[1mid\x1b[0m")
    main(["cache", "list", "--json"])
    assert "\x1b" not in capsys.readouterr().out
    assert main(["cache", "show", "feed"]) == 2
    assert capsys.readouterr().err.startswith("autotune: \x1b[1;31merror:\x1b[0m ")
    with pytest.raises(SystemExit):
        main(["tunee"])
    assert "autotune: \x1b[1;31merror:\x1b[0m COMMAND must be" in capsys.readouterr().err


def test_a_terminal_has_colour_and_a_pipe_none() -> None:
    command = [sys.executable, "-m", "autotune"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    piped = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"\x1b" not in piped.stdout
    parent, child = pty.openpty()
    done = subprocess.run(command, stdout=child, env=environment, check=True)
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    assert done.returncode == 0
    assert b"\x1b[1mTune this machine\x1b[0m" in shown
    assert ESCAPE.sub("", shown.decode()).replace("\r\n", "\n") == piped.stdout.decode()
