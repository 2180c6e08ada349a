"""Optuna studies over search spaces, in which no trial is infeasible and none a duplicate."""

from autotune.search.feasible import FeasibleSampler, Proposer, SpaceExhaustedError
from autotune.search.records import TrialRecord
from autotune.search.samplers import make_sampler, sampler_names
from autotune.search.searcher import Searcher
from autotune.search.study import open_study
from autotune.search.subject import Subject
from autotune.search.tuning_study import Proposal, TuningStudy

__all__ = [
    "FeasibleSampler",
    "Proposal",
    "Proposer",
    "Searcher",
    "SpaceExhaustedError",
    "Subject",
    "TrialRecord",
    "TuningStudy",
    "make_sampler",
    "open_study",
    "sampler_names",
]
