"""Visits to the problems of a preset: their order, and the division of the time among them.

Most of what tuning gains comes with the first trials, which are known-good points: a first round
visits every problem for those, in a third of the time. What is then left goes where more is
expected, judged by how far a problem is behind the vendor library and by what the second half of
its trials still brought.

Problems that differ in their rows alone, as layers of one weight do, follow each other: programs
are compiled for the first of them, and what serves it begins the next.

Where the time is too short for two rounds worth the name there is one, and where it is too short
for all problems, those visited are the ones that have no record yet or the worst, of each element
type in turn; a survey before them then gets less than its share. A visit that has
found nothing valid when its time is over goes on until it has: those after it get less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from autotune.operations.problem import Problem

MIN_VISIT_S = 3.0
"""A visit shorter than this is not begun: operands, compiling the first kernels and the finals
would leave no time for trials."""

LEAST_SURVEY = 1 / 3
"""Of the time, what a survey keeps however many problems wait: it is what serves all others."""

FIRST_SHARE = 1 / 3
"""Of the time, what the first round takes, if that is enough for all."""

LEAST_GAIN = 0.02
"""Least gain expected of a problem, however well it has gone: nobody knows the best kernel."""

LATE_GAIN = 0.05
"""The most that late trials say of it: among few trials chance gains more than a search will, and
what is behind the library goes first."""

UNKNOWN_GAIN = 1.0
"""Gain expected of a problem that has no kernel yet."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A problem's claim to time.

    Attributes:
        weight: seconds that the preset means for it.
        gain: logarithm of the speed that is expected to be gained.
        kind: its element type: a short run is to reach each.
        group: what it has in common with problems that are to follow it.
    """

    weight: float
    gain: float
    kind: str = ""
    group: Hashable = None

    @classmethod
    def of(cls, problem: Problem, weight: float, gain: float) -> Claim:
        """The claim of a problem; matrix products that differ in their rows alone are a group."""
        alike = replace(problem, m=1) if isinstance(problem, Gemm) else problem
        return cls(weight, gain, problem.dtype, alike)


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
    late = min(LATE_GAIN, math.log(min(half) / min(medians)))
    return max(LEAST_GAIN, behind + late)


def survey_s(left_s: float, share: float, problems: int) -> float:
    """Seconds for a survey: its share of what is left, unless first visits need the time."""
    if not problems:
        return left_s
    meant_s = share * left_s
    return min(meant_s, max(left_s - problems * MIN_VISIT_S, LEAST_SURVEY * left_s))


def in_turn(claims: Sequence[Claim]) -> list[int]:
    """The order of first visits: the most promising first, of equals each kind in turn.

    Those of a group follow the first of it.
    """
    seen: Counter[str] = Counter()
    first: dict[Hashable, tuple[float, int, int]] = {}
    ranks = []
    for position, claim in enumerate(claims):
        own = position if claim.group is None else (claim.group, claim.gain)
        ranks.append(first.setdefault(own, (-claim.gain, seen[claim.kind], position)))
        seen[claim.kind] += 1
    return sorted(range(len(claims)), key=ranks.__getitem__)


def second_round_s(left_s: float, problems: int) -> float:
    """Seconds that the first round leaves to the second; none where they are too few for both."""
    kept_s = min((1 - FIRST_SHARE) * left_s, left_s - problems * MIN_VISIT_S)
    return kept_s if kept_s >= MIN_VISIT_S else 0.0


def first_visit_s(left_s: float, kept_s: float, weights: Sequence[float]) -> float | None:
    """Seconds for the next problem of the first round; None when there is no time for it.

    What is kept for the second round is theirs where others took longer than they should.

    Args:
        left_s: seconds of the run.
        kept_s: those that are kept.
        weights: of this problem and of all after it.
    """
    if left_s < MIN_VISIT_S:
        return None
    spare_s = max(0.0, left_s - kept_s - len(weights) * MIN_VISIT_S)
    return MIN_VISIT_S + spare_s * weights[0] / sum(weights)


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
