"""What every evaluator does, and how much effort it puts into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.core.device import Device
    from autotune.core.measurement import Measurement
    from autotune.families.gpu.launch import Binary


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how exactly to measure.

    Attributes:
        budget_s: seconds of timed calls per trial.
        interval: a trial ends sooner once the median's 95% confidence interval is narrower than
            this fraction of it.
        timeout_s: seconds after which a trial (load, verify, time) is killed.
        compile_timeout_s: seconds after which a compile is killed.
        abandon_ratio: a trial ends after its first runs when they are this much slower than the
            best so far; one that is behind by a fifth of that is timed no further than it takes
            to be sure of it (`autotune.measuring.racing`).
        finals_s: seconds of timed calls for the finalists and the baseline, all together.
    """

    budget_s: float = 0.3
    interval: float = 0.02
    timeout_s: float = 20.0
    compile_timeout_s: float = 60.0
    abandon_ratio: float = 1.5
    finals_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """The vendor library on the same problem.

    Attributes:
        name: library, version, kernels and threads, for people.
        median_s: median time of one call in seconds.
        interval_s: 95% confidence interval of that median.
        threads: threads it may use.
        details: what the name is made of.
        noise: what disturbed it, so that nothing can be compared with its time; empty if nothing
            was seen to.
    """

    name: str
    median_s: float
    interval_s: tuple[float, float]
    threads: int
    details: Mapping[str, str]
    noise: str = ""


def relative_speed(measurement: Measurement, baseline: Baseline | None) -> float | None:
    """Speed relative to the baseline, each measured by itself; None where that is not known."""
    if baseline is None or baseline.noise or not measurement.ok or measurement.median_s is None:
        return None
    return baseline.median_s / measurement.median_s


@dataclass(frozen=True, slots=True)
class Finals:
    """The finalists, measured interleaved with the baseline.

    Attributes:
        measurements: one per candidate, in the order given; the failed ones say why.
        ratios: speed relative to the baseline over the same rounds: its median divided by the
            candidate's; None where either failed, or the baseline was disturbed.
        baseline: the baseline over the same rounds; None when there is none.
        rounds: each candidate's median of every round, in seconds; empty where it failed.
    """

    measurements: tuple[Measurement, ...]
    ratios: tuple[float | None, ...]
    baseline: Baseline | None
    rounds: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """How far something has come that takes an evaluator a while.

    Attributes:
        name: what it does: "compiling" or "finals".
        step: candidates compiled, or the round that begins.
        steps: how many there are.
    """

    name: str
    step: int
    steps: int


Report: TypeAlias = Callable[[Stage], None]
"""Hears how far an evaluator has come."""


def silent(stage: Stage) -> None:
    """A `Report` for nobody."""


class Evaluator(Protocol):
    """Turns candidates into measurements on one device, for one problem.

    A candidate's own faults (it does not compile, crashes, hangs, computes nonsense) come back as
    outcomes and cost one trial; only faults of the engine, the device or a family's files raise.
    Used as a context manager; `close` leaves no process behind.

    `prepare`, `evaluate`, `finals` and `baseline` raise OutOfTimeError where the deadline comes
    before what they wait for; a process that was at work is gone then, and the next request starts
    another.
    """

    device: Device
    deadline: Deadline
    """Of the run that the evaluator works for: whoever makes the run sets it."""
    report: Report
    """Hears of compiling and of finals; whoever makes the run sets it."""
    batch: int
    """Candidates to have prepared at a time: enough to keep every compiler busy."""

    @property
    def compiles_ahead(self) -> bool:
        """Whether compilers work while a candidate is measured; if not, `prepare` blocks."""
        ...

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a prepared candidate has been compiled."""
        ...

    @property
    def finals_s(self) -> float:
        """Seconds that finals take beside verifying the finalists, as far as is known."""
        ...

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile candidates ahead of `evaluate`, on all cores; may block until that is done.

        Those that were compiled when the time ended are ready.
        """
        ...

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Compile if need be, verify, then time.

        Args:
            candidate: what to measure.
            best_s: the best median so far, in seconds; None while there is none.
        """
        ...

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Time candidates in rounds, interleaved with the baseline.

        They are verified before the rounds, and after them on operands that no call has seen.
        There are as many rounds as the deadline allows, and at least one.
        """
        ...

    def baseline(self) -> Baseline | None:
        """The vendor library alone, measured once."""
        ...

    def check_baseline(self) -> Baseline | None:
        """The vendor library, measured once more for a moment: the faster time stays.

        The best of a search is the fastest of many times; one time of the library's, taken in a
        bad moment, is no match for it.
        """
        ...

    def binary(self, candidate: Candidate) -> Binary | None:
        """What a measured candidate was compiled to; None where nothing can be kept of it."""
        ...

    def close(self) -> None:
        """End every process and free the device."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
