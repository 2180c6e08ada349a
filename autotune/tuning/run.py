"""One tuning run, from its study to its record: trials, finals, and the winner, which is stored.

`trials` makes the trials, a sweep's too; `budget` keeps the time, `known` says what is tried
first, `deciding` who wins the finals.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from autotune.core.session import forget
from autotune.store import EffortRecord
from autotune.tuning.deciding import decide
from autotune.tuning.known import incumbent, known_good, other_defaults, priors
from autotune.tuning.progress import Progress
from autotune.tuning.results import TrialResult, TuneResult
from autotune.tuning.trials import TrialRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.measuring.evaluator import Evaluator
    from autotune.search.model import Prior
    from autotune.tuning.budget import Budget
    from autotune.tuning.context import TuningContext
    from autotune.tuning.helping import Helpers
    from autotune.tuning.settings import Run


def tune_in(
    context: TuningContext,
    run: Run,
    budget: Budget,
    beside: Evaluator | None = None,
    helpers: Helpers | None = None,
) -> TuneResult:
    """Tune one problem.

    Args:
        context: what can be tried, and where.
        run: settings.
        budget: the time.
        beside: an evaluator whose processes may be used.
        helpers: make trials on further devices.

    Raises:
        TuningFailedError: no candidate compiled, ran and was right.
        CacheError: the cache cannot be written.
    """
    if run.progress is not None:
        run.progress(Progress.at_start(context.problem.flops, run.trials, budget.deadline))
    with context.open(run, beside, priors_of(context, run)) as (study, evaluator):
        study.enqueue(known_good(context, run.predicted))
        trials = TrialRun(context, study, evaluator, run, budget)
        if helpers is not None:
            helpers.begin(study.name, budget.deadline)
        trials.search(besides=other_defaults(context))
        if helpers is not None:
            helpers.finish(budget)
            trials.results += itertools.starmap(TrialResult, study.measured_by(helpers.pids))
        effort = EffortRecord(len(trials.results), budget.search_s, run.sampler, run.seed)
        chance = None if run.until is None else study.chance
        decision = decide(trials, study.measured(), effort, incumbent(context))
        study.note_run({"record": decision.best.id})
    forget()
    return TuneResult.of(context, study.name, decision, trials.results, budget, chance)


def priors_of(context: TuningContext, run: Run) -> Sequence[Prior]:
    """Priors of a run; they are of times."""
    return priors(context) if run.sampler == "auto" and run.objective.follows_time else ()
