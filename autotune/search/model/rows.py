"""Rows of a space: those that were run, and those that are scored."""

from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from random import Random

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from autotune.search.claims import INTERRUPTED, ORPHANED, OUTCOME, REASON, Ledger
from autotune.search.model.features import Points
from autotune.search.study_space import StudySpace


@dataclass(frozen=True, slots=True)
class History:
    """Rows that were run and rows that are running.

    Attributes:
        observed: row and value of every trial that ended, in order of their ends; the value is
            None where it failed or is not finite.
        pending: rows that some worker is at, by trial number.
        visited: rows that must not be proposed.
    """

    observed: tuple[tuple[int, float | None], ...]
    pending: tuple[int, ...]
    visited: Set[int]


class HistoryReader:
    """Reads the history of a study from its ledger, every trial that has ended once.

    A pruned trial counts with its last intermediate value: it was stopped because it was slow, and
    how slow is worth knowing. Trials that were interrupted say nothing of their row.
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._read = 0
        self._ended: list[tuple[datetime, int]] = []
        self._observed: list[tuple[int, float | None]] = []

    def read(self, ledger: Ledger, but: int | None = None) -> History:
        """The findings, without the trial `but` that a proposal is wanted for."""
        if ledger is not self._ledger:
            self._ledger, self._read, self._ended, self._observed = ledger, 0, [], []
        for number in ledger.ended[self._read :]:
            trial, row = ledger.trials[number], ledger.rows.get(number)
            if row is not None and not _lost(trial):
                # What came of a trial is known when it ends: a study that goes on sees the same
                # order as one that is resumed.
                when = (trial.datetime_complete or datetime.min, number)
                place = bisect(self._ended, when)
                self._ended.insert(place, when)
                self._observed.insert(place, (row, _value(trial)))
        self._read = len(ledger.ended)
        observed = self._observed
        if ledger.whole:  # of what was pruned only, nothing is known then
            observed = [one for one in observed if one[0] in ledger.visited]
        pending = (ledger.rows.get(number) for number in ledger.open if number != but)
        running = tuple(row for row in pending if row is not None)
        return History(tuple(observed), running, ledger.visited)


def _lost(trial: FrozenTrial) -> bool:
    """The trial's worker died or was interrupted before it knew anything."""
    reason = trial.user_attrs.get(REASON)
    return OUTCOME not in trial.user_attrs and reason in (INTERRUPTED, ORPHANED)


def _value(trial: FrozenTrial) -> float | None:
    known = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return trial.value if known and trial.value is not None and isfinite(trial.value) else None


LARGEST_LISTED = 131_072
"""Spaces up to this many rows are scored whole."""

_DRAWN = 65_536
"""Rows drawn uniformly from a larger space."""

_DRAWN_SLOWLY = 1_024
"""The same where rows exceed 64 bits and NumPy cannot help."""


class Candidates:
    """Rows as the model sees them by `describe`; all of the space where `rows` is None."""

    def __init__(
        self,
        space: StudySpace,
        describe: Callable[[Sequence[int]], Points],
        rows: Sequence[int] | None,
    ) -> None:
        self._space = space
        self._describe = describe
        self._rows: Sequence[int] = range(space.size) if rows is None else rows
        self._positions = None if rows is None else {row: at for at, row in enumerate(rows)}
        self.points: Points = describe(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def whole(self) -> bool:
        """Every row of the space is a candidate."""
        return self._positions is None

    def row(self, position: int) -> int:
        """The row of a candidate."""
        return self._rows[position]

    def positions(self, rows: Iterable[int]) -> list[int]:
        """Positions of those rows that are candidates."""
        if self._positions is None:
            return list(rows)
        return [self._positions[row] for row in rows if row in self._positions]

    def widen(self, centre: int) -> Points:
        """Add a row and its neighbours; returns those that were not there before."""
        if self._positions is None:
            return self.points[:0]
        near = (centre, *neighbours(self._space, centre))
        new = [row for row in near if row not in self._positions]
        self._positions.update(zip(new, range(len(self), len(self) + len(new)), strict=True))
        self._rows = [*self._rows, *new]
        added = self._describe(new)
        self.points = self.points + added
        return added


def drawn_rows(space: StudySpace, centres: Collection[int], *seed: int) -> list[int] | None:
    """Rows of a large space to score: a uniform draw, some good rows and their neighbours.

    They ascend; None when the space is small enough to be scored whole.
    """
    if space.size <= LARGEST_LISTED:
        return None
    count = _DRAWN if space.size < 2**63 else _DRAWN_SLOWLY
    random = seeded(*seed)
    rows = {random.randrange(space.size) for _ in range(count)}
    rows.update(centres)
    for centre in centres:
        rows.update(neighbours(space, centre))
    return sorted(rows)


def neighbours(space: StudySpace, row: int) -> Iterator[int]:
    """The valid rows that differ from one in a single parameter."""
    params = space.params(row)
    for name, value in params.items():
        for other in space.choices[name]:
            if other != value:
                # Another family has other parameters: such a point is incomplete, and no row.
                found = space.row({**params, name: other})
                if found is not None:
                    yield found


def seeded(*seed: int) -> Random:
    """A generator of Python's own: a space may have more rows than NumPy's can count."""
    state = np.random.SeedSequence(seed).generate_state(4)
    return Random(int.from_bytes(state.tobytes(), "little"))
