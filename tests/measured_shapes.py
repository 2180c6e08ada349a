"""A cache in which a few shapes have been measured, for tests of what frameworks are given."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest
from textbook_family import tune_textbook

from autotune.core.session import forget
from autotune.runtime import contest, product_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHAPES = tuple(itertools.permutations((5, 6, 7)))
"""Of a product, and of those that its gradients are."""

MARK = 1000
"""What is added to results by a family that marks them."""


@contextlib.contextmanager
def measured(
    factory: pytest.TempPathFactory,
    mark: int = 0,
    library: str = "NumPy 2",
    accuracy: str = "ieee",
) -> Iterator[Path]:
    """While this is entered, the shapes have records of a family that was faster than a library.

    Nothing else is measured in calls. Gives the file of the log.
    """
    cache, families, log = (factory.mktemp(name) for name in ("cache", "families", "log"))
    tune_textbook(families, cache, SHAPES, mark, library, accuracy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(cache))
        patch.setenv("AUTOTUNE_FAMILIES", str(families))
        patch.setenv("AUTOTUNE_BACKGROUND", "0")
        patch.setenv(contest.VARIABLE, "0")
        patch.setenv(product_log.VARIABLE, str(log / "log.txt"))
        forget()
        yield log / "log.txt"
        forget()


def measured_cache(mark: int = 0, library: str = "NumPy 2") -> Callable[..., object]:
    """The fixture `own_cache` of a module whose tests share what is measured; gives the log."""

    @pytest.fixture(autouse=True, scope="module", name="own_cache")
    def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        with measured(tmp_path_factory, mark, library) as log:
            yield log

    return shared
