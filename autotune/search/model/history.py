"""What a study has found so far, in the order in which it was found."""

from __future__ import annotations

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

    @classmethod
    def of(cls, ledger: Ledger, but: int | None = None) -> History:
        """Read a ledger, without the trial `but` that a proposal is wanted for.

        A pruned trial counts with its last intermediate value: it was stopped because it was slow,
        and how slow is worth knowing. Trials that were interrupted say nothing of their row.
        """
        ended: list[FrozenTrial] = []
        pending: list[int] = []
        for trial in ledger.trials:
            row = ledger.rows.get(trial.number)
            if row is None or trial.number == but:
                continue
            if not trial.state.is_finished():
                pending.append(row)
            elif row in ledger.visited and not _lost(trial):
                ended.append(trial)
        # What came of a trial is known when it ends: a study that goes on sees the same order
        # as one that is resumed.
        ended.sort(key=lambda trial: (trial.datetime_complete or datetime.min, trial.number))
        observed = tuple((ledger.rows[trial.number], _value(trial)) for trial in ended)
        return cls(observed, tuple(pending), ledger.visited)


def _lost(trial: FrozenTrial) -> bool:
    """Whether a trial's worker died or was interrupted before it knew anything."""
    reason = trial.user_attrs.get(REASON)
    return OUTCOME not in trial.user_attrs and reason in (INTERRUPTED, ORPHANED)


def _value(trial: FrozenTrial) -> float | None:
    known = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return trial.value if known and trial.value is not None and isfinite(trial.value) else None
