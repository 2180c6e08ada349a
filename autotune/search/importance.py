"""Importance of parameters for a configuration to be among the fast ones, and its interval."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.core.configuration import Value
from autotune.search.internals import quiet

FAST_SHARE = 0.1
"""Of the points, the fastest that the importance is about."""

FEWEST_POINTS = 20
"""With fewer than two points among the fast ones, nothing can be said."""

MOST_POINTS = 1000
"""Of more, a random part is evaluated: the intervals are narrow by then."""

RESAMPLES = 30
"""Resampled studies that an interval comes from."""

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Importance:
    """A parameter's share of all parameters' importance, and its bootstrap interval (95 %)."""

    name: str
    share: float
    low: float
    high: float


def importances(
    points: Sequence[Mapping[str, Value]], times: Sequence[float], *, seed: int = 0
) -> list[Importance]:
    """Importance of every parameter for being among the fastest tenth of the points.

    By Optuna's PED-ANOVA: how much the values among the fast points differ from those among all.
    Parameters need not be the same in all points. Intervals are of bootstrap resamples: the same
    evaluation for points drawn again from these, with replacement.

    Args:
        points: values by parameter.
        times: what each point took; smaller is better.
        seed: draws the resamples.

    Returns:
        The most important first; none where there are fewer than `FEWEST_POINTS`.
    """
    if len(points) < FEWEST_POINTS:
        return []
    rng = np.random.default_rng(seed)
    chosen = list(range(len(points)))
    if len(points) > MOST_POINTS:
        chosen = sorted(rng.choice(len(points), MOST_POINTS, replace=False).tolist())
    with quiet(UserWarning):  # that values are rare is what the intervals say
        study = _Study([points[row] for row in chosen], [times[row] for row in chosen])
        found = study.importance(range(len(chosen)))
        draws = rng.integers(0, len(chosen), size=(RESAMPLES, len(chosen))).tolist()
        resampled = [study.importance(draw) for draw in draws]
    tail = (1 - _CONFIDENCE) / 2
    result = []
    for name, share in found.items():
        low, high = np.quantile([shares.get(name, 0.0) for shares in resampled], (tail, 1 - tail))
        # A resample repeats points, which makes it a little more decided than the points are.
        result.append(Importance(name, share, min(share, float(low)), max(share, float(high))))
    return sorted(result, key=lambda one: (-one.share, one.name))


class _Study(InMemoryStorage):
    """A study of which any selection of trials can be evaluated without copying them."""

    def __init__(self, points: Sequence[Mapping[str, Value]], times: Sequence[float]) -> None:
        super().__init__()
        self._selected: list[FrozenTrial] | None = None
        self._study = optuna.create_study(storage=self)
        self._evaluator = PedAnovaImportanceEvaluator(target_quantile=FAST_SHARE)
        values: dict[str, dict[Value, None]] = {}
        for point in points:
            for name, value in point.items():
                values.setdefault(name, {})[value] = None
        distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(tuple(own)) for name, own in values.items()
        }
        for point, time in zip(points, times, strict=True):
            held = {name: distributions[name] for name in point}
            self._study.add_trial(create_trial(params=dict(point), distributions=held, value=time))
        self._all = self._study.get_trials(deepcopy=False)

    def importance(self, rows: Iterable[int]) -> dict[str, float]:
        """Importance by parameter, as these trials say; one may be given several times."""
        self._selected = [self._all[row] for row in rows]
        return get_param_importances(self._study, evaluator=self._evaluator)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """The selected trials, all of which are complete."""
        if self._selected is None:
            return super().get_all_trials(study_id, deepcopy, states)
        return self._selected


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two parameters, and their share of the variance of the times' logarithms.

    That is what both explain together beyond the sum of what each explains, as functional ANOVA
    has it (Hutter, Hoos, Leyton-Brown, ICML 2014).
    """

    one: str
    other: str
    share: float


def interactions(
    points: Sequence[Mapping[str, Value]], times: Sequence[float]
) -> list[Interaction]:
    """The interaction of every two parameters, the strongest first.

    Means of cells are compared with the sum of two effects that fits them best; what chance alone
    explains, by the number of cells, is taken off where cells have several points. Restrictions
    leave cells out, so that shares are of the points given and need not add up to one.

    Args:
        points: values of the same parameters.
        times: what each point took.
    """
    found = []
    logs = np.log(np.asarray(times, dtype=np.float64))
    total = float(((logs - logs.mean()) ** 2).sum())
    names = [name for name in points[0] if len({point[name] for point in points}) > 1]
    codes = {name: _codes([point[name] for point in points]) for name in names}
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            cells, cell = np.unique(
                np.stack([codes[one], codes[other]]), axis=1, return_inverse=True
            )
            count = np.bincount(cell)
            means = np.bincount(cell, logs) / count
            left = len(logs) - len(count)
            if total <= 0:
                continue
            within = float(((logs - means[cell]) ** 2).sum())
            effects = np.hstack([np.eye(own.max() + 1)[own] for own in cells])
            root = np.sqrt(count)
            fit, _, rank, _ = np.linalg.lstsq(effects * root[:, None], means * root, rcond=None)
            beyond = float((count * (means - effects @ fit) ** 2).sum())
            chance = (len(count) - int(rank)) * within / left if left else 0.0
            found.append(Interaction(one, other, max(0.0, beyond - chance) / total))
    return sorted(found, key=lambda each: (-each.share, each.one, each.other))


def _codes(values: Sequence[Value]) -> NDArray[np.int64]:
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values], dtype=np.int64)
