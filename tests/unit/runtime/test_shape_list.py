"""Lists of shapes: mistakes are named, and whatever program leaves one, it is read."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record
from textbook_family import tune_textbook

from autotune import Gemm, load, matmul
from autotune.core.errors import InputError
from autotune.core.session import forget
from autotune.operations.problem import LAYOUTS
from autotune.runtime import product_log
from autotune.runtime.shape_list import UsedShape, append, read_shapes
from autotune.runtime.usage import VARIABLE
from autotune.store import TuningCache

if TYPE_CHECKING:
    from collections.abc import Iterator


DTYPES = ("float32", "float64", "bfloat16")
KINDS = [*itertools.product(DTYPES, ("ieee", "strassen")), ("float32", "tf32")]


def problem(sizes: tuple[int, int, int], kind: tuple[str, str], **how: Any) -> Gemm:
    dtype, accuracy = kind
    return Gemm(*sizes, dtype, accuracy=accuracy, **how)


PROBLEMS = st.builds(
    problem,
    st.tuples(*[st.integers(1, 10**6)] * 3),
    st.sampled_from(KINDS),
    out_dtype=st.sampled_from([None, "float32"]),
    layout=st.sampled_from(LAYOUTS),
    threads=st.sampled_from([None, 1, 4]),
)
USED = st.builds(UsedShape, PROBLEMS, st.sampled_from(["", "cpu", "cuda"]), st.integers(1, 1000))


@given(st.lists(USED, min_size=1, max_size=8))
def test_what_is_appended_is_read_and_added_up(
    tmp_path_factory: pytest.TempPathFactory, used: list[UsedShape]
) -> None:
    path = tmp_path_factory.mktemp("list") / "shapes.jsonl"
    append(path, used[:3])
    append(path, used[3:])
    weights: dict[Any, float] = {}
    for each in used:
        place = (each.problem, each.target)
        weights[place] = weights.get(place, 0) + each.weight
    found = read_shapes(path)
    assert {(each.problem, each.target): each.weight for each in found} == weights
    assert [each.weight for each in found] == sorted(weights.values(), reverse=True)


def test_a_list_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"shape": "64x32x16"}\n\n{"shape": "64x32x16", "weight": 2.5, "dtype": "fp32"}\n'
        '{"operation": "stencil", "shape": "8x8"}\n{"shape": "8x8x8", "layout": "nt"}'
    )
    assert read_shapes(path) == [
        UsedShape(Gemm(64, 32, 16), "", 3.5),
        UsedShape(Gemm(8, 8, 8, layout="nt"), "", 1),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "a line must be an object"),
        ("{}", "shape must be a text like MxNxK"),
        ('{"shape": "64x64"}', "a shape is MxNxK"),
        ('{"shape": "64x64x0"}', "a shape is MxNxK"),
        ('{"shape": "8x8x8", "wieght": 1}', "a key must be one of .* did you mean 'weight'"),
        ('{"shape": "8x8x8", "weight": 0}', "weight must be a number above 0"),
        ('{"shape": "8x8x8", "weight": true}', "weight must be a number above 0"),
        ('{"shape": "8x8x8", "weight": NaN}', "numbers must be finite"),
        ('{"shape": "8x8x8", "dtype": "int8"}', "dtype must be one of"),
        ('{"shape": "8x8x8", "layout": "xx"}', "layout must be one of"),
        ('{"shape": "8x8x8", "threads": 0}', "threads must be a whole number"),
        ('{"shape": "8x8x8", "target": 3}', "and target a name"),
        ('{"shape": "8x8x8"', "not valid JSON"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "shapes.jsonl"
    path.write_text(f'{{"shape": "8x8x8"}}\n{line}\n')
    with pytest.raises(InputError, match=said) as caught:
        read_shapes(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_lists(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl cannot be read: No such file"):
        read_shapes(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(InputError, match="has no shapes of gemm"):
        read_shapes(empty)
    empty.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="must be UTF-8 text"):
        read_shapes(empty)


def test_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "shapes.jsonl"
    used = UsedShape(Gemm(8, 8, 8), "cpu", 1)
    append(path, [used])
    with path.open("a") as file:
        file.write('{"shape": "16x16')
    assert read_shapes(path) == [used]
    path.write_text('{"shape": "16x16')
    with pytest.raises(InputError, match=":1: not valid JSON"):
        read_shapes(path)


def test_a_full_disk_leaves_no_half_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shapes.jsonl"
    used = UsedShape(Gemm(8, 8, 8), "cpu", 1)
    append(path, [used])
    write = os.pwrite

    def fills_up(descriptor: int, text: bytes, place: int) -> int:
        if len(text) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, text[:-10], place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fills_up)
        with pytest.raises(OSError, match="No space"):
            append(path, [used])
    append(path, [used])
    assert read_shapes(path) == [UsedShape(used.problem, "cpu", 2)]


def test_threads_share_a_list(tmp_path: Path) -> None:
    path = tmp_path / "shapes.jsonl"

    def write(number: int) -> None:
        for _ in range(50):
            append(path, [UsedShape(Gemm(number, 8, 8), "cpu", 1)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.problem.shape[0]: each.weight for each in read_shapes(path)} == dict.fromkeys(
        range(1, 5), 50
    )


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "shapes.jsonl"
    path.write_bytes('\ufeff{"shape": "4x5x6"}\r\n'.encode())
    assert [each.problem.label for each in read_shapes(path)] == ["4x5x6-float32"]


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


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.thorough), "forkserver"]
)
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
        done = run("use(10)\nload(Gemm(4, 4, 4), 'cpu', match='nearest')")
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
