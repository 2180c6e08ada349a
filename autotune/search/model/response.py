"""Measured values as the model wants them: logarithms with a compressed bad tail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOOD = 0.3
"""Share of the values that are told apart in full."""

_NARROWEST = 1e-3
"""Spread of log values below which differences are taken for noise."""


def response(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardised responses to values of which small ones are good.

    Values above 0 are replaced by their logarithms. Beyond the best third the excess is compressed
    logarithmically: how bad bad configurations are matters little, and must not set the scale.

    Args:
        values: finite, at least one.

    Returns:
        Responses with mean 0 and, unless all are equal, standard deviation 1.
    """
    logs = np.log(values) if values.min() > 0 else values / max(1e-300, np.abs(values).max())
    middle = np.quantile(logs, _GOOD)
    width = max(float(middle - logs.min()), _NARROWEST)
    excess = np.maximum(logs - middle, 0.0)
    squeezed = np.minimum(logs, middle) + width * np.log1p(excess / width)
    spread = float(squeezed.std())
    return np.asarray((squeezed - squeezed.mean()) / (spread if spread > 1e-9 else 1.0))


def informative(values: NDArray[np.float64], most: int) -> list[int]:
    """Which of many values to learn from: the better half of `most`, and a spread of the rest."""
    if len(values) <= most:
        return list(range(len(values)))
    order = np.argsort(values, kind="stable")
    rest = order[most // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, most - most // 2).astype(np.int64)]
    return sorted([*order[: most // 2].tolist(), *spread.tolist()])
