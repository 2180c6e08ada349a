"""What a tuning run tries first, and what it leaves to serve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from stopwatch import Stopwatch

from autotune import Gemm, TuneResult, TuningRecord, tune
from autotune.cli import main
from autotune.cli.tuned import document, summary, winner
from autotune.core.errors import InputError, StudyError, TuningFailedError
from autotune.core.measurement import Measurement, Outcome, Sustained
from autotune.cpu.identity import read_cpu
from autotune.cpu.target import CpuTarget
from autotune.measuring.rounds import Competition, disagreement, throttling
from autotune.search.reading import read_study
from autotune.serving.lookup import look_up
from autotune.store import SustainedRecord, TuningCache
from autotune.tuning import deciding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.core.configuration import Candidate
    from autotune.measuring.effort import Finals


PROBLEM = Gemm(48, 48, 48, threads=1)
FAMILIES = ["blocked", "loops"]

SPEEDS = {"blocked": 1e-3, "loops": 2e-3}


def by_family(candidate: Candidate) -> float:
    return SPEEDS[candidate.family]


class QuietMachine:
    """In place of the real one: these tests run on machines that are not."""

    def __init__(self, threads: int) -> None:
        pass

    def seen(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "Competition", QuietMachine)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TuneResult]:
    """``run(stopwatch, families, trials)`` tunes with the stopwatch in the evaluator's place."""

    def run(
        stopwatch: Stopwatch,
        families: list[str] = FAMILIES,
        trials: int = 6,
        cache: Path = tmp_path,
        **options: str,
    ) -> TuneResult:
        monkeypatch.setattr(CpuTarget, "evaluator", lambda *arguments, **options: stopwatch)
        return tune(
            PROBLEM, target="cpu", families=families, trials=trials, cache=cache, **options
        )

    return run


def watch(seconds: Callable[[Candidate], float] = by_family, **options: float) -> Stopwatch:
    return Stopwatch(read_cpu(), seconds, **options)


def served(cache: Path) -> TuningRecord | None:
    return look_up(PROBLEM, CpuTarget(), match="exact", cache=cache).match.record


def stored(cache: Path) -> list[TuningRecord]:
    return TuningCache(cache / "tuning.sqlite").records()


def test_a_slower_family_does_not_replace_a_faster_record(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    first = run(watch(), ["blocked"])
    second = run(watch(), ["loops"])
    assert second.best.candidate.family == "loops"  # what was asked for
    assert second.serving == first.best == served(tmp_path)
    assert second.best.lost_to == (first.best.id,)
    assert len(stored(tmp_path)) == 2


def test_a_database_of_any_name_has_incumbents(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    database = tmp_path / "mine.sqlite"
    first = run(watch(), ["blocked"], cache=database)
    second = run(watch(), ["loops"], cache=database)
    assert second.serving == first.best == served(database)
    assert not (tmp_path / "tuning.sqlite").exists()


def test_a_record_that_nothing_beats_is_kept_as_it_is(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    first = run(watch())
    again = run(watch(), trials=1)
    assert again.kept
    assert again.best == again.serving == first.best
    assert stored(tmp_path) == [first.best]


def test_turns_decide_and_not_times_of_two_days(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    """A machine that is three times as slow today hides neither the better nor the worse one."""
    first = run(watch(), ["loops"])
    better = run(watch(lambda candidate: 3 * by_family(candidate)), ["blocked"])
    assert better.best.median_s > first.best.median_s
    assert better.best.beat == (first.best.id,)
    assert served(tmp_path) == better.best == better.serving
    again = run(watch(lambda candidate: by_family(candidate) / 10), ["loops"])
    assert again.best.median_s < better.best.median_s
    assert again.serving == better.best == served(tmp_path)


def test_between_equals_the_incumbent_stays(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    first = run(watch(lambda candidate: 1e-3), ["loops"])
    equal = run(watch(lambda candidate: 1e-3), ["blocked"])
    assert equal.serving == first.best == served(tmp_path)
    # One percent, in every round, is not nothing.
    faster = run(watch(lambda candidate: 0.99e-3 if candidate.family == "blocked" else 1e-3))
    assert faster.serving.candidate.family == "blocked"


def test_an_incumbent_that_is_wrong_now_does_not_serve(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    first = run(watch(), ["blocked"])
    spoilt = watch()
    spoilt.wrong = {first.best.candidate}
    second = run(spoilt, ["loops"])
    assert second.best.beat == (first.best.id,)
    assert served(tmp_path) == second.best == second.serving


class Racing(Stopwatch):
    """Abandons what is far behind the best so far, as evaluators do."""

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        measurement = super().evaluate(candidate, best_s)
        assert measurement.median_s is not None
        if best_s is None or measurement.median_s <= 1.5 * best_s:
            return measurement
        return Measurement(Outcome.ABANDONED, measurement.median_s, reason="far behind")


def test_a_finalist_that_falls_takes_nobody_along(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    """Its time was false: what it had put out of the race is measured again."""
    stopwatch = Racing(read_cpu(), lambda each: 1e-6 if each.family == "blocked" else 1e-3)
    stopwatch.wrong = Cheats("blocked")
    result = run(stopwatch, trials=12)
    assert {each.family for each in stopwatch.finals_held[0]} == {"blocked"}
    assert {each.family for each in stopwatch.finals_held[-1]} == {"loops"}
    assert result.best.candidate.family == "loops"
    assert result.best.median_s == 1e-3
    assert served(tmp_path) == result.best


def test_who_was_slow_beside_a_false_time_is_a_finalist_then(
    run: Callable[..., TuneResult],
) -> None:
    times = {"blocked": 1e-6, "loops": 1e-3}
    stopwatch = watch(lambda candidate: times[candidate.family])  # none is abandoned
    stopwatch.wrong = Cheats("blocked")
    assert run(stopwatch, trials=12).best.candidate.family == "loops"


def test_where_all_are_wrong_it_ends(run: Callable[..., TuneResult], tmp_path: Path) -> None:
    stopwatch = watch()
    stopwatch.wrong = Cheats("blocked", "loops")
    with pytest.raises(TuningFailedError, match="second verification"):
        run(stopwatch)
    assert stored(tmp_path) == []


class Frugal(Stopwatch):
    """Observes energy, of which slow kernels take less."""

    @staticmethod
    def joules(measurement: Measurement) -> Measurement:
        assert measurement.median_s is not None
        return measurement.scored("energy", 1e-6 / measurement.median_s)

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        return self.joules(super().evaluate(candidate, best_s))

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        finals = super().finals(candidates)
        return replace(
            finals,
            measurements=tuple(map(self.joules, finals.measurements)),
            rounds=tuple(tuple(1e-6 / time_s for time_s in turns) for turns in finals.rounds),
        )


def test_another_objective_chooses_what_is_better_by_it(
    run: Callable[..., TuneResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = run(watch(), study="fast")
    assert fast.best.candidate.family == "blocked"
    with pytest.raises(StudyError, match="objective is time there and energy here"):
        run(Frugal(read_cpu(), by_family), study="fast", objective="energy")
    frugal = run(Frugal(read_cpu(), by_family), study="frugal", objective="energy")
    assert frugal.best.candidate.family == "loops"
    assert frugal.best.beat == (fast.best.id,)
    assert (fast.best.objective, fast.best.score) == ("time", None)
    assert (frugal.best.objective, frugal.best.score) == ("energy", 5e-4)
    documents = [document(fast), document(frugal)]
    assert [(one["objective"], one["score"]) for one in documents] == [
        ("time", None),
        ("energy", 5e-4),
    ]
    assert main(["cache", "show", frugal.best.id, "--cache", str(tmp_path)]) == 0
    assert "energy       0.0005, which it was chosen by" in capsys.readouterr().out
    assert served(tmp_path) == frugal.serving == frugal.best
    # Study, cache and trials have the same scores, and the times beside them.
    rows = TuningCache(tmp_path / "tuning.sqlite").measurements(study="frugal")
    told = read_study("frugal", None, tmp_path / "studies")
    assert told is not None
    assert told.subject["objective"] == "energy"
    assert [each.measurement for each in told.trials] == [row.measurement for row in rows]
    assert {row.measurement.score for row in rows} == {1e-3, 5e-4}
    assert {row.measurement.median_s for row in rows} == {1e-3, 2e-3}
    with pytest.raises(InputError, match=r"objective must be one of .*energy"):
        run(watch(), objective="beauty")


def endures(candidate: Candidate | None) -> float:
    """Time without a pause: the family that is slower in short turns is the faster one then."""
    return 1e-3 if candidate is None else {"blocked": 1.25e-3, "loops": 0.8e-3}[candidate.family]


def nearly(candidate: Candidate) -> float:
    return {"blocked": 0.95e-3, "loops": 1e-3}[candidate.family]


def test_short_turns_or_turns_without_a_pause_choose_the_winner(
    run: Callable[..., TuneResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopwatch = watch(nearly, library_s=1.1e-3)
    stopwatch.sustained = endures
    cool = run(stopwatch, trials=5, cache=tmp_path / "cool")
    assert cool.best.candidate.family == "blocked"
    assert cool.best.baseline is not None
    assert cool.best.baseline.ratio == pytest.approx(1.1 / 0.95)
    assert cool.best.ratio == pytest.approx(0.8)
    assert cool.best.slower_than_library
    told = summary(cool)
    assert "without a pause" in told
    assert "than NumPy 2.4 (OpenBLAS), which `matmul` uses here" in told
    held = run(stopwatch, trials=5, rank="sustained")
    assert held.best.candidate.family == "loops"
    assert held.best.sustained == SustainedRecord(
        Sustained(0.8e-3, pytest.approx(0.48), 600.0, 1410.0),
        Sustained(1e-3, pytest.approx(0.6), 600.0, 1410.0),
    )
    assert served(tmp_path) == held.best
    assert main(["cache", "show", held.best.id, "--cache", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "sustained    0.8 ms, 0.48 J at 1410 MHz" in shown
    assert "1.25x the speed of the library, 1 ms, 0.6 J at 1410 MHz" in shown
    assert main(["cache", "list", "--cache", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "sustained" in shown.splitlines()[0]
    assert "1.250x" in shown
    assert winner(held.best)["sustained"]["ratio"] == 1.25
    assert winner(replace(held.best, sustained=None))["sustained"] is None


def test_incumbents_are_beaten_in_the_turns_that_decide(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    first = run(watch(nearly), ["blocked"], rank="sustained")
    stopwatch = watch(nearly)
    stopwatch.sustained = endures
    again = run(stopwatch, ["loops"], rank="sustained")
    assert again.best.beat == (first.best.id,)
    assert again.serving == again.best == served(tmp_path)
    back = run(stopwatch, ["blocked"], rank="cool")
    assert back.best.beat == (again.best.id,)


def test_where_nobody_is_held_short_turns_decide(run: Callable[..., TuneResult]) -> None:
    assert run(watch(), rank="sustained").best.candidate.family == "blocked"
    with pytest.raises(InputError, match="rank must be 'cool' or 'sustained', got 'hot'"):
        run(watch(), rank="hot")


class Cheats(set["Candidate"]):
    """All candidates of some families."""

    def __init__(self, *families: str) -> None:
        super().__init__()
        self._families = families

    def __contains__(self, candidate: object) -> bool:
        return getattr(candidate, "family", "") in self._families


def test_disturbed_finals_are_held_again(run: Callable[..., TuneResult]) -> None:
    stopwatch = watch()
    stopwatch.scatter = [0.4, 0.01]
    result = run(stopwatch)
    assert len(stopwatch.finals_held) == 2
    assert not result.best.noisy


def test_what_stays_disturbed_is_stored_as_noisy_and_makes_way(
    run: Callable[..., TuneResult], tmp_path: Path
) -> None:
    stopwatch = watch()
    stopwatch.scatter = [0.4]
    noisy = run(stopwatch).best
    assert len(stopwatch.finals_held) == deciding.ATTEMPTS
    assert noisy.noisy
    assert noisy.noise == "the median of the winner is uncertain by ±40.0%"
    again = run(watch())
    assert not again.kept
    assert again.best.candidate == noisy.candidate
    assert not again.best.noisy
    assert served(tmp_path) == again.best


def test_finals_that_contradict_the_search_are_noise(run: Callable[..., TuneResult]) -> None:
    stopwatch = watch()
    stopwatch.slowdown = 130
    assert run(stopwatch).best.noise == "1 ms in the search and 130 ms in the finals"


def test_the_ratio_is_that_of_the_times_beside_it(run: Callable[..., TuneResult]) -> None:
    best = run(watch(library_s=0.5e-3)).best
    assert best.baseline is not None
    assert best.baseline.ratio == pytest.approx(best.baseline.median_s / best.median_s)
    assert best.slower_than_library


def test_a_disturbed_library_is_measured_again_and_then_not_known(
    run: Callable[..., TuneResult],
) -> None:
    stopwatch = watch(library_s=0.5e-3)
    stopwatch.library_noise = "the library was disturbed"
    result = run(stopwatch)
    assert len(stopwatch.finals_held) == deciding.ATTEMPTS
    assert result.best.baseline is None
    assert "the library was disturbed" in result.best.noise
    told = summary(result)
    assert "baseline  not known (NumPy 2.4 (OpenBLAS) was disturbed)" in told
    assert "the speed of" not in told
    assert "ms (noisy)," in told


@pytest.mark.parametrize(
    ("throttle", "told"),
    [
        ("none", ""),
        ("power cap", ""),
        ("power cap, thermal", "the GPU was throttled (thermal)"),
        (
            "hardware slowdown, power brake",
            "the GPU was throttled (hardware slowdown, power brake",
        ),
    ],
)
def test_a_throttled_gpu_is_told_from_a_capped_one(throttle: str, told: str) -> None:
    assert throttling({"throttle": throttle}).startswith(told)
    assert bool(throttling({"throttle": throttle})) == bool(told)


def test_times_disagree_from_twice_on() -> None:
    assert not disagreement(1e-3, 2e-3)
    assert not disagreement(None, 2e-3)
    assert disagreement(2.1e-3, 1e-3)


class Processors:
    """A machine of two processors as ``/proc`` shows it, with this process and one other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._ticks = 0
        monkeypatch.setattr("os.getpid", lambda: 100)
        monkeypatch.setattr("os.sysconf", lambda name: 100)
        monkeypatch.setattr("time.monotonic", lambda: self._ticks / 100)
        self.show(0, own=0, child=0, others=0)

    def show(self, ticks: int, *, own: int, child: int, others: int) -> None:
        """What was used up to a moment, in hundredths of a second."""
        self._ticks = ticks
        busy = own + child + others
        self._write("stat", f"cpu  {busy} 0 0 {2 * ticks - busy} 0 0 0 0 0 0\ncpu0 1 2 3\n")
        self._write("100/stat", f"100 (python) S 1 0 0 0 0 0 0 0 0 0 {own} 0 0 0 20 0 1 0 9\n")
        # A program may be called anything.
        self._write("101/stat", f"101 (a) S (b) R 100 0 0 0 0 0 0 0 0 0 {child} 0 0 0 20 0\n")
        self._write("102/stat", f"102 (busy) R 1 0 0 0 0 0 0 0 0 0 {others} 0 0 0 20 0\n")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)


@pytest.mark.parametrize(
    ("threads", "own", "others", "told"),
    [
        (2, 200, 0, ""),
        (2, 180, 20, ""),
        (2, 100, 100, "others kept 1.0 of 2 processors busy, and the kernels use 2"),
        (1, 100, 100, ""),
        (1, 50, 150, "others kept 1.5 of 2 processors busy, and the kernels use 1"),
    ],
)
def test_others_in_the_way_are_seen_and_our_own_workers_are_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    own: int,
    others: int,
    told: str,
) -> None:
    processors = Processors(tmp_path, monkeypatch)
    watching = Competition(threads, processors=2, proc=tmp_path)
    processors.show(100, own=10, child=own - 10, others=others)
    assert watching.seen() == told


def test_where_the_system_tells_nothing_nothing_is_seen(tmp_path: Path) -> None:
    assert Competition(1, proc=tmp_path).seen() == ""


def test_this_machine_is_read() -> None:
    """Whatever it is doing: what it says fits its processors."""
    watching = Competition(10**6)
    assert watching.seen() == "" or "processors busy, and the kernels use 1000000" in (
        watching.seen()
    )


BATCH = 4


def batches(cache: Path, monkeypatch: pytest.MonkeyPatch, trials: int) -> list[list[Candidate]]:
    """What a search of a large product has compiled together, in order."""
    from autotune.cpu.target import CpuTarget

    stopwatch = Stopwatch(read_cpu(), batch=BATCH)
    monkeypatch.setattr(CpuTarget, "evaluator", lambda *arguments, **options: stopwatch)
    tune(Gemm(1024, 1024, 1024, threads=1), target="cpu", trials=trials, cache=cache)
    return [batch for batch in stopwatch.batches if batch]


def test_known_points_of_the_default_family_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = batches(tmp_path, monkeypatch, BATCH)
    assert [candidate.family for candidate in first] == ["goto"] * BATCH
    assert len(set(first)) == BATCH


def test_every_other_family_follows_as_half_of_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = batches(tmp_path, monkeypatch, 12 * BATCH)
    families = [{candidate.family for candidate in batch} for batch in found]
    # Points of the sampler's may be of any family, but of these it knows nothing yet.
    seen: set[str] = set()
    for batch in families[:4]:
        assert len(batch - seen - {"goto"}) <= BATCH // 2
        seen |= batch
    assert set.union(*families) == {
        "goto", "blocked", "divide", "loops", "packed", "simd", "skinny", "unpacked", "unrolled",
    }  # fmt: skip


def test_what_was_tuned_before_is_tried_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = batches(tmp_path, monkeypatch, 1)
    assert first[0].configuration["ty"] == 12
    record = tune(Gemm(1000, 1000, 1000, threads=1), target="cpu", trials=3, cache=tmp_path).best
    again, *_ = batches(tmp_path, monkeypatch, BATCH)
    assert record.candidate in again[:2]


def test_trials_end_when_little_is_to_be_had(run: Callable[..., TuneResult]) -> None:
    result = run(watch(), ["blocked"], trials=60, until=0.2)
    assert 10 <= len(result.trials) < 60
    with pytest.raises(InputError, match="until must be a probability between 0 and 1"):
        run(watch(), ["blocked"], until=5)
