"""What is installed is what is in the checkout: sdist, wheel, and the editable layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

DESCRIBE = """
import json
from pathlib import Path
import autotune
from autotune.targets.families import find_families
from autotune.core.paths import data_dir

names = ("templates", "search_spaces", "cache", "datasets")
print(json.dumps({
    "package": autotune.__file__,
    "folders": {name: str(data_dir(name)) for name in names},
    "files": sorted(
        f"{name}/{path.relative_to(data_dir(name)).as_posix()}"
        for name in names for path in data_dir(name).rglob("*") if path.is_file()
    ),
    "families": {f"{f.operation}/{f.target}/{f.name}": f.digest for f in find_families()},
}))
"""


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_sdist_wheel_and_installation_hold_the_same_families(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    build = ("-m", "build", "--no-isolation", "--outdir", str(dist))
    run(*build, str(CHECKOUT), cwd=tmp_path)  # an sdist, then the wheel from that sdist
    [wheel] = dist.glob("*.whl")
    assert len(list(dist.glob("*.tar.gz"))) == 1

    checkout = json.loads(run("-c", DESCRIBE, cwd=tmp_path, PYTHONPATH=str(CHECKOUT)))
    packed = zipfile.ZipFile(wheel).namelist()
    assert {f"autotune/_data/{file}" for file in checkout["files"]} <= set(packed)
    assert {"autotune/py.typed", "autotune/cpu/threads.ll"} <= set(packed)
    for asset in ("page.html.j2", "page.css", "page.js"):
        assert f"autotune/reporting/assets/{asset}" in packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)

    site = tmp_path / "site"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*install, "--target", str(site), str(wheel), cwd=tmp_path)
    installed = json.loads(run("-c", DESCRIBE, cwd=tmp_path, PYTHONPATH=str(site)))
    assert Path(installed["package"]).is_relative_to(site)
    for folder in installed["folders"].values():
        assert Path(folder).is_relative_to(site / "autotune" / "_data")
    assert installed["files"] == checkout["files"]
    assert installed["families"] == checkout["families"]
    assert installed["families"]


def test_a_checkout_uses_its_own_folders(tmp_path: Path) -> None:
    checkout = json.loads(run("-c", DESCRIBE, cwd=tmp_path, PYTHONPATH=str(CHECKOUT)))
    assert Path(checkout["package"]).parent == CHECKOUT / "autotune"
    assert checkout["folders"] == {
        name: str(CHECKOUT / name) for name in ("templates", "search_spaces", "cache", "datasets")
    }
