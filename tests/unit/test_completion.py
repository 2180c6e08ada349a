"""What shells complete: a real bash, and zsh and fish where they are, run what is printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from records import record

from autotune.cli import main
from autotune.cli.completion import SHELLS, command_of
from autotune.core.paths import CacheLocations
from autotune.store import TuningCache

ROOT = Path(__file__).parents[2]

argcomplete = pytest.importorskip("argcomplete", reason="pip install argcomplete")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the command, for the shell's path."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "autotune"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:] = {[str(ROOT), *sys.path]!r}\n"
        "from autotune.__main__ import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def script(place: Path) -> str:
    """What is printed for bash."""
    command = [str(place / "autotune"), "completion", "bash"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# The shell's own function is called as the shell does when TAB is pressed.
BASH = """
eval "$SCRIPT"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
IFS=' ' read -ra COMP_WORDS <<< "$1"
[[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { return 1; }
_python_argcomplete autotune
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(place: Path, script: str, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(
        [bash, "--norc", "--noprofile", "-c", BASH, "bash", line],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "SCRIPT": script},
        check=True,
    )
    assert not done.stderr, done.stderr
    return [each.strip() for each in done.stdout.split("\n") if each.strip()]


@pytest.mark.parametrize(
    ("line", "offered", "others"),
    [
        ("autotune ", {"tune", "doctor", "completion"}, {"--version"}),
        ("autotune cache ", {"list", "verify"}, {"tune"}),
        ("autotune tune --sh", {"--shape", "--shapes"}, {"--dtype"}),
        ("autotune tune --target ", {"cpu", "cuda", "hybrid"}, {"goto"}),
        ("autotune tune --target cpu --family ", {"goto", "simd"}, {"volkov", "rows"}),
        ("autotune space ", {"goto", "volkov", "summa"}, {"gpu"}),
        ("autotune tune --preset ", {"cpu", "gpu"}, {"direct"}),
        ("autotune emit goto --preset ", {"direct"}, {"cpu"}),
        ("autotune space --device h", {"h100", "h200"}, {"t4"}),
        ("autotune tune --operands ", {"root", "blocks"}, {"cpu"}),
        ("autotune --quiet completion ", {"bash", "zsh", "fish"}, {"tune"}),
    ],
)
def test_bash(place: Path, script: str, line: str, offered: set[str], others: set[str]) -> None:
    found = set(completed(place, script, line))
    assert found >= offered
    assert not found & others


def test_bash_knows_records_and_files(place: Path, script: str, tmp_path: Path) -> None:
    stored = record()
    TuningCache(CacheLocations.at().create().database).add(stored)
    assert completed(place, script, "autotune cache show ") == [stored.id]
    assert completed(place, script, f"autotune emit --record {stored.id[:3]}") == [stored.id]
    (tmp_path / "some.jsonl").touch()
    [offered] = completed(place, script, f"autotune cache import {tmp_path}/so")
    assert offered == f"{tmp_path}/some.jsonl"


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_of_their_shells(
    place: Path, shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([found, "-n", str(script)], check=True)


def test_fish(place: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")
    done = subprocess.run(
        [
            *(fish, "--no-config", "-c"),
            "autotune completion fish | source; complete -C 'autotune tune --target '",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"},
        check=True,
    )
    assert {line.split("\t")[0].strip() for line in done.stdout.splitlines()} >= {"cpu", "cuda"}


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("autotune", ""),
        ("autotune ", ""),
        ("autotune --js", ""),
        ("autotune tune --shape ", "tune"),
        ("autotune --json --cache x tune --t", "tune"),
    ],
)
def test_the_command_of_a_line(line: str, command: str) -> None:
    assert command_of(line) == command


def test_other_shells_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "fsh"])
    assert stop.value.code == 2
    assert "did you mean 'fish'?" in capsys.readouterr().err
