"""Tuning records: one winner, everything it depends on, and what it took to find it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.core.statistics import WIDE, half_width
from autotune.operations.problem import OPERATIONS
from autotune.store import checks, strict_json
from autotune.store.binary import BinaryRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = 1
"""Version of a record's JSON. Keys may be added within a version; the id never covers those."""

IN_CALLS = "calls"
"""The sampler of a light record: the calls of a program chose among a few predictions."""

RecordKey: TypeAlias = tuple[str, str, str, str]
"""Fingerprint digest, operation, problem (one line of JSON), target: what a lookup asks for."""


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """The vendor's kernel, measured interleaved with the winner.

    Attributes:
        name: library, version and kernels, as people know them.
        median_s: its median time of one call in seconds.
        ratio: the winner's speed relative to it: its median over the winner's.
    """

    name: str
    median_s: float
    ratio: float

    def __post_init__(self) -> None:
        _set(self, "name", checks.text("baseline.name", self.name))
        _set(self, "median_s", checks.number("baseline.median_s", self.median_s))
        _set(self, "ratio", checks.number("baseline.ratio", self.ratio))


@dataclass(frozen=True, slots=True)
class EffortRecord:
    """What finding the winner cost.

    Attributes:
        trials: configurations tried.
        seconds: wall time of the search, the finals not counted.
        sampler: name of the sampler.
        seed: its seed; None when it had none.
    """

    trials: int
    seconds: float
    sampler: str
    seed: int | None = None

    def __post_init__(self) -> None:
        _set(self, "trials", checks.count("effort.trials", self.trials))
        _set(self, "seconds", checks.number("effort.seconds", self.seconds, zero=True))
        _set(self, "sampler", checks.text("effort.sampler", self.sampler))
        if self.seed is not None:
            _set(self, "seed", checks.count("effort.seed", self.seed))


class _Summed:
    """Room for what is worked out of a record once, and is no field of it."""

    __slots__ = ("_sums_of",)
    _sums_of: tuple[str, str]


@dataclass(frozen=True, slots=True)
class TuningRecord(_Summed):
    """A verified winner for one problem on one device. Valid by construction.

    Attributes:
        fingerprint: the device's identity.
        operation: the operation's name.
        problem: every field of the problem, as `Problem.key` gives them.
        target: "cpu", "cuda", ...
        candidate: the winning family and configuration.
        family_digest: the family's files at the time of tuning.
        space_digest: the search space it won in.
        median_s: median time of one call in seconds.
        interval_s: 95% confidence interval of that median, in seconds.
        gflops: textbook operations of the problem over `median_s`, in 10^9 per second.
        ties: configurations whose intervals overlap the winner's.
        baseline: the vendor's kernel beside it; None when there was none.
        effort: what the search cost.
        toolchain: versions that turned source into the kernel.
        state: clocks, affinity and the like.
        version: autotune's version.
        created: when, in UTC; any ISO 8601 text with a zone is brought to one spelling.
        binary: the compiled kernel and its launch, kept beside the record so that loading it
            takes no compiler; None for targets without one, and for records of other people.
        noise: what disturbed the measurement, in one line; empty when nothing was seen to.
        beat: ids of the records that were slower when measured in turns with this one.
        lost_to: ids of those that were faster.

    Raises:
        InputError: a field has the wrong type or is out of range; the message names it.
    """

    fingerprint: DeviceFingerprint
    operation: str
    problem: Mapping[str, Any]
    target: str
    candidate: Candidate
    family_digest: str
    space_digest: str
    median_s: float
    interval_s: tuple[float, float]
    gflops: float
    ties: int
    baseline: BaselineRecord | None
    effort: EffortRecord
    toolchain: Mapping[str, str]
    state: Mapping[str, str]
    version: str
    created: str = field(default_factory=checks.utc_now)
    binary: BinaryRecord | None = None
    noise: str = ""
    beat: tuple[str, ...] = ()
    lost_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("operation", "target", "family_digest", "space_digest", "version"):
            _set(self, name, checks.text(name, getattr(self, name)))
        for name in ("median_s", "gflops"):
            _set(self, name, checks.number(name, getattr(self, name)))
        for name in ("toolchain", "state"):
            _set(self, name, checks.texts(name, getattr(self, name)))
        _set(self, "interval_s", checks.interval("interval_s", self.interval_s))
        _set(self, "ties", checks.count("ties", self.ties))
        _set(self, "created", checks.moment("created", self.created))
        _set(self, "problem", _problem(self.operation, self.problem))
        read_fingerprint(self.fingerprint.key())
        checks.text("family", self.candidate.family)
        checks.scalars("configuration", self.candidate.configuration)
        _set(self, "noise", checks.text("noise", self.noise, empty=True))
        for name in ("beat", "lost_to"):
            _set(self, name, _ids(name, getattr(self, name)))

    @property
    def key(self) -> RecordKey:
        """What a lookup asks for; the best record of a key serves (`store.ranking`)."""
        problem = strict_json.canonical(dict(self.problem))
        return self.fingerprint.digest, self.operation, problem, self.target

    @property
    def spread(self) -> float:
        """How far the interval reaches from its middle, as a fraction of the median."""
        return half_width(self.median_s, self.interval_s)

    @property
    def noisy(self) -> bool:
        """Whether the times are not to be relied on: something disturbed them, or they scatter."""
        return bool(self.noise) or self.spread > WIDE

    @property
    def is_light(self) -> bool:
        """Whether it was measured in the calls of a program, in turns with the library."""
        return self.effort.sampler == IN_CALLS

    @property
    def slower_than_library(self) -> bool:
        """Whether the vendor's kernel was the faster one."""
        return self.baseline is not None and self.baseline.ratio < 1

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is to be known before relying on the record, for people; mostly nothing."""
        slow = f"slower than {self.baseline.name}" if self.baseline is not None else ""
        noise = self.noise or f"the median is known to ±{self.spread:.0%} only"
        told = (slow if self.slower_than_library else "", noise if self.noisy else "")
        return tuple(filter(None, told))

    @property
    def id(self) -> str:
        """Twelve hex digits over the content: equal records have equal ids everywhere."""
        return self._sums()[0]

    def _sums(self) -> tuple[str, str]:
        """The id, and the digest over everything, worked out once."""
        try:
            return self._sums_of
        except AttributeError:  # not asked for yet
            content = hashlib.sha256(strict_json.canonical(self._content()).encode())
            every = content.copy()
            every.update(strict_json.canonical(self._beside()).encode())
            found = content.hexdigest()[:12], every.hexdigest()[:16]
            _set(self, "_sums_of", found)
            return found

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-able document."""
        own, every = self._sums()
        return {
            "format": FORMAT,
            "id": own,
            **self._content(),
            **self._beside(),
            "digest": every,
        }

    @classmethod
    def from_json(cls, document: object) -> TuningRecord:
        """Rebuild a record from `to_json`; keys that are not known are left out.

        The document's id and digest may be absent; if they are there they must be those of the
        content: the id of what was measured, the digest of all that is known here.

        Raises:
            InputError: another format version, a missing key, a field of the wrong type or out
                of range, or an id or a digest that is not that of the content.
        """
        fields = checks.mapping("a record", document)
        version = checks.required(fields, "format")
        if type(version) is not int or version != FORMAT:
            raise InputError(
                f"record format must be {FORMAT}, got {shown(version)}: "
                "a newer autotune wrote it, upgrade autotune"
            )
        own = {name: checks.required(fields, name) for name in _PLAIN}
        record = cls(
            fingerprint=read_fingerprint(checks.required(fields, "fingerprint")),
            candidate=_candidate(fields),
            baseline=_baseline(checks.required(fields, "baseline")),
            effort=_effort(checks.required(fields, "effort")),
            binary=_binary(fields.get("binary")),
            noise=fields.get("noise", ""),
            beat=_listed("beat", fields.get("beat", [])),
            lost_to=_listed("lost_to", fields.get("lost_to", [])),
            **own,
        )
        for name, right in zip(("id", "digest"), record._sums(), strict=True):
            if fields.get(name, right) != right:
                raise InputError(
                    f"{name} must be that of the content ({right}), got {shown(fields[name])}: "
                    "the record was altered; remove its id and its digest to take it as it is"
                )
        return record

    def _beside(self) -> dict[str, Any]:
        """Of what is not measured, or was seen in one run."""
        return {
            "binary": None if self.binary is None else self.binary.to_json(),
            "noise": self.noise,
            "beat": list(self.beat),
            "lost_to": list(self.lost_to),
        }

    def _content(self) -> dict[str, Any]:
        return {
            **_fields(self, _PLAIN),
            "interval_s": list(self.interval_s),
            "fingerprint": self.fingerprint.key(),
            "family": self.candidate.family,
            "configuration": dict(self.candidate.configuration),
            "baseline": _fields(self.baseline, _BASELINE) if self.baseline else None,
            "effort": _fields(self.effort, _EFFORT),
        }


_PLAIN = (
    "operation",
    "problem",
    "target",
    "family_digest",
    "space_digest",
    "median_s",
    "interval_s",
    "gflops",
    "ties",
    "toolchain",
    "state",
    "version",
    "created",
)
"""Fields that are the same in Python and in JSON."""
_BASELINE = ("name", "median_s", "ratio")
_EFFORT = ("trials", "seconds", "sampler", "seed")
_ID = re.compile("[0-9a-f]{12}")
_IDS_LIMIT = 16


def _problem(operation: str, value: object) -> dict[str, Any]:
    problem = checks.mapping("problem", value)
    for name, item in problem.items():
        if item is not None:
            checks.scalar(f"problem.{name}", item)
    if operation in OPERATIONS:
        OPERATIONS[operation].problem_from_key(problem)
    return dict(problem)


def read_fingerprint(value: object) -> DeviceFingerprint:
    """A fingerprint from its key.

    Raises:
        InputError: a key is missing or of the wrong type.
    """
    fields = checks.mapping("fingerprint", value)
    return DeviceFingerprint(
        kind=checks.text("fingerprint.kind", checks.required(fields, "kind")),
        name=checks.text("fingerprint.name", checks.required(fields, "name")),
        fields=checks.scalars("fingerprint.fields", checks.required(fields, "fields")),
    )


def _candidate(fields: Mapping[str, Any]) -> Candidate:
    configuration = checks.required(fields, "configuration")
    return Candidate(
        family=checks.required(fields, "family"),
        configuration=Configuration(checks.mapping("configuration", configuration)),
    )


def _baseline(value: object) -> BaselineRecord | None:
    if value is None:
        return None
    fields = checks.mapping("baseline", value)
    return BaselineRecord(**{name: checks.required(fields, name) for name in _BASELINE})


def _binary(value: object) -> BinaryRecord | None:
    return None if value is None else BinaryRecord.from_json(value)


def _listed(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} must be a list of record ids, got {value!r:.40}")
    return tuple(value)


def _ids(name: str, ids: tuple[object, ...]) -> tuple[str, ...]:
    if len(ids) > _IDS_LIMIT:
        raise InputError(f"{name} must have {_IDS_LIMIT} record ids at most, got {len(ids)}")
    for id_ in ids:
        if not isinstance(id_, str) or not _ID.fullmatch(id_):
            raise InputError(f"{name} must hold record ids of 12 hex digits, got {id_!r:.40}")
    return tuple(map(str, ids))


def _effort(value: object) -> EffortRecord:
    fields = checks.mapping("effort", value)
    return EffortRecord(**{name: checks.required(fields, name) for name in _EFFORT})


def _fields(instance: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(instance, name) for name in names}


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)
