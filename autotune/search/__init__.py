"""Optuna studies over search spaces, in which no trial is infeasible and none a duplicate."""

from autotune.core.errors import MissingDependencyError
from autotune.core.installing import install_hint

try:
    from autotune.search.feasible import FeasibleSampler, Proposer, SpaceExhaustedError
    from autotune.search.reading import TrialRecord
    from autotune.search.samplers import check_sampler, make_sampler, sampler_names
    from autotune.search.searcher import Searcher
    from autotune.search.stopping import chance
    from autotune.search.storage import check_storage
    from autotune.search.study import Proposal, Subject, TuningStudy, open_study
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("optuna", "scipy"):
        raise
    raise MissingDependencyError(
        f"tuning and searching need {error.name}, which is not installed: "
        f"{install_hint()}, in place of autotune-kernels-slim"
    ) from error

__all__ = [
    "FeasibleSampler",
    "Proposal",
    "Proposer",
    "Searcher",
    "SpaceExhaustedError",
    "Subject",
    "TrialRecord",
    "TuningStudy",
    "chance",
    "check_sampler",
    "check_storage",
    "make_sampler",
    "open_study",
    "sampler_names",
]
