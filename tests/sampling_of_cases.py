"""Tests with more cases than there is time for by default: a sample of them is run."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def left_out_of_samples(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Cases that are not drawn; see the marker `sampled`.

    The lot is the same in every process and every run. Tests of a module that have cases in
    common draw the same ones, so that what is compiled for one serves the others. Of every value
    of every argument there is a case as long as there are enough: where a case brings a value
    that none before it had, it is preferred.

    A test marked `thorough` is left out altogether.
    """
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    counts: dict[str, int] = {}
    left_out = {item for item in items if item.get_closest_marker("thorough")}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and item not in left_out:
            test = item.nodeid.partition("[")[0]
            cases[test].append(item)
            counts[test] = mark.args[0]
    for test, found in cases.items():
        found.sort(key=_lot)
        left_out |= set(_covering(found)[counts[test] :])
    return left_out


def _lot(item: pytest.Item) -> str:
    """What a case draws: the same in all tests of a module."""
    case = item.nodeid.partition("[")[2]
    return hashlib.sha256(f"{item.path.name} {case}".encode()).hexdigest()


def _covering(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same, those first that bring the most values that none before them has."""
    left = {item: _values(item) for item in items}
    seen: set[tuple[str, str]] = set()
    ordered: list[pytest.Item] = []
    while left:
        best = max(left, key=lambda item: len(left[item] - seen))
        seen |= left.pop(best)
        ordered.append(best)
    return ordered


def _values(item: pytest.Item) -> set[tuple[str, str]]:
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return {(name, repr(value)) for name, value in parameters.items()}
