"""The disjoint union of several families' search spaces."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from autotune.core.arguments import must
from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import SpaceError
from autotune.space.diagram import row_number, row_slice
from autotune.space.search_space import SearchSpace

if TYPE_CHECKING:
    from collections.abc import Container


class SpaceUnion:
    """All configurations of all families, numbered family after family.

    Args:
        spaces: the families' spaces by name; their order numbers the rows.

    Attributes:
        spaces: the same.

    Raises:
        SpaceError: there is no family, or what there is are no spaces.
    """

    def __init__(self, spaces: Mapping[str, SearchSpace]) -> None:
        named = isinstance(spaces, Mapping) and all(
            isinstance(name, str) and isinstance(space, SearchSpace)
            for name, space in spaces.items()
        )
        expected = "a mapping of families' names to SearchSpaces"
        must("spaces", expected, spaces, named, SpaceError)
        if not spaces:
            raise SpaceError("a union of spaces needs at least one family")
        self.spaces: Mapping[str, SearchSpace] = MappingProxyType(dict(spaces))

    @cached_property
    def size(self) -> int:
        """Number of valid candidates."""
        return sum(space.size for space in self.spaces.values())

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits over the families' names and their spaces' digests."""
        described = [[family, space.digest] for family, space in self.spaces.items()]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]

    @cached_property
    def _offsets(self) -> dict[str, int]:
        """The first row of every family."""
        sizes = [space.size for space in self.spaces.values()]
        return dict(zip(self.spaces, accumulate(sizes, initial=0), strict=False))

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    def __reduce__(self) -> tuple[type[SpaceUnion], tuple[dict[str, SearchSpace]]]:
        return SpaceUnion, (dict(self.spaces),)

    @overload
    def __getitem__(self, row: SupportsIndex) -> Candidate: ...
    @overload
    def __getitem__(self, row: slice) -> list[Candidate]: ...
    def __getitem__(self, row: SupportsIndex | slice) -> Candidate | list[Candidate]:
        if isinstance(row, slice):
            return row_slice(row, self.size, self.__getitem__)
        row = row_number(row, self.size, "union")
        # An empty family starts where the next one does: the last of them holds the row.
        at = bisect_right(list(self._offsets.values()), row) - 1
        family = list(self.spaces)[at]
        return Candidate(family, self.spaces[family][row - self._offsets[family]])

    def __contains__(self, candidate: object) -> bool:
        if not isinstance(candidate, Candidate) or candidate.family not in self.spaces:
            return False
        return candidate.configuration in self.spaces[candidate.family]

    def index(self, candidate: Candidate) -> int:
        """The row of a candidate.

        Raises:
            SpaceError: its family is unknown, or its configuration is not valid.
        """
        space = self._space(_family(candidate))
        return self._offsets[candidate.family] + space.index(candidate.configuration)

    def find(self, candidate: Candidate) -> int | None:
        """The row of a candidate; None where its configuration is not valid.

        Raises:
            SpaceError: its family is unknown, or its configuration has other parameters.
        """
        row = self._space(_family(candidate)).find(candidate.configuration)
        return None if row is None else self._offsets[candidate.family] + row

    def nearest(self, candidate: Candidate, excluded: Container[int] = ()) -> int | None:
        """The valid row nearest to a candidate, which need not be valid itself.

        Rows of the candidate's own family come first, whatever their distance; then those of the
        other families in order, by the parameters whose names they share with it.

        Args:
            candidate: where to look.
            excluded: rows that are not wanted.

        Returns:
            The row, or None when every row is excluded.

        Raises:
            SpaceError: the candidate's family is unknown.
        """
        self._space(_family(candidate))
        others = [family for family in self.spaces if family != candidate.family]
        for family in (candidate.family, *others):
            offset = self._offsets[family]
            space = self.spaces[family]
            row = space.nearest(candidate.configuration, _Shifted(excluded, offset))
            if row is not None:
                return offset + row
        return None

    def flatten(self, candidate: Candidate) -> dict[str, Value]:
        """The family, and its parameters under names that say whose they are."""
        flat: dict[str, Value] = {"family": _family(candidate)}
        for name, value in candidate.configuration.items():
            flat[f"{candidate.family}.{name}"] = value
        return flat

    def unflatten(self, flat: Mapping[str, Value]) -> Candidate:
        """The candidate that `flatten` was given; it need not be valid.

        Parameters of other families are left out of account.

        Raises:
            SpaceError: the family is missing or unknown, or one of its parameters is missing.
        """
        must("a candidate", "a mapping", flat, isinstance(flat, Mapping), SpaceError)
        if "family" not in flat:
            raise SpaceError(f"a candidate needs a family, got {sorted(flat)}")
        family = str(flat["family"])
        values: dict[str, Value] = {}
        for parameter in self._space(family).parameters:
            name = f"{family}.{parameter.name}"
            if name not in flat:
                raise SpaceError(f"a candidate of family {family} needs {name}")
            values[parameter.name] = flat[name]
        return Candidate(family, Configuration(values))

    def _space(self, family: str) -> SearchSpace:
        if family not in self.spaces:
            raise SpaceError(f"unknown family {family!r}; families: {', '.join(self.spaces)}")
        return self.spaces[family]


def _family(candidate: Candidate) -> str:
    """The family of what must be a candidate.

    Raises:
        SpaceError: it is something else.
    """
    known = isinstance(candidate, Candidate)
    must("a candidate", "a family and a configuration", candidate, known, SpaceError)
    return candidate.family


@dataclass(frozen=True, slots=True)
class _Shifted:
    """Rows of one family among rows of the union."""

    rows: Container[int]
    offset: int

    def __contains__(self, row: Any) -> bool:
        return row + self.offset in self.rows
