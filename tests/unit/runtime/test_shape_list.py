"""Lists of shapes: what is appended is read, whoever wrote it, and mistakes are named."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import Gemm
from autotune.core.errors import InputError
from autotune.operations.problem import LAYOUTS
from autotune.runtime.shape_list import UsedShape, append, read_shapes

PROBLEMS = st.builds(
    Gemm,
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    out_dtype=st.sampled_from([None, "float32"]),
    layout=st.sampled_from(LAYOUTS),
    accuracy=st.sampled_from(["ieee", "tf32"]),
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
