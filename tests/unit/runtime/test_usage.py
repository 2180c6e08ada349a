"""``AUTOTUNE_RECORD``: programs with threads, forks and early ends leave a list of shapes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from records import record
from textbook_family import tune_textbook

from autotune import Gemm, load, matmul
from autotune.core.session import forget
from autotune.runtime import product_log
from autotune.runtime.shape_list import read_shapes
from autotune.runtime.usage import VARIABLE
from autotune.store import TuningCache

if TYPE_CHECKING:
    from collections.abc import Iterator

PROLOGUE = """
import multiprocessing, os, sys, threading
import numpy as np
from autotune import Gemm, load, matmul
x = np.ones((4, 4), np.float32)
def use(times):
    for _ in range(times):
        matmul(x, x)
"""


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for the module: what was compiled for one test serves the others."""
    cache, families = (tmp_path_factory.mktemp(name) for name in ("cache", "families"))
    tune_textbook(families, cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(cache))
        patch.setenv("AUTOTUNE_FAMILIES", str(families))
        patch.setenv("AUTOTUNE_BACKGROUND", "0")
        yield cache


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shapes.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def weights(path: Path) -> dict[str, float]:
    return {each.problem.label: each.weight for each in read_shapes(path)}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_calls_are_counted_and_look_ups_without_any(listed: Path) -> None:
    done = run(
        "use(20)\n"
        "kernel = load(Gemm(3, 4, 2, layout='nt'), 'cpu', match='nearest')\n"
        "for _ in range(2): load(Gemm(5, 4, 2), 'cpu', match='nearest')\n"
        "matmul(x[:3], np.ones((2, 4), np.float32).T)\n"
        "matmul(np.ones((5, 3, 4), np.float32), x)\n"
        "matmul(x.astype(int), x.astype(int))\n"
    )
    assert done.returncode == 0, done.stderr
    assert weights(listed) == {
        "4x4x4-float32": 20,
        "3x4x2-float32-nt": 1,
        "15x4x4-float32": 1,
        "5x4x2-float32": 1,
    }
    assert {each.target for each in read_shapes(listed)} == {"cpu"}
    again = run("use(3)")
    assert again.returncode == 0, again.stderr
    assert weights(listed)["4x4x4-float32"] == 23


def test_calls_that_are_refused_do_not_count(listed: Path) -> None:
    done = run(
        "kernel = load(Gemm(4, 4, 4), 'cpu', match='nearest')\n"
        "try: kernel(x[:3], x)\n"
        "except ValueError: pass\n"
    )
    assert done.returncode == 0, done.stderr
    assert weights(listed) == {"4x4x4-float32": 1}


def test_threads_lose_nothing(listed: Path) -> None:
    done = run(
        "use(1)\n"
        "threads = [threading.Thread(target=use, args=(500,)) for _ in range(8)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
    )
    assert done.returncode == 0, done.stderr
    assert weights(listed) == {"4x4x4-float32": 4001}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_count_for_themselves(listed: Path, tmp_path: Path, method: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        PROLOGUE + "if __name__ == '__main__':\n"
        "    use(10)\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    children = [context.Process(target=use, args=(100,)) for _ in range(2)]\n"
        "    for child in children: child.start()\n"
        "    for child in children: child.join()\n"
        "    use(7)\n"
    )
    subprocess.run([sys.executable, script], check=True)
    assert weights(listed) == {"4x4x4-float32": 217}


def test_a_plain_fork_counts_each_call_once(listed: Path) -> None:
    done = run("use(10)\npid = os.fork()\nuse(100 if pid == 0 else 5)\npid and os.wait()\n")
    assert done.returncode == 0, done.stderr
    assert weights(listed) == {"4x4x4-float32": 115}


def test_a_process_that_is_killed_loses_less_than_half(listed: Path) -> None:
    done = run(f"use(1000)\nos.kill(os.getpid(), {int(signal.SIGKILL)})")
    assert done.returncode == -signal.SIGKILL
    assert 500 < weights(listed)["4x4x4-float32"] <= 1001


def test_a_list_that_cannot_be_written_ends_no_program(tmp_path: Path) -> None:
    os.environ[VARIABLE] = str(tmp_path / "missing" / "shapes.jsonl")
    try:
        done = run("use(10)\nload(Gemm(3, 3, 3), 'cpu', match='nearest')")
    finally:
        del os.environ[VARIABLE]
    assert done.returncode == 0
    assert done.stderr.count("shapes are not recorded") == 1


def test_no_line_is_added_to_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record())
    before = cache.path.read_bytes()
    for variable in (VARIABLE, product_log.VARIABLE):
        monkeypatch.setenv(variable, str(cache.path))
        done = run("use(2)")
        assert "cannot be written (it is an SQLite database)" in done.stderr
        monkeypatch.delenv(variable)
    assert cache.path.read_bytes() == before


def test_calls_of_what_computes_meanwhile_are_counted_too(listed: Path) -> None:
    kernel = load(Gemm(4, 4, 4), "cpu", match="nearest")
    compiled = kernel.bound
    kernel.become(lambda *operands, **options: "meanwhile", "being compiled", passing=True)
    passing = kernel.bound
    x = np.eye(4, dtype=np.float32)
    assert (passing(x, x), kernel(x, x)) == ("meanwhile", "meanwhile")
    kernel.become(compiled, "")
    np.testing.assert_array_equal(passing(x, x), x)  # whoever holds it gets what came
    assert weights(listed)["4x4x4-float32"] >= 2


def test_kernels_are_what_they_are_without_it(
    listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = load(Gemm(4, 4, 4), "cpu", match="nearest")
    monkeypatch.delenv(VARIABLE)
    plain = load(Gemm(4, 4, 4), "cpu", match="nearest")
    assert repr(counted) == repr(plain)
    assert type(counted) is type(plain)
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(counted(x, x), matmul(x, x))
    assert weights(listed) == {"4x4x4-float32": 1}
