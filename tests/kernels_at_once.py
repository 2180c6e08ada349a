"""Products by kernels from the first call on, for tests of how operands come to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune import Gemm, load
from autotune.runtime import choosing, multiplying
from autotune.runtime.contest import Contest

if TYPE_CHECKING:
    import pytest


def kernels_at_once(patch: pytest.MonkeyPatch) -> None:
    """Take every kernel to be faster than the library."""
    patch.setattr(choosing, "_knowledge", lambda *asked: (True, "in this test"))
    patch.setattr(multiplying, "new_contest", _won)


def _won(problem: Gemm, target: str, library: str, *, timed: bool = True) -> Contest | None:
    if not timed:
        return choosing.new_contest(problem, target, library, timed=False)
    return Contest.won_by(problem, target, load(problem, target, match="nearest"))
