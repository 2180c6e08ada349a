"""What `.ci/frameworks.py` installs, and what it leaves out."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).parents[2] / ".ci" / "frameworks.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="it is no part of an archive")


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("ci_frameworks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], list[list[str]]]:
    """Have pip find a wheel of so many megabytes, and a small one; gives the commands it gets."""

    def finding(megabytes: int) -> list[list[str]]:
        commands: list[list[str]] = []
        urls = []
        for name, size in (("a b+cpu.whl", megabytes * 1_000_000), ("small.whl", 10)):
            with (tmp_path / name).open("wb") as file:
                file.truncate(size)
            urls.append((tmp_path / name).as_uri())
        report = json.dumps({"install": [{"download_info": {"url": url}} for url in urls]})

        def run(command: list[str], **options: Any) -> Any:
            commands.append(command)
            return subprocess.CompletedProcess(command, 0, report, "")

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return finding


@pytest.mark.parametrize("megabytes", [299, 300, 4000])
def test_small_builds_are_installed(script: Any, pip: Any, megabytes: int) -> None:
    commands = pip(megabytes)
    reason = script.refusal("torch==2.13.0")
    assert ["--dry-run" in each for each in commands] == [True, False][: 1 + (megabytes < 300)]
    if megabytes < 300:
        assert reason is None
        assert commands[-1][-1] == "torch==2.13.0"
    else:
        assert reason == f"this build takes {megabytes} MB, not less than 300"


def test_what_is_not_known_is_not_installed(script: Any, pip: Any, tmp_path: Path) -> None:
    commands = pip(1)
    (tmp_path / "small.whl").unlink()
    assert script.refusal("jax").startswith("its size is not known")
    assert len(commands) == 1


def test_each_framework_is_told(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["jinja2>=3", 'jax>=0.10; extra == "frameworks"', 'ruff>=0.15; extra == "test"']
    monkeypatch.setattr(script, "requires", lambda name: told)
    monkeypatch.setattr(script, "refusal", lambda requirement: f"{requirement} is too large")
    script.main()
    said = "jax is not installed, its tests are skipped: jax>=0.10 is too large\n"
    assert capsys.readouterr().out == said
