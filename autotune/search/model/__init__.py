"""The sampler `auto`: a Gaussian process over the valid configurations."""

from autotune.search.model.proposer import ModelProposer
from autotune.search.model.surrogate import EstimatedPrior, MeasuredPrior, Prior

__all__ = ["EstimatedPrior", "MeasuredPrior", "ModelProposer", "Prior"]
