"""The disjoint union of the families' spaces."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import SpaceError
from autotune.space import SearchSpace, SpaceUnion


@pytest.fixture
def union() -> SpaceUnion:
    return SpaceUnion(
        {
            "loops": SearchSpace({"order": ["ijk", "ikj"], "threads": [1, 2]}),
            "none": SearchSpace({"x": [1, 2]}, ["x > 2"]),
            "block": SearchSpace(
                {"sm": [32, 64, 128], "threads": [1, 2, 4]}, ["sm >= 32 * threads"]
            ),
        }
    )


def candidate(family: str, **values: int | str) -> Candidate:
    return Candidate(family, Configuration(values))


def test_rows_are_numbered_family_after_family(union: SpaceUnion) -> None:
    assert len(union) == union.size == 4 + 0 + 6
    candidates = [union[row] for row in range(len(union))]
    assert [each.family for each in candidates] == ["loops"] * 4 + ["block"] * 6
    assert len(set(candidates)) == 10
    for row, each in enumerate(candidates):
        assert union.index(each) == row
        assert each in union
        assert union[row - len(union)] == each
    for row in (10, -11):
        with pytest.raises(IndexError, match="outside a union of 10"):
            union[row]


def test_membership(union: SpaceUnion) -> None:
    assert candidate("block", sm=64, threads=2) in union
    assert candidate("block", sm=32, threads=2) not in union
    assert candidate("loops", sm=64, threads=2) not in union
    assert candidate("other", sm=64, threads=2) not in union
    assert {"sm": 64, "threads": 2} not in union
    with pytest.raises(SpaceError, match="unknown family 'other'; families: loops, none, block"):
        union.index(candidate("other", sm=64))
    with pytest.raises(SpaceError, match="not in the space: sm >= 32"):
        union.index(candidate("block", sm=32, threads=2))


def test_flat_names_tell_families_apart(union: SpaceUnion) -> None:
    flat = union.flatten(candidate("block", sm=64, threads=2))
    assert flat == {"family": "block", "block.sm": 64, "block.threads": 2}
    for row in range(len(union)):
        assert union.unflatten(union.flatten(union[row])) == union[row]
    everything = {**union.flatten(union[0]), **flat}
    assert union.unflatten(everything) == candidate("block", sm=64, threads=2)
    assert union.unflatten({**flat, "block.sm": 32}) == candidate("block", sm=32, threads=2)


def test_bad_flat_names_are_refused(union: SpaceUnion) -> None:
    with pytest.raises(SpaceError, match="needs a family"):
        union.unflatten({"block.sm": 64})
    with pytest.raises(SpaceError, match="unknown family 'other'"):
        union.unflatten({"family": "other"})
    with pytest.raises(SpaceError, match=r"family block needs block\.threads"):
        union.unflatten({"family": "block", "block.sm": 64})


def test_nearest_stays_in_the_family_while_it_can(union: SpaceUnion) -> None:
    wanted = candidate("block", sm=32, threads=4)
    visited: list[int] = []
    while (row := union.nearest(wanted, visited)) is not None:
        visited.append(row)
    assert sorted(visited[:6]) == [4, 5, 6, 7, 8, 9]
    assert sorted(visited) == list(range(10))
    # other families by the parameters they share: threads = 4 is nearest to 2
    assert [union[row].configuration["threads"] for row in visited[6:]] == [2, 2, 1, 1]
    assert union.nearest(candidate("none", x=1)) == 0
    with pytest.raises(SpaceError, match="unknown family"):
        union.nearest(candidate("other", x=1))


def test_digest_depends_on_names_and_spaces(union: SpaceUnion) -> None:
    spaces = dict(union.spaces)
    assert SpaceUnion(spaces).digest == union.digest
    renamed = {name.replace("loops", "loop"): space for name, space in spaces.items()}
    changed = {**spaces, "loops": SearchSpace({"order": ["ijk"], "threads": [1, 2]})}
    assert len({union.digest, SpaceUnion(renamed).digest, SpaceUnion(changed).digest}) == 3


@pytest.mark.parametrize(
    "spaces", [{"a": 3}, {3: SearchSpace({"x": [1]})}, SearchSpace({"x": [1]}), None, "a"]
)
def test_what_is_no_mapping_of_spaces_is_refused(spaces: Any) -> None:
    with pytest.raises(SpaceError, match="spaces must be a mapping of families' names"):
        SpaceUnion(spaces)


@pytest.mark.parametrize("method", ["index", "nearest", "flatten", "unflatten"])
@pytest.mark.parametrize("candidate", [None, 3, "loops"])
def test_what_is_no_candidate_is_refused(union: SpaceUnion, method: str, candidate: Any) -> None:
    with pytest.raises(SpaceError, match="a candidate must be a"):
        getattr(union, method)(candidate)


def test_an_empty_union_is_refused() -> None:
    with pytest.raises(SpaceError, match="at least one family"):
        SpaceUnion({})
    assert not SpaceUnion({"none": SearchSpace({"x": [1]}, ["x > 1"])})
