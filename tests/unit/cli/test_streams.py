"""Standard streams that are closed, full, abandoned, or in another encoding: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import record

from autotune.cli import main
from autotune.core.errors import StudyError
from autotune.core.paths import CacheLocations
from autotune.search import open_study
from autotune.space import SearchSpace
from autotune.store import TuningCache

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
    ("end", "code"), [("-q 2>&-", 0), ("2>/dev/full", 0), ("2> >(true)", 0), (">&- 2>&-", 1)]
)
def test_a_run_without_streams_stores_what_it_finds(warm_cache: Path, end: str, code: int) -> None:
    run = "--target cpu --family loops --shape 8x8x8 --trials 1 --workers 1"
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
