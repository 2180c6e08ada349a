"""Enumerates the rows of one group of connected parameters.

Parameters are bound one after another. As soon as all names of a restriction are bound it masks
the rows against the new parameter's values, by broadcasting. Beside the packed rows only the
columns that restrictions still to come use are kept. Work proceeds depth first in blocks, so
memory stays bounded whatever the number of rows in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.space.radix import MixedRadix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.parameter import TunableParameter

_BLOCK = 2**18
"""Row evaluations at a time: 2 MB for every intermediate array of 8-byte numbers."""


class TooManyError(Exception):
    """Counting would take more row evaluations than were allowed."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Binds one parameter.

    Attributes:
        name: the parameter.
        values: those of its values that meet the restrictions on it alone.
        increments: what each of them adds to the packed row.
        word: the word of the packed row that it is added to.
        restrictions: those whose last name this parameter is.
        kept: names whose columns are still needed afterwards.
    """

    name: str
    values: NDArray[Any]
    increments: NDArray[np.int64]
    word: int
    restrictions: tuple[Expression, ...]
    kept: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows with some parameters bound: packed, and as columns where values are still needed."""

    words: list[NDArray[np.int64]]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.words[0])

    def block(self, start: int, stop: int) -> _Rows:
        """Some consecutive rows."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return _Rows([word[start:stop] for word in self.words], columns)

    def extended(self, step: _Step, mask: NDArray[np.bool_] | None) -> _Rows:
        """Every row with every value of the step's parameter that `mask` (rows, values) allows."""
        width = len(step.values)
        if mask is None:
            parents = np.repeat(np.arange(len(self)), width)
            choices = np.tile(np.arange(width), len(self))
        else:
            parents, choices = np.nonzero(mask)
        words = [word[parents] for word in self.words]
        words[step.word] += step.increments[choices]
        columns = {
            name: column[parents] for name, column in self.columns.items() if name in step.kept
        }
        if step.name in step.kept:
            columns[step.name] = step.values[choices]
        return _Rows(words, columns)


class Enumeration:
    """The rows of some parameters that meet some restrictions.

    Args:
        parameters: in declaration order, which is the order of the packed row's digits.
        restrictions: each over at least one of these parameters, and the constants.
        constants: values of all other names.
    """

    def __init__(
        self,
        parameters: Sequence[TunableParameter],
        restrictions: Sequence[Expression],
        constants: Mapping[str, Value],
    ) -> None:
        self.radix = MixedRadix([len(parameter.values) for parameter in parameters])
        self._constants = constants
        self._steps = self._plan(parameters, restrictions)

    def rows(self) -> list[NDArray[np.int64]]:
        """The packed rows, in no particular order."""
        blocks = [block.extended(step, mask).words for step, block, mask in self._grow()]
        if not blocks:
            return [np.empty(0, dtype=np.int64) for _ in range(self.radix.words)]
        return [np.concatenate(words) for words in zip(*blocks, strict=True)]

    def count(self, allowance: int) -> int:
        """How many rows there are.

        Raises:
            TooManyError: more than `allowance` row evaluations are needed.
        """
        return sum(
            len(block) * len(step.values) if mask is None else int(np.count_nonzero(mask))
            for step, block, mask in self._grow(allowance)
        )

    def _grow(
        self, allowance: int | None = None
    ) -> Iterator[tuple[_Step, _Rows, NDArray[np.bool_] | None]]:
        """Blocks of rows before their last step, with that step and its mask."""
        evaluations = 0

        def grow(
            rows: _Rows, steps: Sequence[_Step]
        ) -> Iterator[tuple[_Step, _Rows, NDArray[np.bool_] | None]]:
            nonlocal evaluations
            step, *later = steps
            stride = max(1, _BLOCK // max(1, len(step.values)))
            for start in range(0, len(rows), stride):
                block = rows.block(start, start + stride)
                evaluations += len(block) * len(step.values)
                if allowance is not None and evaluations > allowance:
                    raise TooManyError
                mask = self._mask(step, block)
                if later:
                    yield from grow(block.extended(step, mask), later)
                else:
                    yield step, block, mask

        start = [np.zeros(1, dtype=np.int64) for _ in range(self.radix.words)]
        return grow(_Rows(start, {}), self._steps)

    def _mask(self, step: _Step, rows: _Rows) -> NDArray[np.bool_] | None:
        if not step.restrictions:
            return None
        names: dict[str, NDArray[Any] | Value] = {
            **self._constants,
            **{name: column[:, None] for name, column in rows.columns.items()},
            step.name: step.values[None, :],
        }
        mask = np.ones((len(rows), len(step.values)), dtype=bool)
        for restriction in step.restrictions:
            mask &= restriction.holds_columns(names)
        return mask

    def _plan(
        self, parameters: Sequence[TunableParameter], restrictions: Sequence[Expression]
    ) -> list[_Step]:
        declared = frozenset(parameter.name for parameter in parameters)
        scopes = [declared & restriction.names for restriction in restrictions]
        arrays = {parameter.name: parameter.array() for parameter in parameters}
        masks = {name: np.ones(len(array), dtype=bool) for name, array in arrays.items()}
        for scope, restriction in zip(scopes, restrictions, strict=True):
            if len(scope) == 1:
                (name,) = scope
                masks[name] &= restriction.holds_columns({**self._constants, name: arrays[name]})
        digits = dict(zip(arrays, self.radix.digits, strict=True))
        sizes = {name: int(mask.sum()) for name, mask in masks.items()}
        order = _binding_order(sizes, [scope for scope in scopes if len(scope) > 1])
        last = [max(map(order.index, scope)) for scope in scopes]
        steps = []
        for level, name in enumerate(order):
            closing = [
                restriction
                for restriction, scope, at in zip(restrictions, scopes, last, strict=True)
                if at == level and len(scope) > 1
            ]
            later = [scope for scope, at in zip(scopes, last, strict=True) if at > level]
            steps.append(
                _Step(
                    name=name,
                    values=arrays[name][masks[name]],
                    increments=np.flatnonzero(masks[name]) * digits[name].weight,
                    word=digits[name].word,
                    restrictions=tuple(closing),
                    kept=frozenset().union(*later),
                )
            )
        return steps


def _binding_order(sizes: Mapping[str, int], scopes: Sequence[frozenset[str]]) -> list[str]:
    """The order in which to bind parameters so that rows are masked early and multiply late.

    Restriction by restriction. A parameter that few restrictions use mostly multiplies rows, so
    restrictions on widely used parameters come first; among those the cheapest does. Within one
    the parameter with most values comes last, since that step is masked before it is stored.

    Args:
        sizes: number of values of every parameter, in declaration order.
        scopes: the parameters that each restriction uses.
    """
    uses = {name: sum(name in scope for scope in scopes) for name in sizes}
    order: list[str] = []
    pending = [scope for scope in scopes if scope]
    while pending:
        unbound = min(
            (scope.difference(order) for scope in pending),
            key=lambda names: (
                -min(uses[name] for name in names),
                math.prod(sizes[name] for name in names),
            ),
        )
        order += sorted((name for name in sizes if name in unbound), key=sizes.__getitem__)
        pending = [scope for scope in pending if not scope <= set(order)]
    return order + [name for name in sizes if name not in order]
