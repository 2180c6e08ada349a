"""Knowledge of a problem before its search begins: priors, first trials, the incumbent."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate
from autotune.core.errors import NotTunedError, SpaceError
from autotune.families.offers import default_family
from autotune.search.model import EstimatedPrior, MeasuredPrior
from autotune.serving import lookup
from autotune.store import neighbours, problem_sizes, size_distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autotune.model import Key
    from autotune.search.model import Prior
    from autotune.store import Match, MeasuredProblem
    from autotune.tuning.context import TuningContext

MOST_PROBLEMS = 2
"""Problems measured before that are priors, the nearest ones."""

FEWEST_MEASUREMENTS = 20
"""Configurations that worked, below which a measured problem says too little."""

OTHER_DTYPE, OTHER_DEVICE = 2.0, 4.0
"""Distances of another dtype and of another device; a factor of two in one size is 1."""

NEIGHBOURS = 3
"""Records of near problems whose candidates are tried first."""

CALLS = 2
"""Calls of one program, of first trials that the device's cost model chooses: about others the
model is more likely to be wrong."""


def priors(context: TuningContext) -> list[Prior]:
    """Priors for the sampler `auto`: cost models, and measurements of near problems.

    Raises:
        CacheError: the store cannot be read.
    """
    problem, target, device = context.problem, context.target, context.device
    families = {name: context.families[name] for name in context.union.spaces}
    store, predictor = context.store, context.predictor(problem.operation)
    found: list[Prior] = []
    models = {
        name: target.estimates.model(family, problem, device) for name, family in families.items()
    }
    if estimates := {name: model for name, model in models.items() if model is not None}:
        found.append(EstimatedPrior(estimates))
    if learned := predictor.prior(problem):
        found.append(EstimatedPrior(learned))
    sizes = problem_sizes(problem)

    def distance(measured: MeasuredProblem) -> float:
        far = size_distance(measured.problem, sizes)
        far += OTHER_DTYPE * (measured.problem.get("dtype") != problem.dtype)
        return far + OTHER_DEVICE * (measured.fingerprint != device.fingerprint.digest)

    known = store.measured_problems(problem.operation, target.name)
    known = [measured for measured in known if measured.successes >= FEWEST_MEASUREMENTS]
    for measured in sorted(known, key=distance)[:MOST_PROBLEMS]:
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


def known_good(context: TuningContext, predicted: int) -> Iterator[Candidate]:
    """First trials: records of near problems, the cost model's favourites, then presets.

    What is not valid for this problem and device is moved to the nearest that is.

    Args:
        context: the problem, and where it is tuned.
        predicted: favourites at most.
    """
    problem, device, spaces = context.problem, context.device, context.union.spaces
    records = context.store.records(operation=problem.operation, target=context.target.name)
    near = neighbours(records, problem, device.fingerprint, limit=NEIGHBOURS)
    wanted = [record.candidate for record in near]
    wanted += islice(_favourites(context), predicted)
    if (default := _default(context)) is not None:
        family, space = context.families[default], spaces[default]
        placed = (preset.placed(space) for preset in family.presets.values())
        wanted.append(Candidate(default, family.default(problem, device.limits)))
        # A preset that is not itself on this problem is left out: one for another type, say.
        wanted += [Candidate(default, point) for point in placed if space.rejection(point) is None]
    for candidate in wanted:
        family_space = spaces.get(candidate.family)
        if family_space is None:
            continue
        try:
            known = context.families[candidate.family].conform(candidate.configuration)
        except SpaceError:  # its parameters were others when that was tuned
            continue
        row = family_space.nearest(known, ())
        if row is not None:
            yield Candidate(candidate.family, family_space[row])


def other_defaults(context: TuningContext) -> Iterable[Candidate]:
    """Defaults of the families that are not the default one; their presets are not tried."""
    default = _default(context)
    for name in context.union.spaces:
        if name != default:
            family = context.families[name]
            yield Candidate(name, family.default(context.problem, context.device.limits))


def incumbent(context: TuningContext) -> Match | None:
    """The record that serves the problem now; None where none does."""
    try:
        found = lookup.look_up(
            context.problem,
            context.target,
            match="stale",
            device=context.wanted_device,
            cache=context.store.path,
            extra_families=context.extra_families,
        )
    except NotTunedError:
        return None
    record = found.match.record
    # With fewer threads than it was tuned with it is another candidate, and no rival.
    if record is None or record.candidate != found.candidate:
        return None
    return found.match if record.candidate.family in context.families else None


def _favourites(context: TuningContext) -> Iterator[Candidate]:
    """Favourites of the device's cost model, of several programs."""
    calls: Counter[Key] = Counter()
    predictor = context.predictor(context.problem.operation)
    for favourite in predictor.favourites(context.problem):
        calls[favourite.entry.key] += 1
        if calls[favourite.entry.key] <= CALLS:
            yield favourite.candidate


def _default(context: TuningContext) -> str | None:
    """The default among the families that are searched."""
    searched = {name: context.families[name] for name in context.union.spaces}
    return default_family(searched, context.problem, context.device.limits)
