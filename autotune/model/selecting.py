"""Selection of a portfolio's programs: few that together are fast on all shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def select(
    seconds: NDArray[np.float64],
    weights: NDArray[np.float64],
    *,
    most: int,
    loss: float,
) -> tuple[list[int], float]:
    """Programs in the order of what they bring, until the loss is small enough.

    Each is the one that lowers the mean logarithm of the best time most, given those before it:
    what each brings shrinks with what is there already (it is submodular), so that the greedy
    choice is within 1 - 1/e of the best one (Nemhauser, Wolsey and Fisher, 1978).

    Args:
        seconds: times, shape (programs, shapes); infinite where a program cannot be used.
        weights: what each shape counts for, shape (shapes,).
        most: programs at most.
        loss: what the best of the selected may be slower than the best of all, as a weighted
            geometric mean: 0.02 is 2%.

    Returns:
        The selected rows, and the loss that remains.

    Raises:
        ValueError: a shape has no program at all.
    """
    logs = np.log(seconds)
    best = logs.min(axis=0)
    if not np.isfinite(best).all():
        raise ValueError("every shape needs a program that can be used for it")
    weights = weights / weights.sum()
    # Far behind is as bad as unusable, and finite: the first choice serves most shapes.
    behind = np.minimum(logs - best, _FARTHEST)
    covered = np.full(logs.shape[1], _FARTHEST)
    chosen: list[int] = []
    while len(chosen) < most:
        gains = (np.maximum(covered - behind, 0.0) * weights).sum(axis=1)
        row = int(gains.argmax())
        if gains[row] <= 0:
            break
        chosen.append(row)
        covered = np.minimum(covered, behind[row])
        if np.expm1((covered * weights).sum()) <= loss:
            break
    return chosen, float(np.expm1((covered * weights).sum()))


_FARTHEST = 5.0
