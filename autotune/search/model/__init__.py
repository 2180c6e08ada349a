"""The sampler `auto`: a Gaussian process over the valid configurations."""

from autotune.search.model.priors import EstimatedPrior, MeasuredPrior, Prior
from autotune.search.model.proposer import ModelProposer

__all__ = ["EstimatedPrior", "MeasuredPrior", "ModelProposer", "Prior"]
