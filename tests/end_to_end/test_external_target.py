"""A target that another package brings works in every command, with options of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "toy"))

from installed import install

SHAPE = ("--shape", "40x30x20")
TOY = ("--target", "toy", "--order", "columns", "--panel-limit", "32")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return install(folder)


def run(site: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A process in which the package is installed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def autotune(site: Path, *words: str) -> Any:
    return json.loads(run(site, "-m", "autotune", *words, "--json", "-q").stdout)


def test_every_command_works_with_it(site: Path) -> None:
    [counted] = autotune(site, "space", *TOY, *SHAPE)
    assert counted["family"] == "panels"
    assert counted["valid"] == 6  # panels of 1, 4 and 16, either way

    emitted = autotune(site, "emit", "panels", *TOY, *SHAPE, "--set", "panel=4")
    assert emitted["target"] == "toy"
    assert "PANEL = 4" in emitted["source"]

    assert autotune(site, "device", *TOY)["fingerprint"]["fields"] == {
        "order": "columns",
        "panel": 32,
    }
    families = autotune(site, "families", "--target", "toy")
    assert [each["family"] for each in families] == ["panels"]

    [tuned] = autotune(site, "tune", *TOY, *SHAPE, "--trials", "3", "--timeout", "60")
    assert tuned["target"] == "toy"
    rows = autotune(site, "bench", *TOY, *SHAPE, "--ladder")
    assert {row["kernel"] for row in rows} >= {"NumPy", "tuned (panels)", "panels (default)"}
    [swept] = autotune(site, "sweep", *TOY, *SHAPE)
    assert swept["complete"]

    [kept] = autotune(site, "cache", "list")
    assert (kept["target"], kept["id"]) == ("toy", tuned["id"])
    shown = autotune(site, "cache", "show", tuned["id"])
    assert shown["target"] == "toy"
    verified = autotune(site, "cache", "verify")
    assert [row["status"] for row in verified["records"]] == ["ok"]
    again = autotune(site, "emit", "--record", tuned["id"])
    assert again["configuration"] == tuned["best"]["configuration"]


def test_what_tune_prints_loads_it(site: Path) -> None:
    words = ("tune", *TOY, *SHAPE, "--trials", "2", "--timeout", "60", "-q")
    told = run(site, "-m", "autotune", *words).stdout
    start = told.index("load it   ") + len("load it   ")
    program = "\n".join(line.strip() for line in told[start:].splitlines())
    program += (
        "\nimport numpy\na, b = numpy.ones((40, 30), 'f4'), numpy.ones((30, 20), 'f4')"
        "\nassert (kernel(a, b) == 30).all(); print(kernel.target, kernel.match)"
    )
    assert 'order="columns", panel_limit=32' in program.replace("\n", " ")
    assert run(site, "-c", program).stdout.split() == ["toy", "EXACT"]


def test_its_options_are_its_own(site: Path) -> None:
    command = ("-m", "autotune", "space", *SHAPE)
    told = run(site, *command, "--target", "cpu", "--panel-limit", "3", code=2).stderr
    assert "--panel-limit is for --target toy, got 3 with target cpu" in told
    told = run(site, *command, "--target", "toy", "--gpus", "3", code=2).stderr
    assert "--gpus is for --target hybrid, got 3 with target toy" in told
    told = run(site, *command, "--target", "toy", "--device", "0", code=2).stderr
    assert "--device" in told
    told = run(site, "-m", "autotune", "tune", "--help-all").stdout
    assert "with --target mpi or hybrid or toy only" in told
    assert "hybrid: host (the default)" in " ".join(told.split())
    assert "toy: any word" in told


def test_a_package_that_is_broken_keeps_nobody_from_work(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, name="broken", value="no_such_module:Target")
    done = run(site, "-m", "autotune", "space", *SHAPE, "--target", "cpu")
    assert "target 'broken' cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(site, "-m", "autotune", "space", *SHAPE, "--target", "broken", code=2)
    assert "mend or uninstall its package" in done.stderr
    install_as = tmp_path / "other"
    install_as.mkdir()
    install(install_as, name="renamed")  # the class says that it is "toy"
    done = run(install_as, "-m", "autotune", "space", *SHAPE, "--target", "renamed", code=2)
    assert "must be a subclass of autotune.targets.Target with that name" in done.stderr
