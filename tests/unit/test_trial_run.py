"""The order in which a trial's result is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core.configuration import Candidate, Configuration
from autotune.core.measurement import Measurement, Outcome
from autotune.tuning.trial_run import TrialRun


class KilledError(BaseException):
    """Stands for the end of the process."""


def test_a_result_is_stored_before_it_is_told() -> None:
    measurement = Measurement(Outcome.OK, 1e-3)
    candidate = Candidate("family", Configuration({"x": 1}))
    stored: list[Any] = []

    def killed(*_: object) -> None:
        raise KilledError

    run = TrialRun(
        SimpleNamespace(
            store=SimpleNamespace(add_measurements=lambda *given: stored.extend(given[-1])),
            device=SimpleNamespace(fingerprint=None),
            target=SimpleNamespace(name="cpu"),
            problem=None,
        ),
        SimpleNamespace(name="study", tell=killed),
        SimpleNamespace(evaluate=lambda *_: measurement, finals_s=0.0),
        trials=1,
    )
    with pytest.raises(KilledError):
        run._trial(SimpleNamespace(candidate=candidate))
    [(tried, kept)] = stored
    assert (tried, kept.outcome, kept.median_s) == (candidate, Outcome.OK, 1e-3)
    assert kept.details["trial_s"] >= 0
