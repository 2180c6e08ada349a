"""Settings of Numba that change code: what is compiled under them is kept apart."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.device import SETTINGS
from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.serving.numba_settings import numba_settings
from autotune.store.matching import toolchain_changes

SOURCE = Source("# a program\n", "gemm", (), "cpu")


def in_process(code: str, **environment: str) -> str:
    """What a process of its own prints with these settings and no others."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-c", code]
    told = subprocess.run(
        command, env={**plain, **environment}, capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


TELL = (
    "import sys; from autotune.serving.numba_settings import numba_settings; "
    "said = numba_settings(); print(said, 'numba' in sys.modules)"
)


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        (
            {"NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "1"},
            "LOOP_VECTORIZE=0 SLP_VECTORIZE=1",
        ),
        ({"NUMBA_OPT": "max"}, "OPT=max"),
        ({"NUMBA_BOUNDSCHECK": "1"}, "BOUNDSCHECK=1"),
        ({"NUMBA_DEBUGINFO": "1"}, "DEBUGINFO_DEFAULT=1"),
        ({"NUMBA_ENABLE_AVX": "0"}, "ENABLE_AVX=0"),
        ({"NUMBA_LOOP_VECTORIZE": "1", "NUMBA_OPT": "3"}, ""),
    ],
)
def test_the_environment_says_what_differs(environment: dict[str, str], settings: str) -> None:
    assert in_process(TELL, **environment) == f"{settings} True".strip()


def test_defaults_are_told_without_numba() -> None:
    assert in_process(TELL, NUMBA_NUM_THREADS="1") == "False"
    assert in_process("import numba; " + TELL) == "True"  # the table has Numba's own defaults


def test_programs_are_kept_apart_and_records_go_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ProgramCache(tmp_path)

    def source() -> Source:
        return replace(SOURCE, settings=numba_settings())

    def written() -> Path:
        return programs.written("gemm", "cpu", "key", source, numba_settings())

    plain, toolchain = programs.write(source(), "gemm"), read_cpu().toolchain
    assert plain.parent == tmp_path / "cpu"
    assert SETTINGS not in toolchain
    assert written() == plain
    monkeypatch.setenv("NUMBA_LOOP_VECTORIZE", "0")
    other = programs.write(source(), "gemm")
    assert other.name == plain.name
    assert other.parent != plain.parent
    assert programs.known("gemm", "cpu", "key", numba_settings()) is None
    assert written() == other
    changes = toolchain_changes(read_cpu().toolchain, toolchain)
    assert changes == ["settings LOOP_VECTORIZE=0 → none"]
    monkeypatch.undo()
    assert numba_settings() == ""
    assert programs.known("gemm", "cpu", "key", numba_settings()) == plain


def test_a_program_may_change_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import config

    monkeypatch.setattr(config, "SLP_VECTORIZE", 1)
    assert numba_settings() == "SLP_VECTORIZE=1"
