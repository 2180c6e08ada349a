"""What tests share: programs compiled once, in caches that do not disturb each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_programs import SharedPrograms

from autotune.families.compiled_files import CompiledFiles
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source

TEXT = """import numba


@numba.njit("int64(int64)", cache=True)
def gemm(x):
    return x + {added}
"""


def compiled(cache: Path, added: int = 1) -> Path:
    source = Source(TEXT.format(added=added), "gemm", (), "cpu")
    path = ProgramCache(cache / "programs").write(source, "tiny")
    assert load_module(path).gemm(2) == 2 + added
    return path


def times(path: Path) -> dict[str, int]:
    folder = path.parent / "__pycache__"
    return {each.name: each.stat().st_mtime_ns for each in folder.glob(f"{path.stem}.*.nb?")}


def test_a_later_cache_has_what_an_earlier_one_compiled(tmp_path: Path) -> None:
    shared = SharedPrograms(tmp_path / "pool")
    with shared.at(tmp_path / "first") as first:
        path = compiled(first)
        before = times(path)
        assert len(before) == 2
        with shared.at(tmp_path / "second") as second:  # while the first is in use
            copy = second / path.relative_to(first)
            assert times(copy) == before
            compiled(second)
            assert times(copy) == before, "nothing was compiled again"
    with shared.at(tmp_path / "third") as third:
        compiled(third)
        assert times(third / path.relative_to(first)) == before


def test_what_one_cache_does_is_nothing_to_another(tmp_path: Path) -> None:
    shared = SharedPrograms(tmp_path / "pool")
    with shared.at(tmp_path / "first") as first:
        path = compiled(first)
    with shared.at(tmp_path / "second") as second, shared.at(tmp_path / "third") as third:
        copies = [each / path.relative_to(first) for each in (second, third)]
        for file in copies[0].parent.joinpath("__pycache__").glob(f"{path.stem}.*.nb?"):
            file.write_bytes(b"damaged")
        copies[0].write_text("damaged")
        assert copies[1].read_text() == TEXT.format(added=1)
        assert CompiledFiles(copies[1]).known == CompiledFiles(path).known
        compiled(third)
        assert times(copies[1]) == times(path)


@pytest.mark.parametrize("count", [1, 3])
def test_programs_of_several_caches_come_together(tmp_path: Path, count: int) -> None:
    shared = SharedPrograms(tmp_path / "pool")
    for number in range(count):
        with shared.at(tmp_path / str(number)) as cache:
            compiled(cache, added=number)
    with shared.at(tmp_path / "last") as last:
        assert len(list((last / "programs" / "cpu").glob("tiny_*.py"))) == count
