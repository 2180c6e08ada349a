from __future__ import annotations

from typing import Any

import pytest

from autotune.core.suggestions import did_you_mean, listed, must_be


@pytest.mark.parametrize(
    ("given", "known", "end"),
    [
        ("gpus", ["cpu", "gpu"], "; did you mean 'gpu'?"),
        ("GPU", ["cpu", "gpu"], "; did you mean 'gpu'?"),
        ("autotune_cach", ["AUTOTUNE_CACHE"], "; did you mean 'AUTOTUNE_CACHE'?"),
        ("elsewhere", ["cpu", "gpu"], ""),
        (3, ["cpu", "gpu"], ""),
        (None, [], ""),
    ],
)
def test_what_was_meant(given: Any, known: list[str], end: str) -> None:
    assert did_you_mean(given, known) == end
    assert must_be("it", given, known).endswith(f"got {given!r}{end}")


def test_of_very_many_names_the_first_are_listed() -> None:
    known = [f"name{number}" for number in range(60)]
    assert listed(known[:50]).endswith("name49")
    assert listed(known).endswith("name49 and 10 more")
    assert "name59" in must_be("it", "name59x", known)
