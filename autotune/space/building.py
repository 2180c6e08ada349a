"""Builds diagrams of the rows that meet restrictions: each independent part, by parameters.

What a beginning of a row allows afterwards depends only on the values that the restrictions still
to come compute from it: if all that is left to check is ``u * v <= 64`` where ``u`` is ``x * y``,
then beginnings with the same product are one node. So a node is a combination of such values. Each
of them is kept as a table of distinct values and, for every node, a position in the table:
restrictions are evaluated on the combinations of distinct values, which are few, not on nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from autotune.core.errors import ExpressionError
from autotune.space.columns import Column
from autotune.space.diagram import Diagram, Edges, Group
from autotune.space.terms import Encoded, Term, TermTable, combine, encode, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.parameter import TunableParameter

_BLOCK = 2**18
"""Evaluations at a time: 2 MB for every intermediate array of 8-byte numbers."""
_SMALL = 4096
"""So many evaluations cost hardly more than calling NumPy."""


class TooManyError(Exception):
    """The diagram would take more evaluations than were allowed."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter, as a layer sees it.

    Attributes:
        position: where the parameter stands in the space.
        term: its name; None when no restriction mentions it.
        column: its values.
    """

    position: int
    term: Term | None
    column: Column


def build(
    dimensions: Sequence[Dimension], conjuncts: Sequence[Term], allowance: int | None = None
) -> Diagram:
    """The diagram of the rows for which all conjuncts hold.

    Args:
        dimensions: the parameters, in order.
        conjuncts: what must hold; each depends on at least one of the parameters, on no others.
        allowance: evaluations that this may take.

    Raises:
        TooManyError: it takes more.
        ExpressionError: an operator is given what it does not take.
    """
    combinations = math.prod(dimension.column.length for dimension in dimensions)
    risky = any(term.risky for term in conjuncts)
    with np.errstate(all="ignore"):
        if combinations <= _SMALL and not risky:
            return Diagram.of_mask(_mask(dimensions, conjuncts))
        builder = _Builder(conjuncts, risky, allowance)
        return Diagram.of_edges([builder.bind(dimension) for dimension in dimensions])


def _mask(dimensions: Sequence[Dimension], conjuncts: Sequence[Term]) -> NDArray[np.bool_]:
    """A mask of the combinations of values for which all conjuncts hold; a parameter an axis."""
    known: dict[Term, Column] = {}
    for axis, dimension in enumerate(dimensions):
        if dimension.term is not None:
            known[dimension.term] = _along(dimension.column, axis, len(dimensions))
    mask: Any = True
    for term in conjuncts:
        mask = mask & term.holds(known)
    return spread(mask, tuple([dimension.column.length for dimension in dimensions]))


class _Builder:
    """Binds one parameter after another; knows the nodes of the layer to come.

    Args:
        conjuncts: what must hold.
        risky: whether one of them is.
        allowance: evaluations that may be made.
    """

    def __init__(self, conjuncts: Sequence[Term], risky: bool, allowance: int | None) -> None:
        self._allowance = allowance
        self._evaluations = 0
        self._risky = risky
        self._nodes = 1
        self._kept: dict[Term, Encoded] = {}
        self._closing: dict[int, list[Term]] = {}
        self._made: dict[int, list[Term]] = {}
        self._inputs: dict[Term, tuple[Term, ...]] = {}
        self._last: dict[Term, int] = {}
        for term in conjuncts:
            self._closing.setdefault(term.level, []).append(term)
            self._need(term)

    def _need(self, term: Term) -> None:
        """Arrange for a term's inputs to be kept until it is computed."""
        level = term.level
        self._inputs[term] = inputs = tuple(dict.fromkeys(term.inputs()))
        for each in inputs:
            if each not in self._last:
                self._made.setdefault(each.level, []).append(each)
                self._need(each)
            self._last[each] = max(self._last.get(each, level), level)

    def bind(self, dimension: Dimension) -> Edges:
        """The edges of the next layer."""
        level = dimension.position
        column, choices = self._choices(dimension)
        parents, picked = self._allowed(level, dimension.term, column)
        codes = picked if choices is None else choices[picked]
        kept = {
            term: Encoded(each.table, each.ids[parents], each.size)
            for term, each in self._kept.items()
            if self._last[term] > level
        }
        made = self._made.get(level, ())
        nodes, count = self._nodes, len(parents)
        told_apart = dimension.term in made and len(kept) == len(self._kept)
        for term in made:
            kept[term] = self._keep(term, dimension.term, column, parents, picked)
        if told_apart:
            self._nodes, self._kept, children = count, kept, np.arange(count)
        elif kept:
            children = self._merge(kept, count)
        else:
            self._nodes, self._kept, children = 1, kept, np.zeros(count, dtype=np.intp)
        return Edges(parents, codes, children, nodes)

    def _choices(self, dimension: Dimension) -> tuple[Column, NDArray[np.intp] | None]:
        """Values that meet the restrictions on this one alone, and their codes (None: all)."""
        column, name = dimension.column, dimension.term
        mask: Any = True
        for term in self._closing.get(dimension.position, ()):
            if not self._inputs[term]:
                assert name is not None
                mask = mask & term.holds({name: column})
        if mask is True:
            return column, None
        choices = spread(mask, (column.length,)).nonzero()[0]
        return column.each(lambda values: values[choices]), choices

    def _allowed(
        self, level: int, name: Term | None, column: Column
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Nodes, and positions of the values that each of them allows."""
        width = column.length
        self._evaluations += self._nodes * width
        if self._allowance is not None and self._evaluations > self._allowance:
            raise TooManyError
        wider = [term for term in self._closing.get(level, ()) if self._inputs[term]]
        if not wider or not width:
            every = np.arange(self._nodes * width)
            return divmod(every, width) if self._nodes > 1 else (every - every, every)
        assert name is not None
        rules = [self._rule(term, name, column) for term in wider]
        found = []
        stride = max(1, _BLOCK // width)
        for start in range(0, self._nodes, stride):
            nodes = slice(start, start + stride)
            mask = rules[0](nodes)
            for rule in rules[1:]:
                mask = mask & rule(nodes)
            parents, picked = mask.nonzero()
            found.append((parents + start if start else parents, picked))
        if len(found) == 1:
            return found[0]
        parts = list(zip(*found, strict=True)) or [(np.empty(0, dtype=np.intp),)] * 2
        return np.concatenate(parts[0]), np.concatenate(parts[1])

    def _rule(
        self, term: Term, name: Term, column: Column
    ) -> Callable[[slice], NDArray[np.bool_]]:
        """A conjunct as a mask (nodes, values), for some of the nodes at a time."""
        inputs = self._inputs[term]
        width = column.length
        cells = math.prod(self._kept[each].size for each in inputs)
        if term.risky or cells > self._nodes or cells * width > _BLOCK:

            def by_node(nodes: slice) -> NDArray[np.bool_]:
                known = {
                    each: self._kept[each].rows(self._kept[each].ids[nodes, None])
                    for each in inputs
                }
                count = len(range(*nodes.indices(self._nodes)))
                return spread(term.holds({**known, name: column}), (count, width))

            return by_node
        known, cell = self._grid(inputs)
        known[name] = column
        shape = (*(self._kept[each].size for each in inputs), width)
        table = spread(term.holds(known), shape).reshape(cells, width)
        return lambda nodes: table[cell[nodes]]

    def _grid(self, inputs: Sequence[Term]) -> tuple[dict[Term, Column], NDArray[np.intp]]:
        """Every combination of the inputs' distinct values, and that of every node.

        The columns have an axis for every input, and a last one for the parameter.
        """
        axes = len(inputs) + 1
        known = {}
        cell: NDArray[np.intp] | None = None
        for axis, term in enumerate(inputs):
            kept = self._kept[term]
            known[term] = _along(kept.table, axis, axes)
            cell = kept.ids if cell is None else cell * kept.size + kept.ids
        assert cell is not None
        return known, cell

    def _keep(
        self,
        term: Term,
        name: Term | None,
        column: Column,
        parents: NDArray[np.intp],
        picked: NDArray[np.intp],
    ) -> Encoded:
        """A term's value on every edge."""
        assert name is not None
        inputs = self._inputs[term]
        width = column.length
        if term is name:
            return Encoded(column, picked, width)
        if not inputs:
            own = _encoded(term, term.column({name: column}), (width,))
            return Encoded(own.table, own.ids[picked], own.size)
        cells = math.prod(self._kept[each].size for each in inputs)
        if term.risky or cells * width > max(_SMALL, len(parents)):
            known = {each: self._kept[each].rows(self._kept[each].ids[parents]) for each in inputs}
            known[name] = column.each(lambda values: values[picked])
            return _encoded(term, term.column(known), (len(parents),))
        known, cell = self._grid(inputs)
        known[name] = column
        shape = (*(self._kept[each].size for each in inputs), width)
        every = _encoded(term, term.column(known), shape)
        return Encoded(every.table, every.ids[cell[parents] * width + picked], every.size)

    def _merge(self, kept: dict[Term, Encoded], edges: int) -> NDArray[np.intp]:
        """Edges to a node for every combination of what is kept."""
        if len(kept) == 1 and not self._risky:
            ((term, only),) = kept.items()
            if only.size <= edges:
                # Some of the nodes may be ones that no edge leads to.
                self._nodes = only.size
                self._kept = {term: Encoded(only.table, np.arange(only.size), only.size)}
                return only.ids
        children, edge = combine(kept.values(), edges)
        self._nodes = len(edge)
        self._kept = {term: each.at(edge) for term, each in kept.items()}
        return children


def _encoded(term: Term, column: Column, shape: tuple[int, ...]) -> Encoded:
    """A term's column; only as much of it as its users ask for."""
    if term.only_truth:
        column = Column(column.truth(), column.defined, 1)
    return encode(column, shape)


def _along(column: Column, axis: int, axes: int) -> Column:
    """A column along one of several axes."""
    shape = [1] * axes
    shape[axis] = column.length
    return column.each(lambda values: values.reshape(shape))


_ResultT = TypeVar("_ResultT")

_COUNTING_ALLOWANCE = 20_000_000
"""Evaluations that counting one part may take: some seconds, and a gigabyte at worst."""


class RestrictionSystem:
    """Restrictions over parameters.

    Args:
        parameters: in declaration order.
        restrictions: over parameters and constants only, definitions inlined.
        constants: values of all other names.
    """

    def __init__(
        self,
        parameters: Sequence[TunableParameter],
        restrictions: Sequence[Expression],
        constants: Mapping[str, Value],
    ) -> None:
        self._parameters = parameters
        # A parameter with one value is a constant, so it does not connect any others.
        fixed = {p.name: p.values[0] for p in parameters if len(p.values) == 1}
        positions = {p.name: at for at, p in enumerate(parameters) if p.name not in fixed}
        textual = frozenset(p.name for p in parameters if p.has_text)
        self._restrictions = restrictions
        self._terms = TermTable(positions, {**constants, **fixed}, textual)
        self._conjuncts = [self._terms.conjuncts(restriction) for restriction in restrictions]

    def groups(self) -> list[Group]:
        """The valid rows of every part, in order of the parts' first parameters.

        Raises:
            ExpressionError: a restriction is given text where it takes numbers, in a row that
                meets all before it.
        """
        return self._with_guards(self._groups)

    def remaining(self) -> list[int | None]:
        """Configurations left by the first, the first two, ... of the restrictions.

        None where counting would take too long; raises what `groups` raises.
        """
        return self._with_guards(self._remaining)

    def _with_guards(self, compute: Callable[[], list[_ResultT]]) -> list[_ResultT]:
        """Compute with restrictions apart, which is fast, unless one needs those before it."""
        try:
            return compute()
        except ExpressionError:
            guarded = [
                self._terms.conjuncts(restriction, self._restrictions[:number])
                for number, restriction in enumerate(self._restrictions)
            ]
            if guarded == self._conjuncts:
                raise
            self._conjuncts = guarded
        return compute()

    def _groups(self) -> list[Group]:
        conjuncts = [term for terms in self._conjuncts for term in terms]
        if not _constants_hold(conjuncts):
            count = len(self._parameters)
            return [Group(tuple(range(count)), Diagram.of_nothing(count))]
        return [Group(part, self._diagram(part, terms)) for part, terms in self._parts(conjuncts)]

    def _remaining(self) -> list[int | None]:
        counts: dict[tuple[int, ...], int | None] = {
            (position,): len(parameter.values)
            for position, parameter in enumerate(self._parameters)
        }
        remaining: list[int | None] = []
        kept: list[Term] = []
        for added in self._conjuncts:
            kept += added
            touched = reduce(or_, (term.scope for term in added), 0)
            counts = {
                part: counts[part]
                if part in counts and not any(touched >> position & 1 for position in part)
                else self._count(part, terms)
                for part, terms in self._parts(kept)
            }
            remaining.append(_product(counts.values()) if _constants_hold(kept) else 0)
        return remaining

    def _parts(self, conjuncts: Sequence[Term]) -> list[tuple[tuple[int, ...], list[Term]]]:
        """Positions of connected parameters, with the conjuncts that are about them."""
        joined: list[int] = []
        for scope in {term.scope for term in conjuncts}:
            touching = [part for part in joined if part & scope]
            joined = [part for part in joined if not part & scope]
            joined.append(reduce(or_, touching, scope))
        parts: dict[int, tuple[list[int], list[Term]]] = {}
        for position in range(len(self._parameters)):
            bit = 1 << position
            part = next((part for part in joined if part & bit), bit)
            parts.setdefault(part, ([], []))[0].append(position)
        for part, (_, terms) in parts.items():
            terms += [term for term in conjuncts if term.scope & part]
        return [(tuple(positions), terms) for positions, terms in parts.values()]

    def _diagram(
        self, part: tuple[int, ...], conjuncts: Sequence[Term], allowance: int | None = None
    ) -> Diagram:
        if not conjuncts:
            (position,) = part
            return Diagram.of_all(len(self._parameters[position].values))
        dimensions = [
            Dimension(
                position,
                self._terms.parameter(self._parameters[position].name),
                self._parameters[position].column(),
            )
            for position in part
        ]
        return build(dimensions, conjuncts, allowance)

    def _count(self, part: tuple[int, ...], conjuncts: Sequence[Term]) -> int | None:
        try:
            return self._diagram(part, conjuncts, _COUNTING_ALLOWANCE).size
        except TooManyError:
            return None


def _constants_hold(conjuncts: Iterable[Term]) -> bool:
    """Return whether the conjuncts that are about no parameter hold."""
    return all(bool(term.holds({})) for term in conjuncts if not term.scope)


def _product(counts: Iterable[int | None]) -> int | None:
    """The product; an unknown factor makes it unknown, unless another one is 0."""
    product = 1
    unknown = False
    for count in counts:
        unknown = unknown or count is None
        product *= 1 if count is None else count
    return None if unknown and product else product
