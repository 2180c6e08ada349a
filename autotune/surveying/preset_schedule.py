"""Division of a preset's time: all problems first, then those that promise most.

Most of what tuning gains comes with the first trials, which are known-good points: a first round
visits every problem for those. What is then left goes where more is expected, judged by how far a
problem is behind the vendor library and by what the second half of its trials still brought.

Where the time is too short for two rounds worth the name there is one, and where it is too short
for all problems, those visited are the ones that have no record yet or the worst, of each element
type in turn; a survey before them then gets less than its share. A visit that has
found nothing valid when its time is over goes on until it has: those after it get less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MIN_VISIT_S = 6.0
"""A visit shorter than this is not begun: operands, compiling the first kernels and the finals
would leave no time for trials."""

LEAST_SURVEY = 1 / 3
"""Of the time, what a survey keeps however many problems wait: it is what serves all others."""

SECOND_SHARE = 0.5
"""Of the time, what is kept for the second round."""

LEAST_GAIN = 0.02
"""Least gain expected of a problem, however well it has gone: nobody knows the best kernel."""

UNKNOWN_GAIN = 1.0
"""Gain expected of a problem that has no kernel yet."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A problem's claim to time.

    Attributes:
        weight: seconds that the preset means for it.
        gain: logarithm of the speed that is expected to be gained.
        kind: its element type: a short run is to reach each.
    """

    weight: float
    gain: float
    kind: str = ""


def expected_gain(ratio: float | None, medians: Sequence[float]) -> float:
    """Logarithm of the speed that more time for a problem is expected to gain.

    Args:
        ratio: speed of its best kernel relative to the vendor library; None without either.
        medians: of its trials so far, in order, in seconds.
    """
    if not medians:
        return UNKNOWN_GAIN
    behind = 0.0 if ratio is None else max(0.0, -math.log(ratio))
    half = medians[: (len(medians) + 1) // 2]
    late = math.log(min(half) / min(medians))
    return max(LEAST_GAIN, behind + late)


def survey_s(left_s: float, share: float, problems: int) -> float:
    """Seconds for a survey: its share of what is left, unless first visits need the time."""
    if not problems:
        return left_s
    meant_s = share * left_s
    return min(meant_s, max(left_s - problems * MIN_VISIT_S, LEAST_SURVEY * left_s))


def in_turn(claims: Sequence[Claim]) -> list[int]:
    """The order of first visits: the most promising first, of equals each kind in turn."""
    seen: Counter[str] = Counter()
    ranks = []
    for claim in claims:
        ranks.append((-claim.gain, seen[claim.kind]))
        seen[claim.kind] += 1
    return sorted(range(len(claims)), key=ranks.__getitem__)


def second_round_s(left_s: float, weights: Sequence[float]) -> float:
    """Seconds that the first round leaves to the second; none where they are too few for both."""
    if not weights:
        return 0.0
    first_s = (1 - SECOND_SHARE) * left_s * min(weights) / sum(weights)
    return SECOND_SHARE * left_s if first_s >= MIN_VISIT_S else 0.0


def first_visit_s(left_s: float, weights: Sequence[float]) -> float | None:
    """Seconds for the next problem of the first round; None when there is no time for it.

    Weights are those of this problem and of all after it.
    """
    if left_s < MIN_VISIT_S:
        return None
    return max(MIN_VISIT_S, left_s * weights[0] / sum(weights))


def second_visits(left_s: float, claims: Sequence[Claim]) -> list[tuple[int, float]]:
    """Second visits, by position and with their seconds: the most promising first."""
    order = sorted(range(len(claims)), key=lambda position: -claims[position].gain)
    while order:
        shares = [claims[position].weight * claims[position].gain for position in order]
        seconds = [left_s * share / sum(shares) for share in shares]
        least = min(range(len(order)), key=seconds.__getitem__)
        if seconds[least] >= MIN_VISIT_S:
            return list(zip(order, seconds, strict=True))
        del order[least]
    return []
