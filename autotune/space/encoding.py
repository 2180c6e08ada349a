"""Columns as tables of distinct values, so that work is done once for each value, not row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autotune.space.column import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_LARGEST_RADIX = 2**62
_SCATTERED = 8
"""Up to so many possible keys for each that occurs, a table of them beats sorting."""
_SMALL = 1024
"""A table of so many keys costs no more than calling NumPy."""
_FEW = 64
"""So many values are told apart faster by Python."""


class Encoded(NamedTuple):
    """A column that is ``table[ids]``.

    Attributes:
        table: values that differ from each other; not all need occur.
        ids: the position of every row's value among them.
        size: how many there are in the table.
    """

    table: Column
    ids: NDArray[np.intp]
    size: int

    def rows(self, ids: NDArray[np.intp]) -> Column:
        """The column that has the values at these positions."""
        return self.table.each(lambda values: values[ids])

    def at(self, nodes: NDArray[np.intp]) -> Encoded:
        """The same for some of the nodes; values that none of them has may be left out."""
        ids = self.ids[nodes]
        if self.size <= len(nodes):
            return Encoded(self.table, ids, self.size)
        numbers, places = distinct(ids, self.size)
        return Encoded(self.rows(ids[places]), numbers, len(places))


def spread(values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """`np.broadcast_to`, which takes its time, where it is needed."""
    if isinstance(values, np.ndarray) and values.shape == shape:
        return values
    return np.broadcast_to(values, shape)


def encode(column: Column, shape: tuple[int, ...]) -> Encoded:
    """A column, flattened; rows without a value are alike."""
    values = spread(column.values, shape).ravel()
    ids, places = _distinct_values(values)
    if column.defined is None:
        return Encoded(Column(values[places], None, column.limit), ids, len(places))
    defined = spread(column.defined, shape).ravel()
    ids, places = distinct(np.where(defined, ids + 1, 0), len(places) + 1)
    return Encoded(Column(values[places], defined[places], column.limit), ids, len(places))


def combine(columns: Iterable[Encoded], rows: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Numbers for distinct combinations of several columns' values, as `distinct` gives them."""
    keys = np.zeros(rows, dtype=np.intp)
    radix = 1
    for each in columns:
        if radix * each.size >= _LARGEST_RADIX:
            keys, used = distinct(keys, radix)
            radix = len(used)
        keys = keys * each.size + each.ids if radix > 1 else each.ids
        radix *= each.size
    return distinct(keys, radix)


def _distinct_values(values: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """As `distinct`, for values of any kind."""
    if values.dtype == bool:
        return distinct(values.astype(np.intp), 2)
    if values.dtype == object or len(values) <= _FEW:
        return _distinct_objects(values)
    if values.dtype.kind == "i":
        low, high = int(values.min()), int(values.max())
        if high - low < _LARGEST_RADIX:
            return distinct(values.astype(np.int64) - low, high - low + 1)
    _, places, ids = np.unique(values, return_index=True, return_inverse=True)
    return ids, places


def _distinct_objects(values: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    keys: list[object] = values.tolist()
    if values.dtype == object:
        # Equal values of different kinds may compute differently: 2**53 + 1 and 2.0**53 + 1.
        keys = [(type(value), value) for value in keys]
    places: dict[object, int] = {}
    numbers: dict[object, int] = {}
    ids = []
    for place, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(numbers)
            places[key] = place
        ids.append(numbers[key])
    return np.array(ids, dtype=np.intp), np.array(list(places.values()), dtype=np.intp)


def distinct(keys: NDArray[np.intp], radix: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Numbers for distinct keys: that of every key, and a place where each number's key occurs.

    Args:
        keys: integers from 0 on.
        radix: they are less than this.
    """
    if radix > _SCATTERED * len(keys) + _SMALL:
        _, places, numbers = np.unique(keys, return_index=True, return_inverse=True)
        return numbers, places
    place_of = np.full(radix, -1, dtype=np.intp)
    place_of[keys] = np.arange(len(keys))
    used = (place_of >= 0).nonzero()[0]
    places = place_of[used]
    place_of[used] = np.arange(len(used))
    return place_of[keys], places
