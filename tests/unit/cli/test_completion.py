"""What shells complete: a real bash, and zsh and fish where they are, run what is printed."""

from __future__ import annotations

import json
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
from autotune.search import open_study
from autotune.space import SearchSpace
from autotune.store import TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

ROOT = Path(__file__).parents[3]

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


# What the shell's own function runs when TAB is pressed, for line after line.
TABS = """
import json, os, sys
from pathlib import Path
from autotune import cli
answer = Path(sys.argv[1])
os.environ |= {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_TYPE": "9"}
offered = []
for line in sys.argv[2:]:
    os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    try:
        cli.main([])
    except SystemExit as stop:
        assert stop.code == 0
    offered.append([each.strip() for each in answer.read_text().split(chr(11))])
print(json.dumps(offered))
"""


def test_what_is_offered(tmp_path: Path) -> None:
    stored = record()
    TuningCache(CacheLocations.at().create().database).add(stored)
    (tmp_path / "some.jsonl").touch()
    for name in ("my study", "other"):
        open_study(SearchSpace({"x": [1]}), None, name, CacheLocations.at().studies).ask()
    best = make_target(None).name
    here = {*load_families(target=best)}
    elsewhere = {*load_families(target="mpi")} - here
    expected: dict[str, tuple[set[str], set[str]]] = {
        "autotune ": ({"tune", "doctor", "completion"}, {"--version"}),
        "autotune cache ": ({"list", "verify"}, {"tune"}),
        "autotune tune --sh": ({"--shape", "--shapes"}, {"--dtype"}),
        "autotune tune --target ": ({"cpu", "cuda", "hybrid"}, {"goto"}),
        "autotune tune --family ": (here, elsewhere),
        "autotune emit goto --set ": ({"sm=", "threads="}, {"some.jsonl"}),
        "autotune emit goto --set threads=": ({"threads=1", "threads=2"}, {"threads="}),
        "autotune replay --study ": ({"my\\ study", "other"}, {"some.jsonl"}),
        "autotune report ": ({"my\\ study", "other"}, set()),
        f"autotune report {tmp_path}/so": ({f"{tmp_path}/some.jsonl"}, {"other"}),
        "autotune tune --study o": ({"other"}, {"my study"}),
        "autotune tune --target cpu --family ": ({"goto", "simd"}, {"volkov", "rows"}),
        "autotune space ": ({"goto", "volkov", "summa"}, {"gpu"}),
        "autotune tune --preset ": ({"cpu", "gpu"}, {"direct"}),
        "autotune emit goto --preset ": ({"direct"}, {"cpu"}),
        "autotune space --device h": ({"h100", "h200"}, {"t4"}),
        "autotune tune --layout ": ({"nn", "nt", "tn", "tt"}, set()),
        "autotune tune --sampler ": ({"auto", "tpe"}, set()),
        "autotune tune --operands ": ({"root", "blocks"}, {"cpu"}),
        "autotune --quiet completion ": ({*SHELLS}, {"tune"}),
        "autotune cache show ": ({stored.id}, set()),
        f"autotune emit --record {stored.id[:3]}": ({stored.id}, set()),
        f"autotune cache import {tmp_path}/so": ({f"{tmp_path}/some.jsonl"}, set()),
    }
    done = subprocess.run(
        [sys.executable, "-c", TABS, str(tmp_path / "answer"), *expected],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for offered, (line, (among, others)) in zip(
        json.loads(done.stdout), expected.items(), strict=True
    ):
        assert among <= {*offered}, line
        assert not others & {*offered}, line


def test_samplers_are_those_there_are() -> None:
    from autotune.cli.completion import _SAMPLERS
    from autotune.search import sampler_names

    assert set(_SAMPLERS) == set(sampler_names())


# The shell's own function is called as the shell does when TAB is pressed.
BASH = """
eval "$(autotune completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
IFS=' ' read -ra COMP_WORDS <<< "$1"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { return 1; }
_python_argcomplete autotune
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash(place: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(
        [bash, "--norc", "--noprofile", "-c", BASH, "bash", "autotune tune --sh"],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"},
        check=True,
    )
    assert not done.stderr, done.stderr
    assert {each.strip() for each in done.stdout.splitlines()} == {"--shape", "--shapes"}


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
