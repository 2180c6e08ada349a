"""Turns without a pause: who takes them, for how long, and what is read meanwhile."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement, Outcome, Series, Sustained
from autotune.gpu.measure import timing
from autotune.gpu.measure.timing import Batch, Stopwatch
from autotune.gpu.measure.watching import GpuWatch, Reading, mean_power
from autotune.measuring import sustained
from autotune.measuring.effort import Baseline, Effort
from autotune.measuring.harness import Harness
from autotune.measuring.messages import Evaluated, Program, Vendor, Visit
from autotune.measuring.rounds import hold_rounds
from autotune.measuring.sustained import MOST_HEATING, MOST_ROUNDS, TURN_S, SustainedTurns
from autotune.measuring.timing import Ceiling, Stop
from autotune.measuring.trial import UNSTEADY_S, Trials
from autotune.operations.problem import Gemm
from autotune.operations.verification import Verdict

HIGHEST_MHZ, LIMIT_W = 1980.0, 700.0
WALL_S = TURN_S + UNSTEADY_S


class Card:
    """A GPU whose clock falls, turn by turn, to what its power limit allows a kernel."""

    def __init__(self) -> None:
        self.now_s, self.mhz = 0.0, HIGHEST_MHZ
        self.order: list[object] = []

    def clock(self) -> float:
        return self.now_s

    def kernel(
        self, name: object, time_s: float, watts: float, wall_s: float = WALL_S
    ) -> Callable[[float], Series]:
        """One that takes so long, and so much, at the highest clock, and so long for a turn."""

        def visit(budget_s: float) -> Series:
            assert budget_s == TURN_S
            self.order.append(name)
            self.now_s += wall_s
            allowed = min(HIGHEST_MHZ, HIGHEST_MHZ * LIMIT_W / watts)
            self.mhz += 0.9 * (allowed - self.mhz)
            now_s = time_s * HIGHEST_MHZ / self.mhz
            used = watts * self.mhz / HIGHEST_MHZ
            seen = {"sm_clock_mhz": self.mhz, "watts": used, "joules": used * now_s}
            return Series(now_s, (now_s, now_s), round(TURN_S / now_s), seen)

        return visit


def held(
    visits: Mapping[int | None, Any],
    card: Card,
    *,
    budget_s: float = 20.0,
    limit_s: float = math.inf,
) -> SustainedTurns:
    turns = SustainedTurns(visits, budget_s, Deadline(limit_s, card.clock))
    turns.hold([at for at in visits if at is not None])
    return turns


def test_the_device_is_heated_until_its_clock_is_steady_and_then_all_take_turns() -> None:
    card = Card()
    visits = {0: card.kernel(0, 1e-4, 1000), 1: card.kernel(1, 1e-4, 1000)}
    visits |= {None: card.kernel("library", 1.1e-4, 1000)}  # type: ignore[dict-item]
    found = held(visits, card)
    heating = len(card.order) - MOST_ROUNDS * 3 + 1
    assert 2 < heating < MOST_HEATING  # two turns alone are too few to see that it changes no more
    # The last of these turns counts in the first round.
    rest = [0, 1, "library"] * (MOST_ROUNDS - 1)
    assert card.order == [0] * heating + [1, "library"] + rest
    told = Sustained.of(found.turns[0])
    assert told is not None
    assert told.sm_clock_mhz == pytest.approx(HIGHEST_MHZ * 0.7, rel=sustained.CHANGE)
    assert told.joules == pytest.approx(LIMIT_W * told.median_s, rel=sustained.CHANGE)


def test_short_turns_and_turns_without_a_pause_have_winners_of_their_own() -> None:
    """The one that is 5% faster takes a third more power, and loses where that is short."""
    card = Card()
    hungry, frugal = (1.00e-4, 1000.0), (1.05e-4, 750.0)
    cool = [lambda _, s=s: Series(s, (s, s), 100) for s, _ in (hungry, frugal)]
    right = Measurement(Outcome.OK, 1e-4, (1e-4, 1e-4), 1, 0.1)
    visits: dict[int | None, Any] = {
        at: card.kernel(at, *each) for at, each in enumerate((hungry, frugal))
    }
    turns = SustainedTurns(visits, 20.0, Deadline(clock=card.clock))
    finals = hold_rounds(
        [right, right], dict(enumerate(cool)), None, None, 0.1, lambda _: right, sustained=turns
    )
    assert [each.median_s for each in finals.measurements] == [1.00e-4, 1.05e-4]
    own, other = (Sustained.of(each) for each in finals.sustained)
    assert own is not None
    assert other is not None
    assert own.median_s > 1.1 * other.median_s
    assert finals.sustained_baseline == ()


@given(
    budget_s=st.floats(0.0, 12.0),
    limit_s=st.floats(0.1, 20.0),
    finalists=st.integers(1, 6),
    library=st.booleans(),
)
@example(budget_s=4.0, limit_s=4 * WALL_S, finalists=2, library=False)
def test_time_is_never_exceeded_and_rounds_are_whole(
    budget_s: float, limit_s: float, finalists: int, library: bool
) -> None:
    card = Card()
    visits: dict[int | None, Any] = {at: card.kernel(at, 1e-4, 900) for at in range(finalists)}
    if library:
        visits[None] = card.kernel(None, 1e-4, 900)
    found = held(visits, card, budget_s=budget_s, limit_s=limit_s)
    assert card.now_s <= max(0.0, min(budget_s, limit_s)) + 1e-9
    rounds = {len(own) for own in found.turns.values()}
    assert len(rounds) == 1
    assert (None in found.turns) is library
    if rounds == {0}:  # nothing was held in vain
        assert not card.order
    fits = min(budget_s, limit_s) >= (2.001 + library) * WALL_S
    assert fits <= (rounds != {0})  # two turns for heat, of which one counts, and the library's


@given(
    budget_s=st.floats(0.0, 30.0),
    calls_s=st.lists(st.floats(1e-4, 8.0), min_size=1, max_size=4),
    library_s=st.floats(1e-4, 8.0),
)
def test_long_calls_of_one_do_not_take_the_time_of_all(
    budget_s: float, calls_s: list[float], library_s: float
) -> None:
    """Calls of a few tenths of a second make turns longer; longer ones are in no turn."""
    card, best_s = Card(), min(calls_s[0], TURN_S)
    call_s = {**dict(enumerate([best_s, *calls_s[1:]])), None: library_s}
    visits: dict[int | None, Any] = {
        at: card.kernel(at, each, 600, WALL_S + sustained.CALLS * each * (each > sustained.LONG_S))
        for at, each in call_s.items()
    }
    turns = SustainedTurns(visits, budget_s, Deadline(clock=card.clock))
    turns.hold(range(len(calls_s)), 0, call_s)
    assert card.now_s <= budget_s + 1e-9
    assert all(call_s[cast("int | None", at)] <= TURN_S for at in card.order)
    assert (None in turns.turns) is (library_s <= TURN_S)
    assert len({len(own) for own in turns.turns.values()}) == 1


def test_a_library_of_long_calls_leaves_the_kernels_their_turns() -> None:
    card = Card()
    turns = SustainedTurns(
        {0: card.kernel(0, 1e-4, 600), None: card.kernel(None, 5.0, 600, 45.0)},
        6.0,
        Deadline(clock=card.clock),
    )
    right = Measurement(Outcome.OK, 1e-4, (1e-4, 1e-4), 1, 0.1)
    cool = {0: lambda _: Series(1e-4, (1e-4, 1e-4), 100)}
    library = Baseline("library", 5.0, (5.0, 5.0), 1, {})
    finals = hold_rounds([right], cool, library, None, 0.1, lambda _: right, sustained=turns)
    assert len(finals.sustained[0]) == MOST_ROUNDS
    assert finals.sustained_baseline == ()
    assert finals.ratios == (pytest.approx(5e4),)
    assert finals.baseline is not None
    assert finals.baseline.median_s == 5.0


def test_with_little_time_fewer_take_part() -> None:
    for budget_s, expected in ((3.1, [0]), (3.9, [0, 1]), (20.0, [0, 1, 2])):
        card = Card()
        visits: dict[int | None, Any] = {at: card.kernel(at, 1e-4, 600) for at in range(5)}
        visits[None] = card.kernel(None, 1e-4, 600)
        assert [*held(visits, card, budget_s=budget_s).turns] == [*expected, None]


@pytest.mark.parametrize("fails_at", [0, 1, 2, 4, 7])
def test_who_fails_in_a_turn_is_out(fails_at: int) -> None:
    card = Card()
    wrong = Measurement(Outcome.WRONG_RESULT, reason="wrong, in the finals")
    first = card.kernel(0, 1e-4, 600)

    def failing(budget_s: float) -> Series | Measurement:
        series = first(budget_s)
        return wrong if card.order.count(0) > fails_at else series

    right = Measurement(Outcome.OK, 1e-4, (1e-4, 1e-4), 1, 0.1)
    confirmed: list[int] = []

    def confirm(position: int) -> Measurement:
        confirmed.append(position)
        return right

    turns = SustainedTurns(
        {0: failing, 1: card.kernel(1, 1e-4, 600)}, 20.0, Deadline(clock=card.clock)
    )
    cool = {at: (lambda _: Series(1e-4, (1e-4, 1e-4), 100)) for at in (0, 1)}
    finals = hold_rounds([right, right], cool, None, None, 0.1, confirm, sustained=turns)
    ran_out = fails_at < card.order.count(0)
    assert (finals.measurements[0] is wrong) is ran_out
    assert confirmed == [0, 1]
    heats = fails_at < 2  # nobody is held then
    assert len(finals.sustained[1]) == (0 if heats else MOST_ROUNDS)


def test_what_the_end_of_a_run_cuts_off_does_not_count() -> None:
    card = Card()
    own = card.kernel(0, 1e-4, 600)

    def cut(budget_s: float) -> Series:
        if len(card.order) >= 6:
            raise OutOfTimeError("over")
        return own(budget_s)

    found = held({0: own, None: cut}, card)
    assert [len(turns) for turns in found.turns.values()] == [2, 2]


@pytest.mark.parametrize(("time_s", "takes"), [(4.9e-5, False), (5e-5, True), (0.51, False)])
def test_kernels_that_are_brief_or_very_long_are_not_held(time_s: float, takes: bool) -> None:
    card = Card()
    turns = SustainedTurns({0: card.kernel(0, time_s, 600)}, 20.0, Deadline(clock=card.clock))
    right = Measurement(Outcome.OK, time_s, (time_s, time_s), 1, 0.1)
    cool = {0: lambda _: Series(time_s, (time_s, time_s), 100)}
    finals = hold_rounds([right], cool, None, None, 0.1, lambda _: right, sustained=turns)
    assert bool(finals.sustained[0]) is takes is bool(card.order)


class Enduring:
    """A harness, a program and its operands in one, which writes down how it is called."""

    first_runs = cast(Any, None)
    problem, contents = Gemm(64, 64, 64), 2

    def __init__(self, time_s: float = 1e-4, flaw: str = "", ceiling: float = math.inf) -> None:
        self.ceiling = Ceiling(ceiling, math.inf)
        self._time_s, self._flaw = time_s, flaw
        self.told: list[str] = []

    @contextlib.contextmanager
    def load(self, program: Any, *, keep: bool) -> Iterator[Any]:
        assert keep
        yield SimpleNamespace(problem=lambda: contextlib.nullcontext(self))

    @contextlib.contextmanager
    def vendor(self, vendor: Vendor) -> Iterator[Enduring]:
        yield self

    def turn(self) -> None:
        self.told.append("turn")

    def settle(self) -> float:
        return self._time_s

    def series(self, expected_s: float, stop: Stop) -> Series:
        self.told.append(f"{stop.budget_s:g} s" + ("" if stop.pauses else " without a pause"))
        return Series(self._time_s, (self._time_s, self._time_s), 100)

    def judge_last(self, accuracy: str) -> Verdict:
        self.told.append("judged")
        return Verdict(math.inf, self._flaw) if self._flaw else Verdict(0.0)


class Watcher:
    def __init__(self, told: list[str]) -> None:
        self._told = told

    def start(self) -> None:
        self._told.append("watched")

    def stop(self) -> None:
        self._told.append("seen")

    def read(self, series: Series) -> Mapping[str, float]:
        return {"watts": 5.0}


PROGRAM = cast(Program, None)


def visited(harness: Enduring, program: Program = PROGRAM) -> Series | Evaluated:
    trials = Trials(cast(Harness, harness), Effort(), watchers=[Watcher(harness.told)])
    reply = trials(Visit(program, "ieee", TURN_S, sustained=True))
    assert isinstance(reply, Series | Evaluated)
    return reply


def test_a_turn_without_a_pause_is_watched_and_its_result_is_judged() -> None:
    harness = Enduring()
    series = visited(harness)
    assert isinstance(series, Series)
    assert series.observed == {"watts": 5.0}
    assert harness.told == [
        "turn",
        f"{UNSTEADY_S:g} s without a pause",
        "watched",
        f"{TURN_S:g} s without a pause",
        "seen",
        "0 s",  # with elements that change, which a kernel that stopped would not see
        "judged",
    ]
    # A library's error is noted, and nothing is held against it.
    assert isinstance(visited(Enduring(flaw="wrong"), Vendor("library", 1, {})), Series)


def test_what_is_wrong_or_too_fast_in_a_turn_without_a_pause_is_found() -> None:
    wrong = visited(Enduring(flaw="left C[0][0] unwritten in a timed call"))
    assert isinstance(wrong, Evaluated)
    assert wrong.measurement.outcome is Outcome.WRONG_RESULT
    fast = visited(Enduring(time_s=1e-9, ceiling=1e12))
    assert isinstance(fast, Evaluated)
    assert fast.measurement.outcome is Outcome.IMPLAUSIBLE


class Device:
    """A device that computes what is enqueued, one after the other, while the host goes on.

    Attributes:
        idle_s: for how long it had nothing to do since the first event.
    """

    def __init__(self, launch_s: float) -> None:
        self.host_s = self.free_s = self.idle_s = 0.0
        self.begun = False
        self._launch_s = launch_s

    def launch(self, number: int, stream: Any) -> None:
        if self.begun:
            self.idle_s += max(0.0, self.host_s - self.free_s)
        self.begun = True
        self.free_s = max(self.free_s, self.host_s) + self._launch_s
        self.host_s += 3e-6

    def stream(self) -> Device:
        return self

    def event(self) -> DeviceEvent:
        return DeviceEvent(self)

    def record(self, enqueue: Callable[[], None], stream: Any) -> Any:
        return SimpleNamespace(replay=enqueue, close=lambda: None)


class DeviceEvent:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_s = 0.0

    def record(self, stream: Any) -> None:
        self.at_s = max(self._device.free_s, self._device.host_s)

    def query(self) -> bool:
        """Whoever waits for the device is late: it has read a counter meanwhile."""
        if self._device.host_s < self.at_s:
            self._device.host_s = self.at_s + 0.01
        return True

    def time_since(self, earlier: DeviceEvent) -> float:
        return 1e3 * (self.at_s - earlier.at_s)


@pytest.mark.parametrize("launch_s", [60e-6, 250e-6, 3e-3, 0.2])
def test_a_device_that_is_held_never_waits_for_the_host(
    launch_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(launch_s)
    monkeypatch.setattr(timing, "driver", lambda: device)
    batch = Batch.of(device.launch, 3, launch_s, Stopwatch())
    series = batch.series(launch_s, Stop.after(TURN_S))
    assert device.idle_s == 0
    assert series.median_s == pytest.approx(launch_s, rel=0.01)
    assert TURN_S <= series.calls * launch_s <= TURN_S + 0.06 + 3 * batch.launches * launch_s
    paused = batch.series(launch_s, Stop(TURN_S, 0.0, TURN_S))
    assert device.idle_s > 0.01
    assert paused.calls > 0


def test_power_is_read_between_steps_of_a_counter() -> None:
    """One that moves every 100 ms, by what was used until then."""
    for begun_s in (0.0, 0.03, 0.099):
        seen = [
            Reading(at_s, 1500.0, 500 * math.floor(10 * at_s) / 10)
            for at_s in (begun_s + 0.01 * look for look in range(35))
        ]
        assert mean_power(seen) == pytest.approx(500, rel=0.06)
        assert mean_power(seen[2:11]) is None  # a single step
    assert mean_power([Reading(1.0, None, None)] * 3) is None
    assert (
        mean_power([Reading(at, None, joules) for at, joules in ((0, 5), (1, 9), (2, 1))]) is None
    )


class Meter:
    """Shows a clock of 1410 MHz, and a counter of 300 W by the clock that it is given."""

    def __init__(self, clock: Callable[[], float], names: Sequence[str]) -> None:
        self._clock, self._names = clock, names

    def read(self, names: Any = None) -> dict[str, str]:
        told = {"sm_clock_mhz": "1410", "energy_j": f"{300 * self._clock():.3f}"}
        return {name: told[name] for name in names if name in self._names}


@pytest.mark.parametrize("names", [("sm_clock_mhz", "energy_j"), ("sm_clock_mhz",), ()])
def test_a_gpu_is_watched_as_far_as_it_tells(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**9))

    def clock() -> float:
        return float(next(ticks))

    watch = GpuWatch(Meter(clock, names), clock)
    watch.start()
    while next(ticks) < 50:  # a thread looks
        timing.time.sleep(1e-3)
    watch.stop()
    found = watch.read(Series(2e-4, (2e-4, 2e-4), 10))
    expected: dict[str, Any] = {}
    if "sm_clock_mhz" in names:
        expected["sm_clock_mhz"] = 1410
    if "energy_j" in names:
        expected |= {"watts": pytest.approx(300, rel=0.3), "joules": pytest.approx(0.06, rel=0.3)}
    assert found == expected
    assert watch._thread is not None
    assert not watch._thread.is_alive()
