"""Tuning records: one winner, everything it depends on, and what it took to find it."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from autotune.core import checks
from autotune.core.checks import AnyLine, Line, NotNegative, Positive, RecordId, Whole
from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import InputError
from autotune.core.measurement import Sustained
from autotune.core.printable import shown
from autotune.core.statistics import WIDE, half_width, half_width_text
from autotune.operations.problem import OPERATIONS
from autotune.store import strict_json
from autotune.store.binary import BinaryRecord

FORMAT = 1
"""Version of a record's JSON. Keys may be added within a version; the id never covers those."""

IN_CALLS = "calls"
"""The sampler of a light record: the calls of a program chose among a few predictions."""

RecordKey: TypeAlias = tuple[str, str, str, str]
"""Fingerprint digest, operation, problem (one line of JSON), target: what a lookup asks for."""

RecordIds: TypeAlias = Annotated[tuple[RecordId, ...], Meta(max_length=16)]


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """The vendor's kernel, measured interleaved with the winner.

    Attributes:
        name: library, version and kernels, as people know them.
        median_s: its median time of one call in seconds.
        ratio: the winner's speed relative to it: its median over the winner's.
    """

    name: Line
    median_s: Positive
    ratio: Positive

    def __post_init__(self) -> None:
        _make_floats(self, "median_s", "ratio")


@dataclass(frozen=True, slots=True)
class SustainedRecord:
    """The winner and the vendor's kernel without a pause, once clocks were steady, by turns.

    Attributes:
        kernel: the winner.
        baseline: the vendor's kernel; None when there was none.
    """

    kernel: Sustained
    baseline: Sustained | None = None

    @property
    def ratio(self) -> float | None:
        """The winner's speed relative to the vendor's kernel; None without one."""
        return None if self.baseline is None else self.baseline.median_s / self.kernel.median_s


@dataclass(frozen=True, slots=True)
class EffortRecord:
    """The cost of finding the winner.

    Attributes:
        trials: configurations tried.
        seconds: wall time of the search, the finals not counted.
        sampler: name of the sampler.
        seed: its seed; None when it had none.
    """

    trials: Whole
    seconds: NotNegative
    sampler: Line
    seed: Whole | None = None

    def __post_init__(self) -> None:
        _make_floats(self, "seconds")


class _Document(Struct, kw_only=True):
    """A record as JSON has it."""

    operation: Line
    problem: Mapping[Line, checks.Scalar | None]
    target: Line
    family_digest: Line
    space_digest: Line
    median_s: Positive
    interval_s: tuple[Positive, Positive]
    gflops: Positive
    ties: Whole
    toolchain: checks.Texts
    state: checks.Texts
    version: Line
    created: Line
    fingerprint: DeviceFingerprint
    family: Line
    configuration: Configuration
    baseline: BaselineRecord | None
    effort: EffortRecord
    binary: Any = None
    noise: AnyLine = ""
    beat: RecordIds = ()
    lost_to: RecordIds = ()
    objective: Line = "time"
    score: NotNegative | None = None
    sustained: SustainedRecord | None = None


_MEASURED = _Document.__struct_fields__[:13]
"""Fields that are the same in Python and in JSON, and that the id is over."""

_LATER = ("noise", "beat", "lost_to", "objective", "score", "sustained")


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
        objective: name of what kernels were compared by.
        score: by that objective; None where it is time, whose score is the median.
        sustained: times without a pause; None where there are none.

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
    objective: str = "time"
    score: float | None = None
    sustained: SustainedRecord | None = None

    def __post_init__(self) -> None:
        _make_floats(self, "median_s", "gflops")
        _set(self, "interval_s", checks.interval("$.interval_s", self.interval_s))
        read: _Document = checks.checked(self._content() | self._beside(), _Document)
        for name in (*_MEASURED, *_LATER):
            _set(self, name, getattr(read, name))
        _set(self, "created", checks.moment("$.created", self.created))
        if self.operation in OPERATIONS:
            OPERATIONS[self.operation].problem_from_key(self.problem)

    @property
    def key(self) -> RecordKey:
        """The key that a lookup asks for; the best record of a key serves (`store.ranking`)."""
        problem = strict_json.canonical(dict(self.problem))
        return self.fingerprint.digest, self.operation, problem, self.target

    @property
    def spread(self) -> float:
        """The half width of the interval, as a fraction of the median."""
        return half_width(self.median_s, self.interval_s)

    @property
    def noisy(self) -> bool:
        """True if the times are not to be relied on: something disturbed them, or they scatter."""
        return bool(self.noise) or self.spread > WIDE

    @property
    def is_light(self) -> bool:
        """True if it was measured in the calls of a program, in turns with the library."""
        return self.effort.sampler == IN_CALLS

    @property
    def ratio(self) -> float | None:
        """Speed relative to the vendor's kernel, without a pause where that is known.

        Work that takes longer than a moment is done at steady clocks.
        """
        if self.baseline is None:
            return None
        return (self.sustained and self.sustained.ratio) or self.baseline.ratio

    @property
    def slower_than_library(self) -> bool:
        """True if the vendor's kernel was the faster one."""
        return self.ratio is not None and self.ratio < 1

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats of the record, for people; mostly none."""
        slow = f"slower than {self.baseline.name}" if self.baseline is not None else ""
        noise = self.noise or f"the median is uncertain by {half_width_text(self.spread)}"
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
        about = {"format": FORMAT, "id": own}
        return {**about, **self._content(), **self._beside(), "digest": every}

    @classmethod
    def from_json(cls, document: object) -> "TuningRecord":
        """Rebuild a record from `to_json`; keys that are not known are left out.

        The document's id and digest may be absent; if they are there they must be those of the
        content: the id of what was measured, the digest of all that is known here.

        Raises:
            InputError: another format version, a missing key, a field of the wrong type or out
                of range, or an id or a digest that is not that of the content.
        """
        remedy = "a newer autotune wrote it, upgrade autotune"
        fields = checks.versioned("record", document, FORMAT, remedy)
        read: _Document = checks.checked(fields, _Document)
        record = cls(
            fingerprint=read.fingerprint,
            candidate=Candidate(read.family, read.configuration),
            binary=None if read.binary is None else BinaryRecord.from_json(read.binary),
            baseline=read.baseline,
            effort=read.effort,
            **{name: getattr(read, name) for name in (*_MEASURED, *_LATER)},
        )
        for name, right in zip(("id", "digest"), record._sums(), strict=True):
            if fields.get(name, right) != right:
                raise InputError(
                    f"{name} must be that of the content ({right}), got {shown(fields[name])}: "
                    "the record was altered; remove its id and its digest to take it as it is"
                )
        return record

    def _beside(self) -> dict[str, Any]:
        """The fields that were not measured, or were seen in one run."""
        other = {"objective": self.objective, "score": self.score}
        return {
            **(other if self.objective != "time" else {}),
            "binary": None if self.binary is None else self.binary.to_json(),
            "noise": self.noise,
            "beat": list(self.beat),
            "lost_to": list(self.lost_to),
            **({} if self.sustained is None else {"sustained": asdict(self.sustained)}),
        }

    def _content(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _MEASURED},
            "interval_s": list(self.interval_s),
            "fingerprint": self.fingerprint.key(),
            "family": self.candidate.family,
            "configuration": dict(self.candidate.configuration),
            "baseline": asdict(self.baseline) if self.baseline else None,
            "effort": asdict(self.effort),
        }


def _make_floats(instance: object, *names: str) -> None:
    """Make numbers of all kinds floats of Python; what is no number is refused later."""
    for name in names:
        value = getattr(instance, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):
                _set(instance, name, float(value))


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)
