"""The blocks of docs/frameworks.md, run where their library is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's, of what it uses itself
@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_a_block_runs(block: str) -> None:
    for library in re.findall(r"^(?:import|from) (torch|jax)\b", block, re.MULTILINE):
        pytest.importorskip(library)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})
