"""Matching: the record that serves a problem on a device, and how well it fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from autotune.core.device import SETTINGS
from autotune.store.ranking import preference

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device, DeviceFingerprint
    from autotune.operations.problem import Problem
    from autotune.store.record import TuningRecord


class MatchQuality(IntEnum):
    """The quality of a match, best first: ``EXACT < STALE < ...``."""

    EXACT = 0
    """Same device, problem, target, family files and toolchain."""
    STALE = 1
    """The same, but the family's files or the toolchain have changed since."""
    MEASURED = 2
    """The fastest of a few predictions in the calls of a program, with nothing changed since."""
    PREDICTED = 3
    """Chosen by a model of the device, among the programs of its portfolio."""
    NEAREST = 4
    """Same device and kind of problem, other sizes."""
    SIMILAR_DEVICE = 5
    """Another device of the same kind."""
    DEFAULT = 6
    """No record fits."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Match:
    """The outcome of a lookup.

    Attributes:
        record: the record; None when `quality` is DEFAULT.
        quality: how well it fits.
        reason: what keeps it from fitting better, and which better ones could not be used.
    """

    record: TuningRecord | None
    quality: MatchQuality
    reason: str


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A record and its rank; the lowest (quality, rank) is tried first."""

    quality: MatchQuality
    rank: tuple[float, ...]
    reason: str
    record: TuningRecord


def find(
    records: Iterable[TuningRecord],
    problem: Problem,
    target: str,
    device: Device,
    family_digests: Mapping[str, str],
    usable: Callable[[TuningRecord], str | None],
    has_binary: Callable[[TuningRecord], bool] = lambda record: record.binary is not None,
) -> Match:
    """The record that fits best.

    The quality decides first. Among other sizes the nearest wins: the sum of |log2 ratio| over
    the sizes. Among other devices the one with the most fingerprint fields in common wins, then
    the nearest sizes. Between equals the fastest serves (`autotune.store.ranking`), whoever made
    it and whenever; where that too is equal, the order of `records` decides.

    Args:
        records: the user's and the shipped ones, in any order that breaks ties.
        problem: what is to be computed.
        target: where it is to run.
        device: the device as it is now.
        family_digests: digest of every family there is now, by name.
        usable: why a record must not be used here (a limit, a restriction), or None. It is asked
            about records from the best on, until one may be used.
        has_binary: whether the binary that a record names is here to be loaded; where it is not,
            the kernel would be compiled anew, and what compiles it matters.

    Returns:
        The best usable record, or quality DEFAULT without one.
    """
    records = list(records)
    if not records:
        return Match(None, MatchQuality.DEFAULT, nothing_fits(problem, device))
    sizes = problem_sizes(problem)
    fixed = without(problem.key(), sizes)
    fitting = [
        record
        for record in records
        if record.operation == problem.operation
        and record.target == target
        and record.fingerprint.kind == device.fingerprint.kind
        and without(record.problem, sizes) == fixed
    ]
    order = preference(fitting)

    def rank(record: TuningRecord) -> _Ranked:
        changes = _changes(record, device, family_digests, has_binary(record))
        return _rank(record, sizes, device, changes)

    ranked = sorted(
        map(rank, fitting), key=lambda each: (each.quality, each.rank, order(each.record))
    )
    skipped: list[str] = []
    for candidate in ranked:
        record = candidate.record
        if record.candidate.family not in family_digests:
            refusal: str | None = f"there is no family {record.candidate.family!r}"
        else:
            refusal = usable(record)
        if refusal is None:
            return Match(record, candidate.quality, _join([candidate.reason, *_few(skipped)]))
        skipped.append(f"record {record.id} cannot be used: {refusal}")
    reasons = [nothing_fits(problem, device), *_few(skipped)]
    return Match(None, MatchQuality.DEFAULT, _join(reasons))


def nothing_fits(problem: Problem, device: Device) -> str:
    """The message where no record fits."""
    return f"no record fits {problem.label} on {device.fingerprint.name}"


def neighbours(
    records: Iterable[TuningRecord],
    problem: Problem,
    fingerprint: DeviceFingerprint,
    limit: int = 8,
) -> list[TuningRecord]:
    """Records worth starting a search from, the most promising first.

    Same operation, dtype and kind of device; ranked by fingerprint fields in common, then by
    nearness of the sizes. Every candidate comes once.
    """
    sizes = problem_sizes(problem)
    related = [
        record
        for record in records
        if record.operation == problem.operation
        and record.problem.get("dtype") == problem.dtype
        and record.fingerprint.kind == fingerprint.kind
    ]
    related.sort(
        key=lambda record: (
            -record.fingerprint.likeness(fingerprint),
            size_distance(record.problem, sizes),
        )
    )
    best: dict[Candidate, TuningRecord] = {}
    for record in related:
        best.setdefault(record.candidate, record)
    return list(best.values())[:limit]


def size_distance(recorded: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    """Sum of |log2 ratio| over the sizes; infinite when the recorded problem lacks one."""
    distance = 0.0
    for name, size in sizes.items():
        other = recorded.get(name)
        if not isinstance(other, int) or other < 1:
            return math.inf
        distance += abs(math.log2(other) - math.log2(size))
    return distance


def toolchain_changes(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Changes of the toolchain, as "llvm 20.1.8 → 21.1.0".

    Only what `_GENERATORS` names can change a kernel that is compiled anew. The rest is recorded
    for people: drivers, bindings, NumPy and its BLAS (which only the baseline runs), autotune's
    own version (its templates have their digest).
    """
    before, now = _relevant(recorded), _relevant(current)
    return [
        f"{name} {before.get(name, 'none')} → {now.get(name, 'none')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _rank(
    record: TuningRecord,
    sizes: Mapping[str, int],
    device: Device,
    changes: Sequence[str],
) -> _Ranked:
    distance = size_distance(record.problem, sizes)
    tuned_for = "x".join(str(record.problem.get(name, "?")) for name in sizes)
    other_sizes = [] if distance == 0 else [f"tuned for {tuned_for}"]
    if record.fingerprint != device.fingerprint:
        name = record.fingerprint.name
        other_device = f"tuned on {'another ' if name == device.fingerprint.name else ''}{name}"
        rank = (-record.fingerprint.likeness(device.fingerprint), distance)
        reason = _join([other_device, *other_sizes, *changes])
        return _Ranked(MatchQuality.SIMILAR_DEVICE, rank, reason, record)
    if other_sizes:
        reason = _join([*other_sizes, *changes])
        return _Ranked(MatchQuality.NEAREST, (distance,), reason, record)
    if record.is_light:  # of what has changed since it says nothing
        quality = MatchQuality.NEAREST if changes else MatchQuality.MEASURED
    else:
        quality = MatchQuality.STALE if changes else MatchQuality.EXACT
    return _Ranked(quality, (distance,), _join(changes), record)


def is_current(record: TuningRecord, device: Device, family_digests: Mapping[str, str]) -> bool:
    """Return whether a record is of this device, and its kernel would come out as measured."""
    has_binary = record.binary is not None
    return record.fingerprint == device.fingerprint and not _changes(
        record, device, family_digests, has_binary
    )


def _changes(
    record: TuningRecord, device: Device, family_digests: Mapping[str, str], has_binary: bool
) -> list[str]:
    """Changes since a record was made that can make its kernel another one."""
    name = record.candidate.family
    now = family_digests.get(name, "none")
    if has_binary:
        changes = _loading_changes(record.toolchain, device.toolchain)
    else:
        changes = toolchain_changes(record.toolchain, device.toolchain)
    if now != record.family_digest:
        changes.insert(0, f"family {name} {record.family_digest[:12]} → {now[:12]}")
    return changes


def _loading_changes(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Changes that keep a binary that was compiled then from being loaded now.

    Drivers load what compilers of their own and of earlier major versions of CUDA have made, and
    of later minor versions too (CUDA Compatibility, "Minor Version Compatibility").
    """
    compiler, driver = recorded.get("nvrtc", ""), current.get("cuda", "")
    majors = [version.partition(".")[0] for version in (compiler, driver)]
    if all(major.isdecimal() for major in majors) and int(majors[0]) > int(majors[1]):
        return [f"compiled for CUDA {compiler}, and the driver has {driver}"]
    settings, now = recorded.get(SETTINGS), current.get(SETTINGS)
    if settings is not None and settings != now:
        return [f"compiled with {settings}, and now {now or 'with none of that'}"]
    return []


def problem_sizes(problem: Problem) -> dict[str, int]:
    """The fields of a problem's key that are sizes, in the operation's order."""
    names = (name.lower() for name in problem.defined.sizes)
    return dict(zip(names, problem.shape, strict=True))


def without(key: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """A problem's key less some of its fields."""
    return {name: value for name, value in key.items() if name not in names}


_GENERATORS: Mapping[str, int] = {
    "python": 2,
    "numba": 2,
    "numba_cuda": 2,
    "llvmlite": 2,
    "llvm": 3,
    "nvrtc": 2,
    "nvjitlink": 2,
    SETTINGS: 99,
}
"""The compilers of sources, and how many numbers of a version matter: patch levels of Numba
mend its library and its frontend, while code comes from the LLVM that llvmlite brings."""


def _relevant(toolchain: Mapping[str, str]) -> dict[str, str]:
    return {
        name: ".".join(toolchain[name].split(".")[:numbers])
        for name, numbers in _GENERATORS.items()
        if name in toolchain
    }


def _few(reasons: Sequence[str], limit: int = 3) -> list[str]:
    more = len(reasons) - limit
    return [*reasons[:limit], *([f"and {more} more"] if more > 0 else [])]


def _join(reasons: Iterable[str]) -> str:
    return "; ".join(reasons)
