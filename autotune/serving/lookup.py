"""Look-ups: the candidate that serves a problem, by records or a model; nothing is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autotune.core.configuration import Candidate
from autotune.core.errors import InputError, NotTunedError, UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.families.gpu.launch import Binary
from autotune.families.offers import default_family, refusal
from autotune.serving.invocation import Invocation, not_tuned
from autotune.serving.resident import Resident, resident
from autotune.serving.target import Target
from autotune.store import Match, MatchQuality, TuningRecord, find, pools
from autotune.store.matching import nothing_fits

if TYPE_CHECKING:
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import LaunchPlan
    from autotune.operations.problem import Problem
    from autotune.serving.fitting import Fitting
    from autotune.serving.predicting import Prediction
    from autotune.store import RecordSource

_QUALITIES = {
    "exact": (MatchQuality.EXACT,),
    "stale": (MatchQuality.EXACT, MatchQuality.STALE),
    "predicted": (
        MatchQuality.EXACT,
        MatchQuality.STALE,
        MatchQuality.MEASURED,
        MatchQuality.PREDICTED,
    ),
    "nearest": tuple(MatchQuality),
}

MATCHES = tuple(_QUALITIES)
"""Values of `match`: the problem's own record; also one made by another toolchain or template;
also a model's choice; or the best there is, down to a family's default configuration."""

_LOOKED_THROUGH = 16
"""Predictions, best first, that are looked through for a program."""

LASTING = ("predicted", "nearest")
"""Matches whose look-ups take what was read before, and may ask a model."""


class Lookup(NamedTuple):
    """The candidate that serves a problem.

    Attributes:
        target: where it runs.
        shared: in common with other look-ups.
        family: the candidate's family.
        candidate: valid for the problem on the device.
        match: the record, and how well it fits.
        prediction: the model's choice, where that serves.
    """

    target: Target
    shared: Resident
    family: KernelFamily
    candidate: Candidate
    match: Match
    prediction: Prediction | None = None

    @property
    def device(self) -> Device:
        """As the target read it."""
        return self.shared.device


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
    lasting = match in LASTING
    shared = resident(problem, target, device, cache, extra_families, now=not lasting)
    if not lasting and (problem, match) in shared.found:
        earlier: Lookup = shared.found[problem, match]
        return earlier
    # Most shapes that are new have no records, and their callers wait.
    new = lasting and problem.shape not in shared.shapes
    if new and (prediction := shared.predictor.choose(problem)) is not None:
        return _predicted(target, shared, prediction, nothing_fits(problem, shared.device))
    fitting = shared.fits.at(problem)
    found, prediction = _find(problem, target, shared, fitting, predict=lasting and not new)
    if prediction is not None:
        return _predicted(target, shared, prediction, found.reason)
    if found.quality not in allowed:
        invocation = Invocation.of(
            problem,
            target,
            shared.device.fingerprint,
            device=device,
            cache=cache,
            extra_families=extra_families,
        )
        enough = "stale" if found.quality is MatchQuality.STALE else "nearest"
        raise NotTunedError(not_tuned(invocation, shared.families, found.reason, enough))
    candidate = _candidate(problem, target, shared, fitting, found)
    if found.quality is MatchQuality.MEASURED:  # its binary is the portfolio's
        programs = itertools.islice(shared.predictor.favourites(problem), _LOOKED_THROUGH)
        prediction = next((one for one in programs if one.candidate == candidate), None)
    if found.record is not None and (cap := _capped(problem, found.record.candidate, shared)):
        found = replace(found, reason="; ".join(filter(None, (found.reason, cap))))
    family = shared.families[candidate.family]
    result = Lookup(target, shared, family, candidate, found, prediction)
    if not lasting:
        shared.found[problem, match] = result
    return result


def binary_of(problem: Problem, found: Lookup) -> Binary | None:
    """The binary of a candidate that was found, if it is kept and may be used for the problem."""
    if found.prediction is None:
        return _record_binary(problem, found)
    entry, architecture = found.prediction.entry, found.prediction.portfolio.architecture
    if entry.binary is None or not _runs(found.device, architecture):
        return None
    return _kept(found.shared.sources, entry.binary, entry.support, architecture, None)


def contenders(problem: Problem, found: Lookup, most: int) -> Iterator[Lookup]:
    """The kernels most likely to be the fastest, at most `most`, each of another program.

    The first is `found`, as `look_up` gives it.
    """
    yield found
    programs = {_program(found)}
    favourites = itertools.islice(found.shared.predictor.favourites(problem), _LOOKED_THROUGH)
    for prediction in favourites:
        if len(programs) == most:
            return
        other = _predicted(found.target, found.shared, prediction, found.match.reason)
        if _program(other) not in programs:
            programs.add(_program(other))
            yield other


def _program(found: Lookup) -> tuple[object, ...]:
    """The family and the parameters that are compiled in."""
    compiled = found.candidate.configuration.items()
    runtime = found.family.runtime_parameters
    return found.family.name, frozenset(pair for pair in compiled if pair[0] not in runtime)


def qualities(match: str) -> tuple[MatchQuality, ...]:
    """The qualities that a `match` of `load` allows."""
    if match not in MATCHES:
        raise UnknownNameError(f"match must be one of {', '.join(MATCHES)}, got {match!r}")
    return _QUALITIES[match]


def _predicted(target: Target, shared: Resident, prediction: Prediction, lack: str) -> Lookup:
    """The look-up that a model answers; `lack` says why no record of the problem serves."""
    match = Match(None, MatchQuality.PREDICTED, f"{prediction.reason}; {lack}")
    family = shared.families[prediction.candidate.family]
    return Lookup(target, shared, family, prediction.candidate, match, prediction)


def _find(
    problem: Problem, target: Target, shared: Resident, fitting: Fitting, *, predict: bool
) -> tuple[Match, Prediction | None]:
    """The best record for a problem; no more records are read than it takes to know.

    Where the problem itself has none that can be used, the device's model chooses, if it may and
    there is one; then the match says why none could.
    """
    families, device, sources = shared.families, shared.device, shared.sources

    def unusable(record: TuningRecord) -> str | None:
        tuned, name = record.candidate, record.candidate.family
        if name not in families:
            return f"family {name!r} is not among the families found"
        family = families[name]
        if lack := shared.fits.lack(tuned, problem):
            return lack
        if record.problem == problem.key():
            rejection = fitting.rejection(tuned)
            capped = rejection is not None and _capped(problem, tuned, shared)
            if rejection is None or (capped and fitting.fitted(tuned)):
                return None
            return str(rejection)
        reason = family.unsupported(problem)
        if reason is None and not fitting.fitted(tuned):
            reason = f"family {family.name!r} has no configuration that is valid here"
        return reason

    def has_binary(record: TuningRecord) -> bool:
        kept = record.binary
        return (
            kept is not None
            and _runs(device, kept.architecture)
            and _kept(_vouching(sources, record), kept.digest, kept.support, "", None) is not None
        )

    found = None
    for records in pools(sources, problem, target.name, device.fingerprint):
        found = find(records, problem, target.name, device, families.digests, unusable, has_binary)
        if found.record is not None:
            break
        if predict:
            predict = False  # what is to come are records of other problems
            prediction = shared.predictor.choose(problem)
            if prediction is not None:
                return found, prediction
    assert found is not None  # there is always a first pool
    return found, None


def _candidate(
    problem: Problem, target: Target, shared: Resident, fitting: Fitting, found: Match
) -> Candidate:
    """The candidate a match stands for, moved to the nearest configuration valid here."""
    families = shared.families
    if found.record is None:
        if (reason := refusal(families, problem)) is not None:
            raise InputError(reason)
        able = {n: one for n, one in families.items() if one.unsupported(problem) is None}
        default = default_family(able, problem, shared.device.limits) or next(iter(able))
        if (chosen := shared.predictor.by_limits(problem, default)) is not None:
            return chosen
        return fitting.default(able[default])
    fitted = fitting.fitted(found.record.candidate)
    if fitted is None:
        name = found.record.candidate.family
        raise InputError(f"family {name!r} has no valid configuration for {problem.label}")
    return fitted


def _capped(problem: Problem, tuned: Candidate, shared: Resident) -> str:
    """The reason why a candidate must have fewer threads than it was tuned with; or empty."""
    usable = shared.device.limits.names().get("max_threads")
    if usable is None:
        return ""
    threads = shared.families[tuned.family].thread_count(tuned.configuration, problem.dtype)
    if threads <= usable:
        return ""
    return f"tuned with {threads} threads, and this process may use {usable}"


def _record_binary(problem: Problem, found: Lookup) -> Binary | None:
    record, sources = found.match.record, found.shared.sources
    if record is None or record.binary is None or found.candidate != record.candidate:
        return None
    kept = record.binary
    current = found.family.digest == record.family_digest
    # A kernel of another template is launched as it was measured, or not at all.
    if not _runs(found.device, kept.architecture) or not (
        current or kept.launch.sizes == problem.shape
    ):
        return None
    launch = None if current else kept.launch
    own = _vouching(sources, record)
    binary = _kept(own, kept.digest, kept.support, kept.architecture, launch)
    return None if binary is None else replace(binary, layout=kept.layout)


def _runs(device: Device, architecture: str) -> bool:
    """True if binaries for an architecture run on a device; only a GPU has any."""
    return isinstance(device.limits, GpuLimits) and device.limits.runs(architecture)


def _vouching(sources: Sequence[RecordSource], record: TuningRecord) -> list[RecordSource]:
    """The sources that gave a record: how a binary is launched is nobody else's to say.

    Strangers' records come without what they say of binaries, see `autotune.store.sources`.
    """
    key = record.key
    return [source for source in sources if any(own is record for own in source.of_problem(*key))]


def _kept(
    sources: Sequence[RecordSource],
    digest: str,
    support: str | None,
    architecture: str,
    launch: LaunchPlan | None,
) -> Binary | None:
    """A binary with what it needs beside it, by their digests; None where either is not here."""
    binary = _content(sources, digest)
    beside = b"" if support is None else _content(sources, support)
    if binary is None or beside is None:
        return None
    return Binary(binary, architecture, launch, beside)


def _content(sources: Sequence[RecordSource], digest: str) -> bytes | None:
    return next(filter(None, (source.binary(digest) for source in sources)), None)
