"""What is measured of a shape, as lines of JSON: one of a header, then one of every shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from shape_draws import Shape

from autotune.core.statistics import median_interval

if TYPE_CHECKING:
    from autotune.serving.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is to measure.

    Attributes:
        shapes: in this order.
        dtype: of all operands.
        seed: of operands and of the order of turns.
        cache: where our records are; None takes the usual place.
        tuned: so many of the shapes are tuned as well, the first ones.
        seconds: of search for each of these.
        copy: measure the memory, too.
        squares: measure squares, and energy.
        threads: of the CPU.
        device: which GPU; None takes the first.
        cblas: libraries of the user's, as for ``cpu_peers.py``.
        text: what was asked for, for people.
    """

    shapes: Sequence[Shape]
    dtype: str
    seed: int
    cache: str | None
    tuned: int
    seconds: float
    copy: bool
    squares: bool
    threads: int
    device: str | None
    cblas: Sequence[str]
    text: str


@dataclass(frozen=True, slots=True)
class Header:
    """What a run says of itself.

    Attributes:
        device: the name of what multiplied.
        text: lines of Markdown.
    """

    device: str
    text: Sequence[str]

    def document(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {"record": "header", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast one is as another: the median of paired turns, and its interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, theirs: Sequence[float], ours: Sequence[float]) -> Self:
        """From the seconds of both, round by round."""
        paired = [a / b for a, b in zip(theirs, ours, strict=True)]
        return cls(median(paired), *median_interval(paired))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Served:
    """What serves a shape.

    Attributes:
        family: of the kernel.
        configuration: of the kernel, as text.
        match: how well it fits, in the cache's words.
        reason: what the kernel says of that.
        launch: tiles, blocks and waves; empty where nothing is launched.
        ready_s: seconds that loading took; on the CPU with the first call.
        error: of its result, as a share of what is allowed.
    """

    family: str
    configuration: str
    match: str
    reason: str = ""
    launch: str = ""
    ready_s: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, kernel: Kernel, *, launch: str = "", ready_s: float, error: float) -> Self:
        """From what a kernel says of itself."""
        family, configuration = kernel.candidate.family, kernel.candidate.configuration
        match = str(kernel.match)
        return cls(family, str(configuration), match, kernel.reason, launch, ready_s, error)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search for this very shape gave, in the same rounds.

    Attributes:
        served: the kernel.
        seconds: of a call.
        ratio: to the peer.
        reached: how much of its speed the untuned kernel has.
        spent_s: seconds of search.
    """

    served: Served
    seconds: float
    ratio: Ratio
    reached: Ratio
    spent_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One shape.

    Attributes:
        shape: what was multiplied.
        dtype: of all operands.
        served: what served it; None where nothing did.
        seconds: of a call.
        peers: seconds of every peer.
        peer: the fastest of them.
        ratio: to that one.
        bytes: of all operands.
        copy_share: bytes each moved once, per second, as a share of what copying reaches; None
            where the caches matter or nothing was copied.
        joules: energy of a call and of the peer's; None where it was not measured.
        sustained: the ratio without a pause; None where it was not measured.
        tuned: after a search; None without one.
        peer_error: of the peer's result, as a share of what is allowed; None where it was not
            looked at.
        failure: why there is nothing else to say; empty where there is.
    """

    shape: Shape
    dtype: str
    served: Served | None = None
    seconds: float = 0.0
    peers: Mapping[str, float] = field(default_factory=dict)
    peer: str = ""
    ratio: Ratio | None = None
    bytes: int = 0
    copy_share: float | None = None
    joules: tuple[float, float] | None = None
    sustained: float | None = None
    tuned: Tuned | None = None
    peer_error: float | None = None
    failure: str = ""

    @classmethod
    def of(
        cls,
        shape: Shape,
        dtype: str,
        served: Served,
        ours: Sequence[float],
        peers: Mapping[str, Sequence[float]],
        traffic: int,
    ) -> Self:
        """From the seconds of all in every round; the peer that counts is the fastest one."""
        medians = {name: median(times) for name, times in peers.items()}
        peer = min(medians, key=medians.__getitem__)
        ratio = Ratio.of(peers[peer], ours)
        return cls(shape, dtype, served, median(ours), medians, peer, ratio, traffic)

    def with_tuned(
        self,
        served: Served,
        ours: Sequence[float],
        times: Mapping[str, Sequence[float]],
        spent_s: float,
    ) -> Row:
        """The same with what a search gave.

        Args:
            served: the kernel that was found.
            ours: its seconds, round by round.
            times: those of "ours", the untuned kernel, and of the peers by name.
            spent_s: seconds of search.
        """
        ratio, reached = Ratio.of(times[self.peer], ours), Ratio.of(ours, times["ours"])
        return replace(self, tuned=Tuned(served, median(ours), ratio, reached, spent_s))

    @property
    def rate(self) -> float:
        """Floating-point operations per second."""
        return 2 * self.shape.work / self.seconds

    def document(self) -> dict[str, Any]:
        """As JSON-able values."""
        shape = self.shape
        fields = asdict(self) | {"shape": shape.sizes, "kind": shape.kind, "odd": shape.odd}
        return {"record": "shape", **fields}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """From what `document` gave."""
        fields = {key: document[key] for key in cls.__slots__ if key in document}
        return cls(
            **fields
            | {
                "shape": Shape(*fields["shape"]),
                "served": _made(Served, fields["served"]),
                "ratio": _made(Ratio, fields["ratio"]),
                "joules": fields["joules"] and tuple(fields["joules"]),
                "tuned": _tuned(fields["tuned"]),
            }
        )

    def line(self) -> str:
        """A line for people who watch."""
        start = f"{self.shape!s:>18} {self.shape.kind:14}"
        if self.ratio is None or self.served is None:
            return f"{start} {self.failure}"
        parts = [
            f"{start} {self.seconds * 1e6:10.1f} us {self.rate / 1e12:7.3f} TFLOP/s "
            f"{self.ratio.median:6.2f}x",
            f"{self.served.match:10} {self.served.family}",
        ]
        if self.copy_share is not None:
            parts.append(f"{100 * self.copy_share:.0f}% of the memory's")
        if self.tuned is not None:
            parts.append(
                f"tuned {self.tuned.ratio.median:.2f}x ({self.tuned.served.family}), of which "
                f"{100 * self.tuned.reached.median:.0f}%"
            )
        if self.joules is not None:
            parts.append(f"{self.joules[0]:.3g} J, {self.peer} {self.joules[1]:.3g} J")
        return "  ".join(parts)


def read_rows(paths: Iterable[Path]) -> tuple[list[Header], list[Row]]:
    """Headers and rows of some runs; of a shape that was measured again, the last row counts."""
    headers: list[Header] = []
    rows: dict[tuple[Shape, str], Row] = {}
    for path in paths:
        for text in path.read_text().splitlines():
            document = json.loads(text)
            if document["record"] == "header":
                headers.append(Header(document["device"], document["text"]))
            elif document["record"] == "shape":
                row = Row.from_document(document)
                rows[row.shape, row.dtype] = row
    return headers, list(rows.values())


def _made(kind: Any, fields: Mapping[str, Any] | None) -> Any:
    return None if fields is None else kind(**fields)


def _tuned(fields: Mapping[str, Any] | None) -> Tuned | None:
    if fields is None:
        return None
    made = {
        "served": Served(**fields["served"]),
        "ratio": Ratio(**fields["ratio"]),
        "reached": Ratio(**fields["reached"]),
    }
    return Tuned(**{**fields, **made})
