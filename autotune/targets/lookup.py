"""Which kernel serves a problem: the records that there are, held against what is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate
from autotune.core.errors import InputError, NotTunedError, SpaceError, UnknownNameError
from autotune.core.paths import CacheLocations
from autotune.families.catalog import catalog
from autotune.families.launch import Binary
from autotune.families.offers import refusal
from autotune.families.program_cache import ProgramCache
from autotune.store import Match, MatchQuality, TuningRecord, find, pools, record_sources
from autotune.targets.base import Target
from autotune.targets.invocation import Invocation, not_tuned
from autotune.targets.predicting import predictor_of

if TYPE_CHECKING:
    from autotune.core.device import Device, DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.index import Families
    from autotune.operations.problem import Problem
    from autotune.space import SearchSpace
    from autotune.space.restriction import Rejection
    from autotune.store import RecordSource
    from autotune.targets.predicting import Prediction

MATCHES = ("exact", "stale", "nearest")
"""What `load` may settle for: the problem's own record, one made by another toolchain or
template, or the best there is, down to a family's default configuration."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Which kernel serves a problem; nothing of it is compiled or loaded.

    Attributes:
        target: where it runs.
        device: as the target read it.
        family: the candidate's family.
        candidate: valid for the problem on the device.
        match: what was found in the caches.
        prediction: the model's choice, where that serves.
    """

    target: Target
    device: Device
    family: KernelFamily
    candidate: Candidate
    match: Match
    prediction: Prediction | None = None


def look_up(
    problem: Problem,
    target: Target,
    *,
    match: str,
    device: int | str | None = None,
    cache: str | Path | None = None,
    extra_families: Sequence[Path] = (),
) -> Lookup:
    """Find what `autotune.load` would load; arguments and errors are those of it."""
    allowed = qualities(match)
    place = CacheLocations.at(cache)
    here = target.runnable(target.device(problem, device))
    families = catalog(
        target.name, problem.operation, extra_families, keep=_facts_of(place, target.name)
    )
    fitting = _Fitting(families, problem, here.limits)
    wanted = MatchQuality.PREDICTED in allowed
    found, prediction = _find(problem, target, here, families, fitting, place, predict=wanted)
    if found.quality not in allowed:
        invocation = Invocation.of(
            problem,
            target,
            here.fingerprint,
            device=device,
            cache=cache,
            extra_families=extra_families,
        )
        enough = "stale" if found.quality is MatchQuality.STALE else "nearest"
        raise NotTunedError(not_tuned(invocation, families, found.reason, enough))
    if prediction is not None:
        family = families[prediction.candidate.family]
        return Lookup(target, here, family, prediction.candidate, found, prediction)
    candidate = _candidate(problem, target, here, families, fitting, found)
    if found.record is not None and (
        cap := _capped(problem, found.record.candidate, families, here)
    ):
        found = replace(found, reason="; ".join(filter(None, (found.reason, cap))))
    return Lookup(target, here, families[candidate.family], candidate, found)


def _facts_of(place: CacheLocations, target: str) -> Path:
    """Where digests of families are kept: with the programs, where this process may write."""
    return ProgramCache(place.programs).folder / target


def binary_of(problem: Problem, found: Lookup, cache: str | Path | None = None) -> Binary | None:
    """What the winner of a record that was found was compiled to, if it is kept and may be used.

    Args:
        problem: what it is for.
        found: as `look_up` gives it.
        cache: as for `load`.
    """
    place = CacheLocations.at(cache)
    if found.prediction is not None:
        return _predicted_binary(found.prediction, found.device, place)
    return _binary(problem, found.family, found.candidate, found.device, found.match.record, place)


def qualities(match: str) -> tuple[MatchQuality, ...]:
    """The qualities that a `match` of `load` allows."""
    if match not in MATCHES:
        raise UnknownNameError(f"match must be one of {', '.join(MATCHES)}, got {match!r}")
    return {
        "exact": (MatchQuality.EXACT,),
        "stale": (MatchQuality.EXACT, MatchQuality.STALE),
        "nearest": tuple(MatchQuality),
    }[match]


class _Fitting:
    """Tuned candidates, fitted to a problem and a device: what takes time is done once a lookup.

    Args:
        families: by name.
        problem: what is to be computed.
        limits: of the device it is to run on.
    """

    def __init__(self, families: Families, problem: Problem, limits: DeviceLimits) -> None:
        self._families = families
        self._problem = problem
        self._limits = limits
        self._spaces: dict[str, SearchSpace] = {}
        self._fitted: dict[Candidate, Candidate | None] = {}

    def rejection(self, tuned: Candidate) -> Rejection | None:
        """Why a candidate is not valid here; None where it is."""
        return self._space(tuned.family).rejection(tuned.configuration)

    def fitted(self, tuned: Candidate) -> Candidate | None:
        """The candidate itself or, where it is not valid here, one near to it."""
        if tuned not in self._fitted:
            self._fitted[tuned] = self._nearest(tuned)
        return self._fitted[tuned]

    def _nearest(self, tuned: Candidate) -> Candidate | None:
        if self.rejection(tuned) is None:  # at a fraction of the cost of the space's rows
            return tuned
        space = self._space(tuned.family)
        row = space.nearest(tuned.configuration, ())
        return None if row is None else Candidate(tuned.family, space[row])

    def _space(self, name: str) -> SearchSpace:
        if name not in self._spaces:
            self._spaces[name] = self._families[name].space(self._problem, self._limits)
        return self._spaces[name]


def _find(
    problem: Problem,
    target: Target,
    device: Device,
    families: Families,
    fitting: _Fitting,
    place: CacheLocations,
    *,
    predict: bool,
) -> tuple[Match, Prediction | None]:
    """The best record for a problem; no more records are read than it takes to know.

    Where the problem itself has none that can be used, the device's model chooses, if it may and
    there is one.
    """

    def unusable(record: TuningRecord) -> str | None:
        tuned, name = record.candidate, record.candidate.family
        if name not in families:
            return f"family {name!r} is not among the families found"
        family = families[name]
        try:
            family.conform(tuned.configuration)
        except SpaceError as error:  # its parameters were others when that was tuned
            return str(error)
        if record.problem == problem.key():
            rejection = fitting.rejection(tuned)
            capped = rejection is not None and _capped(problem, tuned, families, device)
            if rejection is None or (capped and fitting.fitted(tuned)):
                return None
            return str(rejection)
        reason = family.unsupported(problem)
        if reason is None and not fitting.fitted(tuned):
            reason = f"family {family.name!r} has no configuration that is valid here"
        return reason

    sources = record_sources(place.database, device.fingerprint.kind)

    def has_binary(record: TuningRecord) -> bool:
        kept = record.binary
        return kept is not None and _content(sources, kept.digest) is not None

    found = None
    for records in pools(sources, problem, target.name, device.fingerprint):
        found = find(records, problem, target.name, device, families.digests, unusable, has_binary)
        if found.record is not None:
            break
        if predict:
            predict = False  # what is to come are records of other problems
            predictor = predictor_of(sources, problem.operation, target.name, families, device)
            prediction = predictor.choose(problem)
            if prediction is not None:
                reason = "; ".join((prediction.reason, found.reason))
                return Match(None, MatchQuality.PREDICTED, reason), prediction
    assert found is not None  # there is always a first pool
    return found, None


def _candidate(
    problem: Problem,
    target: Target,
    device: Device,
    families: Families,
    fitting: _Fitting,
    found: Match,
) -> Candidate:
    """The candidate a match stands for, moved to the nearest configuration valid here."""
    if found.record is None:
        if (reason := refusal(families, problem)) is not None:
            raise InputError(reason)
        able = [name for name, each in families.items() if each.unsupported(problem) is None]
        default = target.default_family(device)
        family = families[default if default in able else able[0]]
        return Candidate(family.name, family.default(problem, device.limits))
    fitted = fitting.fitted(found.record.candidate)
    if fitted is None:
        name = found.record.candidate.family
        raise InputError(f"family {name!r} has no valid configuration for {problem.label}")
    return fitted


def _capped(problem: Problem, tuned: Candidate, families: Families, device: Device) -> str:
    """Why a candidate that was tuned with more threads than there are now must have fewer."""
    usable = device.limits.names().get("max_threads")
    if usable is None:
        return ""
    threads = families[tuned.family].thread_count(tuned.configuration, problem.dtype)
    if threads <= usable:
        return ""
    return f"tuned with {threads} threads, and this process may use {usable}"


def _binary(
    problem: Problem,
    family: KernelFamily,
    candidate: Candidate,
    device: Device,
    record: TuningRecord | None,
    place: CacheLocations,
) -> Binary | None:
    """What a record's winner was compiled to, if that is here and may be used for the problem."""
    if record is None or record.binary is None or candidate != record.candidate:
        return None
    kept = record.binary
    current = family.digest == record.family_digest
    # A kernel of another template is launched as it was measured, or not at all.
    if kept.architecture != getattr(device.limits, "architecture", None) or not (
        current or kept.launch.sizes == problem.shape
    ):
        return None
    sources = record_sources(place.database, device.fingerprint.kind)
    binary = _content(sources, kept.digest)
    support = b"" if kept.support is None else _content(sources, kept.support)
    if binary is None or support is None:
        return None
    return Binary(binary, kept.architecture, None if current else kept.launch, support)


def _predicted_binary(
    prediction: Prediction, device: Device, place: CacheLocations
) -> Binary | None:
    """The binary of a portfolio's program, if it is here and for this architecture."""
    entry, architecture = prediction.entry, prediction.portfolio.architecture
    if entry.binary is None or architecture != getattr(device.limits, "architecture", None):
        return None
    sources = record_sources(place.database, device.fingerprint.kind)
    binary = _content(sources, entry.binary)
    support = b"" if entry.support is None else _content(sources, entry.support)
    if binary is None or support is None:
        return None
    return Binary(binary, architecture, None, support)


def _content(sources: Sequence[RecordSource], digest: str) -> bytes | None:
    return next(filter(None, (source.binary(digest) for source in sources)), None)
