"""Products by kernels from the first call on, for tests of how operands come to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from textbook_family import tune_textbook

from autotune import Gemm, load
from autotune.core.session import forget
from autotune.runtime import choosing, multiplying
from autotune.runtime.contest import Contest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def kernels_at_once(patch: pytest.MonkeyPatch) -> None:
    """Take every kernel to be faster than the library."""
    patch.setattr(choosing, "_knowledge", lambda *asked: (True, "in this test"))
    patch.setattr(multiplying, "new_contest", _won)


def _won(problem: Gemm, target: str, library: str, *, timed: bool = True) -> Contest | None:
    if not timed:
        return choosing.new_contest(problem, target, library, timed=False)
    return Contest.won_by(problem, target, load(problem, target, match="nearest"))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for a module: what was compiled for one test serves the others."""
    cache, families = (tmp_path_factory.mktemp(name) for name in ("cache", "families"))
    tune_textbook(families, cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(cache))
        patch.setenv("AUTOTUNE_FAMILIES", str(families))
        patch.setenv("AUTOTUNE_BACKGROUND", "0")
        kernels_at_once(patch)
        forget()
        yield cache
        forget()
