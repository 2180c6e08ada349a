"""Kernels that somebody else wrote are verified and timed, and cheats are refused."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from autotune.checking import Checker, Verdict
from autotune.cli import main
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring import rounds
from autotune.store import strict_json
from autotune.tuning.context import TuningContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOPS = """
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += A[i, j] * x[j]
        y[i] = total
"""
RIGHT = f"def matvec(A, x, y):{LOOPS}"
REQUEST: dict[str, Any] = {
    "kernel": RIGHT,
    "reference": "A @ x",
    "operands": {"A": "MxN", "x": "N"},
    "out": {"y": "M"},
    "shape": "300x200",
    "dtype": "float64",
    "threads": 1,
    "timeout": 250,
}
REMEMBERS = """
import numba

def matvec(A, x, y):
    large = A.shape[0] == 300
    with numba.objmode(done="boolean"):
        done = large and hasattr(numba, "seen")
        if done:
            y[:] = numba.seen
    if not done:
        loops(A, x, y)
    with numba.objmode():
        if large:
            setattr(numba, "seen", y.copy())
"""
LOOPS_BEFORE = f"def loops(A, x, y):{LOOPS}\n"
CHEATS = {
    "is wrong": (RIGHT.replace("0.0", "1e-3"), "expected"),
    "keeps the last result": (
        "import numpy as np\ndef matvec(A, x, y):\n"
        f"    if A.shape[0] > 99 and not np.isnan(y.sum()):\n        return{LOOPS}",
        "y[",
    ),
    "remembers results": (LOOPS_BEFORE + REMEMBERS, "y["),
    "writes an input": (f"{RIGHT}    A[0, 0] = total\n", "modified A, an input"),
    "changes its process": (
        "import numba\n"
        f"{RIGHT}    with numba.objmode():\n        numba.core.config.os.chdir('/')\n",
        "changed the process",
    ),
    "leaves an element": (RIGHT.replace("A.shape[0])", "A.shape[0] - 1)"), "unwritten"),
    "does not compile": (RIGHT.replace("0.0", "A.nothing"), "does not compile"),
}
OTHERS = ("changes its process", "leaves an element", "does not compile")
"""What trials of any kernel notice, as tests of measuring show."""


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checker]:
    with Checker(cache=tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.mark.parametrize("reference", ["A @ x", "def wanted(A, x):\n    return A @ x\n"])
def test_a_right_kernel_is_verified_and_timed_beside_its_reference(
    reference: str, checker: Checker
) -> None:
    answer = checker.answer({**REQUEST, "id": 7, "reference": reference})
    assert (answer["id"], answer["verified"], answer["outcome"]) == (7, True, "ok"), answer
    low_s, high_s = answer["interval_s"]
    assert 0 < low_s <= answer["median_s"] <= high_s
    assert answer["ratio"] > 0
    assert "NumPy" in answer["beside"] or "wanted" in answer["beside"]


@pytest.mark.thorough
def test_a_reference_that_was_disturbed_gives_no_ratio_and_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounds, "DISAGREE", 0.0)  # no two times are so near each other
    (tmp_path / "mine.py").write_text(RIGHT)
    command = ["check", f"{tmp_path}/mine.py:matvec", "--operand", "A=MxN", "--operand", "x=N"]
    command += ["--out", "y=M", "--shape", "30x20", "--cache", str(tmp_path / "cache")]
    assert main([*command, "--threads", "1", "--reference", "A @ x"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("verified, ")
    assert ", no ratio: the library was disturbed: it took " in told


@pytest.mark.parametrize(
    "cheat",
    [pytest.param(each, marks=pytest.mark.thorough if each in OTHERS else []) for each in CHEATS],
)
def test_a_cheat_is_refused_with_what_it_did_and_the_next_is_judged(
    cheat: str, checker: Checker
) -> None:
    text, told = CHEATS[cheat]
    answer = checker.answer({**REQUEST, "kernel": text})
    assert not answer["verified"], answer
    assert told in answer["reason"], answer
    assert answer["median_s"] is None


def test_a_value_of_a_parameter_is_what_is_checked(checker: Checker) -> None:
    text = f"def matvec(A, x, y, upto):{LOOPS.replace('A.shape[0]', 'min(upto, A.shape[0])')}"
    answers = [
        checker.answer({**REQUEST, "kernel": text, "parameters": {"upto": upto}})
        for upto in (10**6, 7)
    ]
    assert [each["verified"] for each in answers] == [True, False], answers


IN_PLACE = {
    "reference": "def twice(x):\n    return 2 * x\n",
    "operands": {"x": "N"},
    "out": {"x": "N"},
    "shape": "300",
}


@pytest.mark.parametrize("short", [0, 1])
def test_a_kernel_may_change_an_operand_in_place(short: int, checker: Checker) -> None:
    text = f"def twice(x):\n    for i in range(x.shape[0] - {short}):\n        x[i] *= 2\n"
    answer = checker.answer({**REQUEST, **IN_PLACE, "kernel": text})
    assert answer["verified"] == (not short), answer
    assert answer["outcome"] == ("wrong_result" if short else "ok")


def test_what_a_described_kernel_says_itself_must_be_left_out(
    tmp_path: Path, checker: Checker
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import autotune\n\n@autotune.kernel(operands={'x': 'N'}, out={'y': 'N'}, "
        "reference='2 * x', parameters={'by': [2]})\n"
        "def twice(x, y, by):\n    y[:] = by * x\n"
    )
    request = {"kernel": f"{file}:twice", "shape": "30"}
    answer = checker.answer({**request, "reference": "3 * x"})
    assert answer["reason"] == "reference must be left out: kernel twice says it"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kernel": "import os\n" + RIGHT}, "line 1 must be a constant"),
        ({"kernel": RIGHT + "\nprint('run here')\n"}, "must be a constant"),
        ({"kernel": "@print\n" + RIGHT}, "no decorator but njit"),
        ({"kernel": "from numba import njit\n@njit('f8(f8)')\n" + RIGHT}, "no decorator but njit"),
        ({"kernel": "x = 1\n"}, "must define a function"),
        ({"kernel": "def (:\n"}, "invalid syntax"),
        ({"kernel": "no.such.module:f"}, "cannot be imported"),
        ({"kernel": 3}, "kernel must be text, got 3"),
        ({"shape": "3x4x5"}, "3x4x5"),
        ({"fast": True}, "a key of a request must be one of"),
        ({"timeout": -1}, "timeout"),
        ({"operands": [1]}, "operands"),
        ({"parameters": 3}, "parameters"),
        ({"parameters": {"rows": 2}}, "rows"),
        ({"shape": f"{10**7}x{10**7}"}, "operands cannot be made: MemoryError"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_line(
    changed: dict[str, Any], told: str, checker: Checker, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = checker.answer({**REQUEST, **changed})
    assert (answer["verified"], answer["outcome"]) == (False, "refused")
    assert told in answer["reason"], answer
    assert "\n" not in answer["reason"]
    assert answer.keys() == {"id", *Verdict(Measurement(Outcome.OK)).document}
    assert "run here" not in capsys.readouterr().out


def test_the_command_answers_each_line_of_its_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = json.dumps({**REQUEST, "id": "a", "shape": "9x8"})
    lines = ["no JSON", '{"id": NaN}', "", "[1]", request]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert main(["check", "-", "--cache", str(tmp_path / "cache")]) == 0
    assert not (tmp_path / "cache/own").exists()
    assert [*(tmp_path / "temporary").iterdir()] == []
    answers = [strict_json.parse(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["verified"] for each in answers] == [False, False, False, True]
    assert answers[3]["id"] == "a"
    assert "not valid JSON" in answers[0]["reason"]


@pytest.mark.thorough
def test_a_check_that_is_interrupted_leaves_no_family_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def interrupted(*_: object, extra_families: list[Path], **options: object) -> None:
        made.extend(each for each in extra_families if each.is_dir())
        raise KeyboardInterrupt

    monkeypatch.setattr(TuningContext, "of", interrupted)
    with pytest.raises(KeyboardInterrupt), Checker(cache=tmp_path) as checker:
        checker.answer(REQUEST)
    assert len(made) == 1
    assert not made[0].exists()
    assert not made[0].is_relative_to(tmp_path)
    assert not made[0].parents[1].exists()


@pytest.mark.thorough
def test_the_command_checks_functions_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(f"{RIGHT}\ndef wanted(A, x):\n    return A @ x\n")
    command = ["check", f"{tmp_path}/mine.py:matvec", "--operand", "A=MxN", "--operand", "x=N"]
    command += ["--out", "y=M", "--shape", "30x20", "--cache", str(tmp_path / "cache")]
    command += ["--threads", "1", "--dtype", "float64"]
    assert main([*command, "--reference", f"{tmp_path}/mine.py:wanted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]
    assert main([*command, "--reference", "A @ x + 1"]) == 1
    assert capsys.readouterr().out.startswith("wrong_result: at ")
