"""An evaluator that times nothing: every candidate takes as long as it is said to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from autotune.core.measurement import Measurement, Outcome, Series
from autotune.measuring.effort import Baseline, Finals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device

ROUNDS = 15


class Stopwatch:
    """Finds everything right, and as fast as `seconds` says.

    Args:
        device: what the candidates are for.
        seconds: a candidate's time.
        library_s: the vendor library's time; None has none.
        batch: candidates prepared together.

    Attributes:
        batches: what was prepared together, in order.
        finals_held: the candidates of each finals.
        slowdown: multiplies all times of the finals.
        scatter: half the width of every interval of the finals, relative to its median; one number
            for each finals, the last for all that follow.
        wrong: what is found wrong in the finals.
        library_noise: what disturbs the library in the finals.
        sustained: a candidate's time without a pause, and None's the library's; None where nobody
            takes such turns.
    """

    compiles_ahead = False
    finals_s = 0.0

    def __init__(
        self,
        device: Device,
        seconds: Callable[[Candidate], float] = lambda candidate: 1.0,
        *,
        library_s: float | None = None,
        batch: int = 4,
    ) -> None:
        self.device = device
        self.batch = batch
        self.batches: list[list[Candidate]] = []
        self.finals_held: list[list[Candidate]] = []
        self.slowdown = 1.0
        self.scatter = [0.0]
        self.wrong: set[Candidate] = set()
        self.library_noise = ""
        self.sustained: Callable[[Candidate | None], float] | None = None
        self._seconds = seconds
        self._library_s = library_s

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        self.batches.append(list(candidates))

    def is_ready(self, candidate: Candidate) -> bool:
        return True

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        time_s = self._seconds(candidate)
        return Measurement(Outcome.OK, time_s, (time_s, time_s), 5, 0.1)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        self.finals_held.append(list(candidates))
        spread = self.scatter.pop(0) if len(self.scatter) > 1 else self.scatter[0]
        times = [self.slowdown * self._seconds(each) for each in candidates]
        baseline = self.baseline()
        right = [each not in self.wrong for each in candidates]
        return Finals(
            measurements=tuple(
                Measurement(
                    Outcome.OK, time_s, (time_s * (1 - spread), time_s * (1 + spread)), 5, 0.1
                )
                if good
                else Measurement(Outcome.WRONG_RESULT, reason="error is 7 times what is allowed")
                for time_s, good in zip(times, right, strict=True)
            ),
            ratios=tuple(
                baseline.median_s / time_s if baseline and good and not baseline.noise else None
                for time_s, good in zip(times, right, strict=True)
            ),
            baseline=baseline,
            rounds=tuple(
                tuple(time_s * (1 + spread * (turn % 3 - 1)) for turn in range(ROUNDS))
                if good
                else ()
                for time_s, good in zip(times, right, strict=True)
            ),
            sustained=tuple(self._held(each) for each in candidates),
            sustained_baseline=self._held(None),
        )

    def _held(self, candidate: Candidate | None) -> tuple[Series, ...]:
        if self.sustained is None:
            return ()
        time_s = self.sustained(candidate)
        seen = {"joules": 600 * time_s, "watts": 600.0, "sm_clock_mhz": 1410.0}
        return (Series(time_s, (time_s, time_s), 100, seen),) * 3

    def baseline(self) -> Baseline | None:
        if self._library_s is None:
            return None
        time_s = self.slowdown * self._library_s
        interval_s = (time_s, time_s)
        name = "NumPy 2.4 (OpenBLAS)"
        return Baseline(name, time_s, interval_s, 1, {}, self.library_noise)

    def check_baseline(self) -> Baseline | None:
        return self.baseline()

    def binary(self, candidate: Candidate) -> None:
        return None

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass
