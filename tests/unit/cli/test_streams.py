"""Output: closed, full and abandoned streams, encodings, colour."""

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
from autotune.core.errors import StudyError
from autotune.core.paths import CacheLocations
from autotune.core.printable import printable
from autotune.search import open_study
from autotune.space import SearchSpace
from autotune.store import BaselineRecord, TuningCache

BRIEF = Path(__file__).parents[2] / "brevity.py"

COMMANDS = {
    "greeting": "",
    "help": "--help",
    "version": "--version",
    "list": "cache list",
    "export": "cache export - --json",
    "emit": "emit loops --target cpu",
}
"""Whatever prints."""

every_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = CacheLocations.at(tmp_path_factory.mktemp("cache")).create()
    TuningCache(place.database).add(record())
    return place.root


def shell(line: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What comes of a line of the shell, in which PYTHON is this one."""
    return subprocess.run(
        ["bash", "-c", line.replace("PYTHON", sys.executable)],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=os.environ | {"AUTOTUNE_CACHE": str(cache)} | environment,
    )


@pytest.mark.sampled(6)
@every_command
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left"), (">&-", "closed")])
def test_what_cannot_be_printed_is_one_line(
    cache: Path, command: str, where: str, why: str
) -> None:
    done = shell(f"PYTHON -m autotune {command} {where}", cache)
    assert done.returncode == 1
    *notes, told = done.stderr.splitlines()
    assert why in told
    assert told.startswith("autotune: error: the result cannot be printed")
    assert not any("Traceback" in note or "Exception" in note for note in notes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("command", "code"), [("cache list", 0), ("nonsense", 2), ("cache show feed", 2)]
)
def test_stderr_is_not_needed(cache: Path, command: str, code: int, end: str) -> None:
    done = shell(f"PYTHON -m autotune {command} {end}", cache)
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == (code == 0)
    done = shell(f"PYTHON -m autotune {command} >&- {end}", cache)
    assert (done.returncode, done.stdout, done.stderr) == (code or 1, "", "")


@every_command
def test_a_closed_pipe_is_quiet(cache: Path, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        env=os.environ | {"AUTOTUNE_CACHE": str(cache)},
    )
    os.close(writer)
    assert done.returncode == 1
    assert b"rror" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("-q 2>&-", 0, marks=pytest.mark.thorough),
        pytest.param("2>/dev/full", 0, marks=pytest.mark.thorough),
        pytest.param("2> >(true)", 0, marks=pytest.mark.thorough),
        (">&- 2>&-", 1),
    ],
)
def test_a_run_without_streams_stores_what_it_finds(warm_cache: Path, end: str, code: int) -> None:
    run = "--target cpu --family loops --shape 8x8x8 --threads 1 --trials 1 --workers 1"
    done = shell(f"PYTHON {BRIEF} tune {run} {end}", warm_cache)
    assert (done.returncode, done.stderr) == (code, "")
    database = CacheLocations.at(warm_cache).database
    assert len(TuningCache(database).records()) == 1
    assert TuningCache(database).damage() == []


def test_files_do_not_take_the_place_of_streams(cache: Path) -> None:
    """What a library writes to file 2 would end up in the first file that was opened."""
    program = (
        "import os, sys; from autotune.cli.terminal import standard_streams\n"
        "with standard_streams():\n"
        "    opened = os.open(os.devnull, os.O_RDONLY)\n"
        "sys.exit(0 if opened > 2 else 1)"
    )
    for end in ("", ">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        assert shell(f"PYTHON -c '{program}' {end}", cache).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_signs_that_an_encoding_lacks_are_escaped(cache: Path, encoding: str) -> None:
    program = "from autotune.cli.terminal import *\nwith standard_streams(): put(chr(0x2192))"
    done = shell(f"PYTHON -c '{program}'", cache, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2192\n", "")


class TestNames:
    """Bytes that are no text in UTF-8 may be in paths, and in no name."""

    @pytest.mark.parametrize(
        "command",
        [
            "report X",
            "report mine X",
            "tune --target cpu --study X",
            "tune --target cpu --sampler X",
            "tune X",
            "sweep --target cpu --study X",
            "replay --study X",
            "cache show X",
            "cache export - --id X",
            "emit X",
            "emit loops --set X=1",
            "space X",
            "bench --family X",
            "export X folder",
        ],
    )
    def test_of_names(self, capsys: pytest.CaptureFixture[str], command: str) -> None:
        assert main(command.replace("X", "a\udcff").split()) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"must be text in {sys.getfilesystemencoding()}, got 'a" in err
        assert err.count("\n") == 1

    def test_of_studies(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="must be text in UTF-8"):
            open_study(SearchSpace({"x": [1]}), None, "a\udcff", tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_of_a_name_in_another_locale(self, cache: Path) -> None:
        line = "PYTHON -m autotune report ünï-cödé"
        done = shell(line, cache, LC_ALL="C", PYTHONUTF8="0")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "must be text in ascii" in done.stderr

    def test_paths_may_have_them(self, cache: Path, tmp_path: Path) -> None:
        folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
        Path(folder).mkdir()
        assert main(["cache", "export", f"{folder}/x.jsonl", "--cache", str(cache)]) == 0
        assert Path(folder, "x.jsonl").is_file()
        assert main(["cache", "import", f"{folder}/x.jsonl", "--cache", f"{folder}/cache"]) == 0
        assert Path(folder, "cache", "tuning.sqlite").is_file()


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
