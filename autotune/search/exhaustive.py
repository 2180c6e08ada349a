"""The samplers that need no model: every configuration in turn, and uniform random."""

from __future__ import annotations

from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from autotune.search.mirror import trial_seed

if TYPE_CHECKING:
    from collections.abc import Set

    from autotune.core.configuration import Value
    from autotune.search.claims import Ledger
    from autotune.search.study_space import StudySpace


class ExhaustiveProposer:
    """Proposes the valid configurations in canonical order."""

    def __init__(self, space: StudySpace) -> None:
        self._space = space
        self._next = 0

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """The next unvisited row; rows that were given up by other trials come at the end."""
        size = self._space.size
        rows = chain(range(self._next, size), range(self._next))
        self._next = next(row for row in rows if row not in ledger.visited)
        return self._space.params(self._next)


class RandomProposer:
    """Proposes uniformly among the valid configurations that are left.

    Drawing every parameter by itself and moving to a valid point, as a wrapped
    `optuna.samplers.RandomSampler` would, favours points beside large invalid regions.
    """

    def __init__(self, space: StudySpace, seed: int = 0) -> None:
        self._space = space
        self._seed = seed

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """A draw that depends on the seed, the trial's number and what is left."""
        # Python's generator: a space may have more rows than NumPy's integers can count.
        rng = Random(trial_seed(self._seed, number))
        left = self._space.size - len(ledger.visited)
        return self._space.params(_nth_left(rng.randrange(left), ledger.visited))


def _nth_left(position: int, visited: Set[int]) -> int:
    """The row at `position` among those not visited."""
    row = position
    for taken in sorted(visited):
        if taken > row:
            break
        row += 1
    return row
