"""Facts that follow from trials: progress, ties, where the time went, why trials failed."""

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.core.arguments import is_number
from autotune.core.configuration import Value
from autotune.core.measurement import Outcome
from autotune.reporting.study import Study, Trial
from autotune.search.goals import front
from autotune.search.importance import Importance, importances

NEAR = 1.05
"""A trial this near to the study's best counts as having found it."""

SPENT: Mapping[str, str] = {
    "compiling": "waiting for compilers",
    "trials": "verifying and timing",
    "library": "timing the vendor library",
    "finals": "finals",
    "proposing": "choosing what to try",
}
"""Parts of the wall time that runs note, and how they are called."""

REST = "starting, storing, other"

_FASTEST_KEPT = 0.25
_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


def best_so_far(study: Study) -> Iterator[tuple[Trial, float | None]]:
    """Every trial, and the smallest value of those that were OK until then."""
    best: float | None = None
    for trial in study.trials:
        if trial.ok and trial.value is not None and (best is None or trial.value < best):
            best = trial.value
        yield trial, best


def improvements(study: Study) -> list[Trial]:
    """The trials that were faster than all before them."""
    found: list[Trial] = []
    for trial, best in best_so_far(study):
        is_first = not found or trial.value != found[-1].value
        if trial.ok and trial.value == best and is_first:
            found.append(trial)
    return found


def trials_to_near(study: Study) -> int | None:
    """Trials made until one was within 5 % of the study's best; None where none was OK."""
    if not study.ranked:
        return None
    near = NEAR * (study.ranked[0].value or 0.0)
    bests = (best for _, best in best_so_far(study))
    return next(count for count, best in enumerate(bests, 1) if best is not None and best <= near)


def fronts(study: Study) -> tuple[list[Trial], list[Trial]]:
    """Trials with a time and an energy, and those of them that none beats in both."""
    known = [trial for trial in study.ranked if trial.detail("joules") is not None]
    costs = [(trial.value or 0.0, trial.detail("joules") or 0.0) for trial in known]
    return known, [known[at] for at in front(costs)]


def ties(study: Study) -> set[int]:
    """Numbers of the trials that cannot be told from the fastest one: their intervals overlap."""
    ranked = study.ranked
    if not ranked or ranked[0].interval is None:
        return set()
    high = ranked[0].interval[1]
    others = (trial for trial in ranked[1:] if trial.interval is not None)
    return {trial.number for trial in others if trial.interval and trial.interval[0] <= high}


def importance_of(studies: Sequence[Study]) -> dict[str, list[Importance]]:
    """By study, the importance of every parameter that took several values.

    Parameters are named with their family where there are several, in whatever study.
    """
    several = len({trial.family for study in studies for trial in study.ranked}) > 1
    return {study.name: _importance(study, several) for study in studies}


def _importance(study: Study, several: bool) -> list[Importance]:
    timed = [trial for trial in study.trials if trial.ok]
    points = [_named(trial, several) for trial in timed]
    taken: defaultdict[str, set[Value]] = defaultdict(set)
    for point in points:
        for name, value in point.items():
            taken[name].add(value)
    varied = [{n: v for n, v in point.items() if len(taken[n]) > 1} for point in points]
    if not any(varied):
        return []
    return importances(varied, [trial.value or 0.0 for trial in timed])


def _named(trial: Trial, several: bool) -> dict[str, Value]:
    """The values of a trial under names that say of which family they are."""
    if not several:
        return dict(trial.configuration)
    own = {f"{trial.family}.{name}": value for name, value in trial.configuration.items()}
    return {"family": trial.family, **own}


def spent(study: Study) -> dict[str, float]:
    """Seconds of wall time by what they went into; of trials alone where runs noted nothing."""
    found: defaultdict[str, float] = defaultdict(float)
    for run in study.runs:
        noted = run.get("spent_s")
        if not isinstance(noted, dict):
            continue
        known = {name: float(noted[name]) for name in SPENT if is_number(noted.get(name))}
        for name, seconds in known.items():
            found[SPENT[name]] += seconds
        if is_number(took := run.get("seconds")):
            found[REST] += max(0.0, float(took) - sum(known.values()))
    if not found:
        found[SPENT["trials"]] = sum(trial.detail("trial_s") or 0.0 for trial in study.trials)
    return {name: seconds for name, seconds in found.items() if seconds > 0}


@dataclass(frozen=True, slots=True)
class FamilyTime:
    """Seconds that the trials of one family took; None where they were not kept."""

    family: str
    trials: int
    compile_s: float | None  # of all compiler processes together
    trial_s: float | None  # of verifying and timing
    timed_s: float  # of that, the calls behind the medians


def family_times(study: Study) -> list[FamilyTime]:
    """Times of each family's trials, the longest first."""
    families: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in study.trials:
        families[trial.family].append(trial)
    rows = []
    for family, trials in families.items():
        # Trials that say that they share a program were compiled once; compiled anew, it took
        # another time.
        compiles = {
            (trial.details.get("program", trial.number), seconds)
            for trial in trials
            if (seconds := trial.detail("compile_s")) is not None
        }
        tried = [s for trial in trials if (s := trial.detail("trial_s")) is not None]
        rows.append(
            FamilyTime(
                family,
                len(trials),
                sum(seconds for _, seconds in compiles) if compiles else None,
                sum(tried) if tried else None,
                sum((trial.value or 0.0) * trial.repeats for trial in trials if trial.ok),
            )
        )
    return sorted(rows, key=lambda row: -((row.compile_s or 0.0) + (row.trial_s or 0.0)))


@dataclass(frozen=True, slots=True)
class Failures:
    """Trials that ended alike: of their reasons, which differ in numbers only, that of one."""

    outcome: str
    reason: str
    count: int
    example: Trial


def failures(study: Study) -> list[Failures]:
    """Trials that were not timed to the end, by outcome and reason, the most frequent first."""
    alike: defaultdict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in study.trials:
        if trial.outcome != Outcome.OK:
            alike[trial.outcome, _NUMBER.sub("#", trial.reason)].append(trial)
    found = [
        Failures(outcome, trials[0].reason or "no reason was recorded", len(trials), trials[0])
        for (outcome, _), trials in alike.items()
    ]
    return sorted(found, key=lambda one: (-one.count, one.outcome, one.reason))


def sample(trials: Sequence[Trial], most: int) -> list[Trial]:
    """At most so many trials, in their order: a quarter the fastest, the rest drawn by lot."""
    if len(trials) <= most:
        return list(trials)
    timed = sorted((t for t in trials if t.value is not None), key=lambda t: t.value or 0.0)
    kept = {trial.number: trial for trial in timed[: int(_FASTEST_KEPT * most)]}
    others = [trial for trial in trials if trial.number not in kept]
    drawn = random.Random(0).sample(others, most - len(kept))
    return sorted([*kept.values(), *drawn], key=lambda trial: trial.number)
