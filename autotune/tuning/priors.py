"""What is known of a problem before its search begins, as priors for the sampler `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.search.model import EstimatedPrior, MeasuredPrior
from autotune.store import problem_sizes, size_distance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.search.model import Prior
    from autotune.serving.predicting import Predictor
    from autotune.serving.target import Target
    from autotune.store import MeasuredProblem, TuningCache

_MOST_PROBLEMS = 2
"""Of so many problems that were measured before, each is a prior."""

_FEWEST_MEASUREMENTS = 20
"""A problem of which fewer configurations worked says too little."""

_OTHER_DTYPE = 2.0
_OTHER_DEVICE = 4.0
"""What counts as much as a factor of two in one size, that many times."""


def known_priors(
    problem: Problem,
    target: Target,
    device: Device,
    families: Mapping[str, KernelFamily],
    store: TuningCache,
    predictor: Predictor,
) -> list[Prior]:
    """What is known of a problem.

    The target's model of its families, if it has one; what the device's own measurements say of
    them; and what was measured of near problems.

    Raises:
        CacheError: the store cannot be read.
    """
    found: list[Prior] = []
    models = {name: target.model(family, problem, device) for name, family in families.items()}
    estimates = {name: model for name, model in models.items() if model is not None}
    if estimates:
        found.append(EstimatedPrior(estimates))
    if learned := predictor.prior(problem):
        found.append(EstimatedPrior(learned))

    sizes = problem_sizes(problem)

    def distance(measured: MeasuredProblem) -> float:
        far = size_distance(measured.problem, sizes)
        far += _OTHER_DTYPE * (measured.problem.get("dtype") != problem.dtype)
        return far + _OTHER_DEVICE * (measured.fingerprint != device.fingerprint.digest)

    known = [
        measured
        for measured in store.measured_problems(problem.operation, target.name)
        if measured.successes >= _FEWEST_MEASUREMENTS
    ]
    for measured in sorted(known, key=distance)[:_MOST_PROBLEMS]:
        rows = store.measurements(
            fingerprint_digest=measured.fingerprint, problem=measured.problem, target=target.name
        )
        times = [
            (row.candidate, row.measurement.median_s)
            for row in rows
            if row.measurement.ok and row.measurement.median_s is not None
        ]
        found.append(MeasuredPrior(times))
    return found
