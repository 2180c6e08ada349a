"""An end of a search: when going on has become unlikely to pay."""

from collections import deque
from functools import cached_property, partial

from autotune.core import arguments
from autotune.search.claims import Ledger, StudySpace
from autotune.search.model import ModelProposer

GAIN = 0.01
"""Part of the best time, improvements by less than which are not worth a search."""

_LAST = 10
"""Answers of the model of which the most hopeful one counts: a search that ends at the first
answer below a limit ends at an accident, four times as often as the limit says."""


class Prospects:
    """Probability that a search comes to something that is faster by more than 1%.

    It is that of a model of its own, whatever the sampler.

    Args:
        space: the valid rows.
        seed: of the model's draws.
    """

    def __init__(self, space: StudySpace, seed: int = 0) -> None:
        self._make = partial(ModelProposer, space, seed)
        self._answers: deque[float] = deque([1.0], maxlen=_LAST)
        self._ended = 0

    @cached_property
    def _model(self) -> ModelProposer:
        return self._make()

    def after(self, ledger: Ledger) -> float:
        """Probability given the trials that have ended; 1 before there is a model."""
        if ledger.exhausted and not ledger.open:
            return 0.0
        if len(ledger.ended) != self._ended:
            self._ended = len(ledger.ended)
            self._answers.append(self._model.chance(ledger, GAIN))
        return max(self._answers) if len(self._answers) == _LAST else 1.0


def chance(name: str, value: object) -> float | None:
    """A limit of that probability as users give it; None is no limit.

    Raises:
        InputError: it is not between 0 and 1.
    """
    if value is None:
        return None
    inside = arguments.is_number(value) and 0 < value < 1
    arguments.must(name, "a probability between 0 and 1, like 0.05", value, inside)
    assert arguments.is_number(value)
    return float(value)
