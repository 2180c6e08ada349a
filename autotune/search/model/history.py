"""The findings of a study so far, in the order in which they were found."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING

from optuna.trial import TrialState

from autotune.search.claims import INTERRUPTED, ORPHANED, OUTCOME, REASON

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from autotune.search.claims import Ledger


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
