from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import platformdirs
import pytest

import autotune
from autotune import Gemm
from autotune.core.errors import AutotuneError, CacheError, InputError
from autotune.core.paths import CacheLocations, data_dir, private_folder
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.runtime.usage import counted
from autotune.store import TuningCache, record_sources
from autotune.targets.families import load_families

PACKAGE = Path(autotune.__file__).parent


@pytest.mark.parametrize("name", ["templates", "search_spaces", "cache"])
def test_shipped_data_is_found(name: str) -> None:
    assert (data_dir(name) / "README.md").is_file()


def test_missing_data_is_a_clear_error() -> None:
    with pytest.raises(AutotuneError, match=r"'nothing'.*reinstall autotune-kernels"):
        data_dir("nothing")


def found_data(root: Path) -> subprocess.CompletedProcess[str]:
    """Where a copy of the package under `root` looks for its templates."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from autotune.core.paths import data_dir; print(data_dir('cache'))",
        ],
        env={"PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_data_in_the_package_comes_first_and_siblings_need_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "autotune"
    package.mkdir()
    shutil.copytree(PACKAGE / "core", package / "core")
    (package / "__init__.py").touch()
    sibling = tmp_path / "cache"
    sibling.mkdir()

    stray = found_data(tmp_path)  # as in site-packages: somebody else's folder
    assert stray.returncode != 0
    assert "reinstall" in stray.stderr

    (tmp_path / "pyproject.toml").touch()
    assert Path(found_data(tmp_path).stdout.strip()) == sibling

    packaged = package / "_data" / "cache"
    packaged.mkdir(parents=True)
    assert Path(found_data(tmp_path).stdout.strip()) == packaged


def test_an_explicit_path_wins_over_the_environment(tmp_path: Path, own_cache: Path) -> None:
    assert CacheLocations.at().root == own_cache
    assert CacheLocations.at(tmp_path / "mine").root == tmp_path / "mine"


def test_the_default_is_the_platform_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = platformdirs.user_data_path("autotune", appauthor=False)
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("AUTOTUNE_CACHE")
        else:
            monkeypatch.setenv("AUTOTUNE_CACHE", value)
        assert CacheLocations.at().root == expected


def test_locations_move_together(tmp_path: Path) -> None:
    place = CacheLocations.at(tmp_path)
    assert place.database == tmp_path / "tuning.sqlite"
    assert (place.studies, place.programs) == (tmp_path / "studies", tmp_path / "programs")


def test_a_database_file_names_its_folder(tmp_path: Path) -> None:
    place = CacheLocations.at(str(tmp_path / "team.sqlite"))
    assert (place.root, place.database) == (tmp_path, tmp_path / "team.sqlite")


def test_relative_and_home_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert CacheLocations.at("here").root == tmp_path / "here"
    assert CacheLocations.at("~/there").root == tmp_path / "home" / "there"


def test_created_folders_are_private_and_existing_ones_keep_their_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    place = CacheLocations.at(shared / "a" / "b")
    assert place.create() is place.create()
    for folder in (shared / "a", place.root, place.studies, place.programs):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_looking_creates_nothing(own_cache: Path) -> None:
    CacheLocations.at()
    assert not own_cache.exists()


def test_an_unusable_place_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CacheError, match="--cache or AUTOTUNE_CACHE") as caught:
        CacheLocations.at(file / "below").create()
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == b""
    with pytest.raises(CacheError):
        private_folder(Path("/proc/self/nothing"))


def test_a_file_of_its_own_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, records = tmp_path / "script.py", tmp_path / "records.jsonl"
    script.touch()
    with pytest.raises(InputError, match=r"script\.py is neither"):
        CacheLocations.at(script)
    with pytest.raises(InputError, match=r"autotune cache import records\.jsonl"):
        CacheLocations.at(records)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(script))
    with pytest.raises(InputError, match="AUTOTUNE_CACHE"):
        CacheLocations.at()
    assert CacheLocations.at(tmp_path / "script").root == tmp_path / "script"


HOMELESS = """
import os, pwd, sys
def unknown(*_):
    raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "AUTOTUNE_CACHE"):
    os.environ.pop(name, None)
"""


def homeless(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HOMELESS + script]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_user_without_a_home_is_served_and_stores_nothing(tmp_path: Path) -> None:
    done = homeless(
        "from autotune.core.paths import CacheLocations; from autotune import Gemm;"
        "from autotune.families.program_cache import ProgramCache;"
        "from autotune.serving.lookup import look_up;"
        "from autotune.targets.registry import make_target;"
        "print(look_up(Gemm(8, 8, 8), make_target('cpu'), match='nearest').match.quality);"
        "print([ProgramCache.of(CacheLocations.at()).folder.is_dir() for _ in '12'])",
        tmp_path,
    )
    assert done.stdout.splitlines()[1:] == ["[True, True]"], done.stderr
    assert done.stderr.count("AUTOTUNE_CACHE names a folder that can") == 1
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_commands_tell_a_user_without_a_home_what_to_do(tmp_path: Path) -> None:
    for words, code in ((["cache", "list"], 0), (["tune", "--shape", "8x8x8"], 1)):
        done = homeless(f"from autotune.cli import main; sys.exit(main({words}))", tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert "no home folder" in done.stderr
    assert "--cache or AUTOTUNE_CACHE" in done.stderr
    assert [*tmp_path.iterdir()] == []


LONG = "x" * 5000
UNKNOWN = "~nobody-of-this-name/place"


@pytest.mark.parametrize("given", [UNKNOWN, LONG])
def test_paths_that_are_none_are_one_line(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], object]] = [
        lambda: TuningCache(CacheLocations.at(given).database).records(),
        lambda: load_families(target="cpu", extra=[given]),
        lambda: find_gpu(f"{given}.toml"),
    ]
    for ask in asked:
        with pytest.raises(AutotuneError) as caught:
            ask()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [UNKNOWN, LONG])
def test_variables_that_name_no_path_cost_a_warning(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AUTOTUNE_RECORDS", "AUTOTUNE_RECORD"):
        monkeypatch.setenv(name, given)
    kernel: Any = SimpleNamespace(problem=Gemm(8, 8, 8), target="cpu", hear=lambda hears: None)
    for _ in range(2):
        assert len(record_sources(tmp_path / "none.sqlite", "cpu")) == 2
        assert counted(kernel) is kernel
    for name, told in (
        ("AUTOTUNE_RECORDS", "a layer is left out"),
        ("AUTOTUNE_RECORD", "shapes are not recorded"),
    ):
        assert sum(m.startswith(name) and told in m for m in caplog.messages) == 1, name
