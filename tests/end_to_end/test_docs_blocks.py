"""Python blocks of the documentation, run as a reader would: a page's in order, in one program.

A block below a comment ``<!-- run: no, REASON -->`` is compiled only. One that imports a library
which is not installed is left out.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from build_site import ROOT, pages

BLOCK = re.compile(
    r"(?:^<!-- run: (?P<how>[^\n]*) -->\n)?^```python\n(?P<code>.*?)^```$", re.M | re.S
)
OPTIONAL = re.compile(r"^(?:import|from) (torch|jax|mpi4py)\b", re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's, of what it uses itself
]


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        line: where its code begins.
        code: what it says.
        how: what the comment above it says; None where there is none.
    """

    line: int
    code: str
    how: str | None

    def compiled(self, page: Path) -> CodeType:
        # Few trials are enough to see that it works, but need time where other tests run.
        code = re.sub(r"\btimeout=\d+", "timeout=60", self.code)
        code = re.sub(r"\btrials=\d{2,}", "trials=4", code)
        return compile("\n" * (self.line - 1) + code, str(page), "exec")

    @property
    def missing(self) -> set[str]:
        named = set(OPTIONAL.findall(self.code))
        return {name for name in named if importlib.util.find_spec(name) is None}


def blocks_of(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        yield Block(line, match["code"], match["how"])


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


BLOCKS = {page: list(blocks_of(page.read_text(encoding="utf-8"))) for page in pages()}
PAGES = [page for page, blocks in BLOCKS.items() if blocks]
FIRST = ROOT / "README.md"
"""What everybody reads; the other pages' blocks take a minute together."""


def run_where_there_is_time(page: Path) -> Any:
    marks = [] if page == FIRST else [pytest.mark.thorough]
    return pytest.param(page, marks=marks, id=named(page))


def test_every_block_is_found() -> None:
    for page, blocks in BLOCKS.items():
        fences = re.findall(r"^\s*```py", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(blocks) == len(fences), named(page)
    assert {"README.md", "docs/tutorial.md", "docs/frameworks.md"} <= {*map(named, PAGES)}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_is_not_run_says_why(page: Path) -> None:
    for block in BLOCKS[page]:
        assert block.how is None or re.fullmatch(r"no, \w.{5,}", block.how), block.line


@pytest.mark.parametrize("page", [run_where_there_is_time(page) for page in PAGES])
def test_blocks_run(
    page: Path, warm_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(warm_cache))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace = {"__name__": "docs"}
    left_out = []
    for block in BLOCKS[page]:
        code = block.compiled(page)
        if block.missing:
            left_out.append(f"line {block.line} needs {', '.join(sorted(block.missing))}")
        elif block.how is None:
            exec(code, namespace)
    if left_out:
        pytest.skip(f"all ran but {'; '.join(left_out)}")
