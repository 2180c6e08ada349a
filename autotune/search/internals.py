"""All that is used here of Optuna's private parts, in one place.

A claim must be written to a trial that another object represents, and a trial be ended that this
process did not start; Optuna's public interface has neither. What is used: `Study._storage` and
`_trial_id` of trials, through the methods of `BaseStorage`, which is documented for storages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

TESTED = ("5.0",)
"""Releases of Optuna that this module was tried with: a test compares the installed one."""


def trial_id(trial: optuna.Trial | FrozenTrial) -> int:
    """The number that storages know a trial by, which is unique over all studies."""
    return trial._trial_id


def write_note(study: optuna.Study, trial: FrozenTrial, key: str, note: Any) -> None:
    """Write an attribute that samplers and users do not see to any trial that still runs."""
    _storage(study).set_trial_system_attr(trial_id(trial), key, note)


def end_as_failed(
    study: optuna.Study, trial: optuna.Trial | FrozenTrial, key: str, why: str
) -> bool:
    """End any running trial as failed, with an attribute; False when it had ended already."""
    try:
        _storage(study).set_trial_user_attr(trial_id(trial), key, why)
        _storage(study).set_trial_state_values(trial_id(trial), TrialState.FAIL)
    except optuna.exceptions.UpdateFinishedTrialError:
        return False
    return True


def _storage(study: optuna.Study) -> BaseStorage:
    return study._storage
