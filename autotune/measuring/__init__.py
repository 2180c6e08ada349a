"""Judging kernels: processes that may be lost, trials, races, rounds, noise and verdicts.

Importing this package imports no compiler and no device library; the modules of a target do,
when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.measuring.effort import Baseline as Baseline
    from autotune.measuring.effort import Effort as Effort
    from autotune.measuring.effort import Finals as Finals
    from autotune.measuring.effort import Stage as Stage
    from autotune.measuring.evaluator import Evaluator as Evaluator
    from autotune.measuring.failure import Failure as Failure
    from autotune.measuring.processes import WorkerProcess as WorkerProcess

_HOMES = {
    "Baseline": "effort",
    "Effort": "effort",
    "Evaluator": "evaluator",
    "Failure": "failure",
    "Finals": "effort",
    "Stage": "effort",
    "WorkerProcess": "processes",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
