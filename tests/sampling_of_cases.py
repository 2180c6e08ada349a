"""Tests with more cases than there is time for by default: a sample of them is run."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def left_out_of_samples(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Cases that are not drawn; see the marker `sampled`.

    The lot is the same in every process and every run, and another one for each test. Of every
    value of every argument there is a case as long as there are enough: where a case brings a
    value that none before it had, it is preferred.
    """
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    counts: dict[str, int] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            cases[test].append(item)
            counts[test] = mark.args[0]
    left_out: set[pytest.Item] = set()
    for test, found in cases.items():
        random.Random(test).shuffle(found)
        left_out |= set(_covering(found)[counts[test] :])
    return left_out


def _covering(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same, those first that bring the most values that none before them has."""
    left = list(items)
    seen: set[tuple[str, str]] = set()
    ordered: list[pytest.Item] = []
    while left:
        best = max(left, key=lambda item: len(_values(item) - seen))
        seen |= _values(best)
        left.remove(best)
        ordered.append(best)
    return ordered


def _values(item: pytest.Item) -> set[tuple[str, str]]:
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return {(name, repr(value)) for name, value in parameters.items()}
