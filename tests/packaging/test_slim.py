"""The slim distribution: it loads kernels without Optuna and SciPy, and says what tuning needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

LOAD = """
import sys
import numpy as np
from autotune import Gemm, NotTunedError, load, matmul

a, b = np.ones((24, 16)), np.ones((16, 8))
problem = Gemm(24, 16, 8, dtype="float64", threads=1)
kernel = load(problem, target="cpu")
assert kernel.match.name == "EXACT", kernel
assert (kernel(a, b) == 16).all()
assert (matmul(a, b) == 16).all()
try:
    load(Gemm(25, 16, 8, dtype="float64", threads=1), target="cpu")
except NotTunedError:
    pass
else:
    raise AssertionError("nothing was tuned for 25 rows")
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"optuna", "scipy", "sqlalchemy"}, loaded
"""

TUNE = """
from autotune import Gemm, tune
tune(Gemm(24, 16, 8), target="cpu", trials=1)
"""

STORE = """
from autotune import Gemm, tune
problem = Gemm(24, 16, 8, dtype="float64", threads=1)
tune(problem, target="cpu", families=["unrolled"], trials=1, timeout=60)
"""

COMMAND = "import sys; sys.argv[1:] = {}; from autotune.__main__ import main; sys.exit(main())"

pytestmark = pytest.mark.slow


def declared(text: str) -> dict[str, object]:
    return tomllib.loads(text)["project"]


def run(code: str, site: Path | None, cache: Path) -> subprocess.CompletedProcess[str]:
    """A program that sees the packages of one folder alone; of None, those of this environment."""
    if site is None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        options: list[str] = []
    else:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        options = ["-S"]  # without this environment's packages
    environment |= {"AUTOTUNE_CACHE": str(cache), "AUTOTUNE_BACKGROUND": "0"}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=cache.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slim")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    done = subprocess.run(
        [*command, ROOT / "slim"], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install 'autotune-kernels-slim[cpu]'` would install, and nothing else."""
    folder = tmp_path_factory.mktemp("slim-site") / "site"
    zipfile.ZipFile(wheel).extractall(folder)
    lines = metadata.Distribution.at(next(folder.glob("*.dist-info"))).requires or []
    for distribution in _needed(lines, "cpu"):
        for file in distribution.files or ():
            top = folder / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not top.exists():
                top.symlink_to(distribution.locate_file(file.parts[0]))
    return folder


def _needed(lines: list[str], extra: str) -> Iterator[metadata.Distribution]:
    """The distributions that requirements lead to, as they are installed here."""
    left = [(line, extra) for line in lines]
    seen = set()
    while left:
        line, extra = left.pop()
        requirement = Requirement(line)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not wanted or requirement.name in seen:
            continue
        seen.add(requirement.name)
        distribution = metadata.distribution(requirement.name)
        yield distribution
        left += [(each, "") for each in distribution.requires or ()]


def test_it_is_the_same_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "autotune").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".pyo")
    } | {
        f"autotune/_data/{path.relative_to(ROOT).as_posix()}"
        for folder in ("templates", "search_spaces", "cache")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    assert names == expected


def test_its_ranges_are_those_of_the_other() -> None:
    slim = declared((ROOT / "slim" / "pyproject.toml").read_text())
    full = declared((ROOT / "pyproject.toml").read_text())
    for field in ("version", "requires-python", "license"):
        assert slim[field] == full[field]
    extras = full["optional-dependencies"]
    assert set(slim["dependencies"]) < set(full["dependencies"])
    assert set(slim["optional-dependencies"]["cpu"]) < set(full["dependencies"])
    assert set(slim["optional-dependencies"]["cuda"]) == {*extras["compile"], *extras["cuda"]} - {
        "autotune-kernels[compile]"
    }


@pytest.mark.thorough
def test_it_loads_what_was_tuned_elsewhere(site: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    stored = run(STORE, None, cache)
    assert stored.returncode == 0, stored.stderr
    loaded = run(LOAD, site, cache)
    assert loaded.returncode == 0, loaded.stderr


def test_tuning_says_what_to_install(site: Path, tmp_path: Path) -> None:
    done = run(TUNE, site, tmp_path / "cache")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "autotune.core.errors.MissingDependencyError: tuning and searching need"
    )
    assert "pip install . from a checkout" in last
    told = run(COMMAND.format(["tune"]), site, tmp_path / "cache")
    assert told.returncode == 1
    assert len(told.stderr.strip().splitlines()) == 1
    assert "pip install . from a checkout" in told.stderr


def test_other_commands_work(site: Path, tmp_path: Path) -> None:
    command = COMMAND.format(["cache", "list", "--shipped", "--json"])
    done = run(command, site, tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
