"""Files that commands write: nothing that is read or stored is replaced, nothing is tried late."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from records import record

from autotune.cli import main
from autotune.core.paths import CacheLocations
from autotune.core.writing import write_file
from autotune.research.tables import CSV_COLUMNS
from autotune.search import open_study
from autotune.space import SearchSpace, SpaceUnion
from autotune.store import TuningCache

TRIANGULAR = Path(__file__).parents[3] / "examples" / "triangular"
SHAPE = ("--target", "cpu", "--family", "loops", "--shape", "8x8x8")

COMMANDS = {
    "cache export": ["cache", "export", "TARGET"],
    "report -o": ["report", "INPUT", "-o", "TARGET"],
    "report --picture": ["report", "INPUT", "-o", "page.html", "--picture", "TARGET"],
    "convert": ["convert", "INPUT", "TARGET", "--to", "t4"],
    "replay --csv": ["replay", "INPUT", "--seeds", "1", "--csv", "TARGET"],
    "sweep -o": ["sweep", *SHAPE, "--limit", "1", "-o", "TARGET"],
    "tune --export": ["tune", *SHAPE, "--trials", "1", "--export", "TARGET"],
    "tune --preset --export": ["tune", "--preset", "cpu", "--export", "TARGET"],
}
"""Every option that names a file to write."""

every_option = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> CacheLocations:
    """A cache with a record and a study, and nothing that a command might do but refuse."""
    place = CacheLocations.at(own_cache).create()
    TuningCache(place.database).add(record())
    with open_study(SpaceUnion({"one": SearchSpace({"x": [1]})}), None, "s", place.studies) as one:
        one.ask()
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "input.csv")
    return place


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any name may be that of a picture."""
    from autotune.reporting import page

    monkeypatch.setattr(page, "check_picture", lambda path: None)


def write_sweep(path: Path) -> None:
    rows = [f"one,ok,0.00{x},0.001,0.01,3,,,,,{x}" for x in (1, 2, 3)]
    path.write_text("\n".join([",".join([*CSV_COLUMNS, "x"]), *rows, ""]))


def refused(
    capsys: pytest.CaptureFixture[str], command: list[str], target: str | Path, *more: str
) -> str:
    words = {"TARGET": str(target), "INPUT": "input.csv"}
    assert main([words.get(each, each) for each in [*command, *more]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autotune: error: ")
    assert err.count("\n") == 1
    return err


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@every_option
@pytest.mark.parametrize("name", ["tuning.sqlite", "tuning.sqlite-wal", "studies/s.log"])
@pytest.mark.parametrize("way", ["itself", "symlink", "hard link", "folder link", "another's"])
def test_what_is_stored_is_not_replaced(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    place: CacheLocations,
    command: list[str],
    name: str,
    way: str,
) -> None:
    stored = place.root / name
    (place.root / "tuning.sqlite-wal").touch()
    target, more = stored, []
    match way:
        case "symlink":
            target = tmp_path / "link.csv"
            target.symlink_to(stored)
        case "hard link":
            target = tmp_path / "link.csv"
            target.hardlink_to(stored)
        case "folder link":
            (tmp_path / "folder").symlink_to(place.root)
            target = tmp_path / "folder" / name
        case "another's":
            more = ["--cache", str(tmp_path / "other")]
    before = contents(tmp_path)
    assert f"would replace {target}, which" in refused(capsys, command, target, *more)
    assert contents(tmp_path) == before


@every_option
@pytest.mark.parametrize("name", ["tuning.sqlite", "tuning.sqlite-shm", "studies/new.log"])
def test_what_will_be_stored_is_not_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], name: str
) -> None:
    target = tmp_path / "new" / name
    told = refused(capsys, command, target, "--cache", str(tmp_path / "new"))
    assert "belongs to the cache" in told
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["report -o", "report --picture", "replay --csv"])
@pytest.mark.parametrize("way", ["input.csv", "./input.csv", "symlink", "hard link"])
def test_what_is_read_is_not_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, way: str
) -> None:
    target = Path(way)
    if way == "symlink":
        target.symlink_to("input.csv")
    elif way == "hard link":
        target.hardlink_to("input.csv")
    before = contents(tmp_path)
    assert "which this command reads" in refused(capsys, COMMANDS[name], target)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["sweep -o", "tune --export"])
@pytest.mark.parametrize("there", [True, False])
def test_a_storage_is_not_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, there: bool
) -> None:
    target = tmp_path / "studies.db"
    if there:
        with closing(sqlite3.connect(target)) as connection, connection:
            connection.execute("CREATE TABLE mine (x)")
    refused(capsys, COMMANDS[name], target, "--storage", f"sqlite:///{target}")
    assert target.exists() == there


@pytest.mark.parametrize("name", ["sweep -o", "tune --export", "tune --preset --export"])
@pytest.mark.parametrize("given", ["option", "variable", "shipped"])
def test_families_are_not_replaced(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    given: str,
) -> None:
    own = tmp_path / "own families"
    shutil.copytree(TRIANGULAR, own)
    more = ["--families", str(own)] if given == "option" else []
    if given == "variable":
        monkeypatch.setenv("AUTOTUNE_FAMILIES", str(own))
    target = own / "trmm.toml"
    if given == "shipped":
        from autotune.core.paths import data_dir

        target = data_dir("search_spaces") / "gemm" / "cpu" / "loops.toml"
    before = target.read_bytes()
    assert "belongs to the families" in refused(capsys, COMMANDS[name], target, *more)
    assert target.read_bytes() == before


def test_the_list_of_shapes_is_not_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "shapes.jsonl").write_text("mine")
    command = ["tune", "--shapes", "shapes.jsonl", "--export", "TARGET"]
    assert "this command reads" in refused(capsys, command, tmp_path / "shapes.jsonl")


@every_option
@pytest.mark.parametrize(
    "target", ["no/where", "/proc/nope/f", "/proc/f", ".", "input.csv/x", "x" * 300, "loop"]
)
def test_what_cannot_be_written_is_said_before_any_work(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    target: str,
) -> None:
    import autotune.research
    from autotune.cpu.target import CpuTarget

    monkeypatch.setattr(CpuTarget, "evaluator", lambda *_, **__: pytest.fail("work"))
    monkeypatch.setattr(autotune.research, "replay", lambda *_, **__: pytest.fail("work"))
    (tmp_path / "loop").symlink_to("loop")
    told = refused(capsys, command, target)
    assert f"cannot write {target} (" in told
    assert not (tmp_path / "page.html").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
@every_option
def test_what_may_not_be_written_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "mine").touch(0o400)
    assert "Permission denied" in refused(capsys, command, "mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sweep -o", pytest.param("tune --export", marks=pytest.mark.thorough), "replay --csv"]
)
def test_what_fails_at_the_end_is_said_after_the_result(
    capsys: pytest.CaptureFixture[str], warm_cache: Path, name: str
) -> None:
    words = {"TARGET": "/dev/full", "INPUT": "input.csv"}
    command = [words.get(each, each) for each in COMMANDS[name]]
    assert main([*command, "-q", "--cache", str(warm_cache)]) == 1
    out, err = capsys.readouterr()
    assert "loops" in out or "score" in out
    assert err == "autotune: error: cannot write /dev/full: No space left on device\n"


def test_files_may_be_written_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also where they lie beside what is read, or where a link leads to them."""
    Path("link.csv").symlink_to("curves.csv")
    for target in ("curves.csv", "curves.csv", "link.csv"):
        arguments = ["replay", "input.csv", "--seeds", "1", "--sampler", "random", "--csv"]
        assert main([*arguments, target]) == 0, capsys.readouterr().err
    assert Path("link.csv").is_symlink()
    assert Path("curves.csv").read_text().startswith("file,name,sampler")


class TestWriting:
    def test_a_file_keeps_its_mode_and_is_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch(0o600)
        write_file(file, b"new")
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o600)
        assert [each for each in tmp_path.iterdir() if each.name.startswith(".")] == []

    def test_what_fails_leaves_the_old_content(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "file"
        file.write_text("old")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_file(file, b"new")
        assert file.read_text() == "old"
