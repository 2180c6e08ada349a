"""Shipped programs that an edit of their families' comments made stale, and made hold again."""

from __future__ import annotations

import json
from pathlib import Path

import carry_over
import pytest

SHIPPED = Path(__file__).parents[3] / "cache"


def test_comments_are_no_statements() -> None:
    before = '"""One."""\ndef f(x):\n    """Two."""\n    return x + 1  # three\n'
    assert carry_over.statements(before) == carry_over.statements("def f(x):\n    return x + 1\n")
    assert carry_over.statements(before) != carry_over.statements("def f(x):\n    return x + 2\n")


@pytest.mark.parametrize("same", [True, False])
def test_programs_hold_for_the_files_of_today(same: bool, tmp_path: Path) -> None:
    """Of both kinds of files: a portfolio's entries, and a record."""
    (folder,) = SHIPPED.glob("cuda-nvidia-h100*")
    for name in ("gemm.jsonl", "gemm.portfolio.jsonl"):
        head, line = (folder / name).read_text().splitlines()[:2]
        ((part, key), *_) = carry_over.programs(json.loads(line))
        digests = {key: (part["family_digest"], "0123456789abcdef")}
        file = tmp_path / name
        file.write_text(f"{head}\n{line}\n")
        carry_over.rewrite(file, digests, {key: carry_over.Compared(same, b"today's")})
        ((again, again_key), *_) = carry_over.programs(
            json.loads(file.read_text().splitlines()[1])
        )
        assert (again_key, again["family_digest"]) == (key, "0123456789abcdef")
        assert (again["binary"] == part["binary"]) == same
        assert bool(list(tmp_path.glob("*.xz"))) != same
