"""Calls in which kernels and the library take turns: who serves, when, and what is kept."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from textbook_family import tune_textbook

from autotune import Gemm, MatchQuality, load, matmul
from autotune.arrays.numpy import NumpyArrays
from autotune.core.errors import LaunchError, OperandError
from autotune.core.measurement import Sustained
from autotune.core.paths import CacheLocations
from autotune.core.session import forget
from autotune.runtime import choosing, multiplying
from autotune.runtime import contest as contests
from autotune.runtime.contest import (
    BRIEF_S,
    ENOUGH,
    FEWEST,
    MARGIN_OF_BRIEF,
    MARGIN_OF_POWER,
    Contest,
)
from autotune.runtime.contestants import MARGIN
from autotune.serving.background import Job, background
from autotune.serving.clock import AGAIN_S
from autotune.serving.kernel import Kernel
from autotune.serving.loading import Contender
from autotune.store import BaselineRecord, SustainedRecord, TuningCache
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autotune.serving.clock import Reading

PROBLEM = Gemm(5, 6, 7)
A, B = np.ones((5, 6), np.float32), np.ones((6, 7), np.float32)
LIBRARY = f"NumPy {np.__version__}"


class FakeClock:
    """A clock that says what a test wants of each way to compute.

    Args:
        seconds: by what a call returns; a tuple is of two calls in a row.
    """

    waits = True

    def __init__(self, seconds: dict[Any, Any]) -> None:
        self.seconds = seconds
        self.cooled = 0
        self.spare = 1000
        self.timed: list[Any] = []
        self.is_captured = False
        self.knows = True

    def runs(self, like: Any) -> bool:
        return not self.is_captured

    def time(self, call: Callable[[], Any], like: Any, *, twice: bool) -> tuple[Any, Reading]:
        result = call()
        self.timed.append(result)
        seconds = self.seconds[result]
        found = seconds if isinstance(seconds, tuple) else (seconds,)
        return result, lambda: found if self.knows else None

    def time_cold(self, call: Callable[[], Any], like: Any, *, again: bool) -> tuple[float, ...]:
        self.cooled += 1
        if self.cooled > self.spare:
            raise MemoryError
        found = self.time(call, like, twice=False)[1]()
        return found if again else found[:1]


class DeviceLike(FakeClock):
    """A clock of calls that return before they have computed."""

    waits = False


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache whose only records are of another shape."""
    tune_textbook(tmp_path / "families", warm_cache)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(warm_cache))
    monkeypatch.setenv("AUTOTUNE_FAMILIES", str(tmp_path / "families"))
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "0")
    forget()
    yield warm_cache
    forget()


def contest(clock: FakeClock, problem: Gemm = PROBLEM, target: str = "cpu") -> Contest:
    found, _ = choosing._contenders(problem, "cpu")
    made = Contest(problem, target, LIBRARY, found[:1], clock)
    assert not made.over
    return made


@pytest.mark.parametrize("variable", ["AUTOTUNE_TURNS", "AUTOTUNE_BACKGROUND"])
def test_a_wrong_value_of_a_switch_breaks_no_product(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "off")
    for _ in range(2):
        np.testing.assert_allclose(matmul(A, B), A @ B, rtol=1e-5)
    (told,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert f"left to their libraries: {variable} must be 0 or 1, got 'off'" in told


def play(made: Contest, calls: int = 100) -> list[str]:
    """Who computed, call by call, until it is known."""
    who = []
    for _ in range(calls):
        who.append(made.call(lambda kernel: "kernel", lambda: "library", A))
        if made.over:
            break
    return who


def light(cache: Path) -> list[Any]:
    """The light records that are stored by now."""
    while background().busy:
        pass
    stored = TuningCache(CacheLocations.at(cache).database).records()
    return [each for each in stored if each.is_light]


def test_a_faster_kernel_wins(cache: Path) -> None:
    clock = FakeClock({"kernel": 1e-3, "library": 2e-3})
    made, heard = contest(clock), []
    made.on_change(lambda: heard.append(made.winner))
    who = play(made)
    assert made.over
    assert isinstance(made.winner, Kernel)
    assert heard == [made.winner]
    assert who[0] == "library"  # a shape that is used once costs nothing
    assert len(who) <= 1 + 2 * (FEWEST + 1)
    assert made.call(lambda kernel: kernel, lambda: "library", A) is made.winner
    (kept,) = light(cache)
    assert kept.median_s == 1e-3
    assert kept.baseline == BaselineRecord(LIBRARY, 2e-3, 2.0)


@pytest.mark.parametrize("seconds", [1e-3, 0.99e-3, 4e-3])
def test_the_library_stays_where_it_is_as_fast(seconds: float, cache: Path) -> None:
    made = contest(FakeClock({"kernel": seconds, "library": 1e-3}))
    who = play(made)
    assert made.over
    assert made.winner is None
    if seconds > 2e-3:  # hopeless: tried once more than it takes to load it, and never again
        assert who.count("kernel") == 2
    else:
        assert who.count("kernel") <= ENOUGH + 1
    (kept,) = light(cache)
    assert kept.slower_than_library is (seconds > 1e-3)


@pytest.mark.parametrize(
    ("problem", "seconds", "least"),
    [
        (Gemm(1024, 4096, 28672, "bfloat16"), 2 * BRIEF_S, MARGIN_OF_POWER),
        (Gemm(16, 4096, 28672, "bfloat16"), 2 * BRIEF_S, MARGIN),  # of memory
        (Gemm(1024, 1024, 1024, "float64"), 2 * BRIEF_S, MARGIN_OF_POWER),
        (Gemm(1024, 4096, 28672, "bfloat16"), BRIEF_S / 2, MARGIN_OF_BRIEF),
        (Gemm(16, 4096, 4096, "float64"), BRIEF_S / 2, MARGIN),
        (Gemm(1024, 1024, 1024), 2 * BRIEF_S, MARGIN),
    ],
)
def test_power_decides_between_long_products_and_launches_between_brief_ones(
    problem: Gemm, seconds: float, least: float
) -> None:
    for ratio in (0.99 * least, 1.01 * least):
        faster = contests.is_faster(ratio, seconds, problem, "cuda", in_turns=True)
        assert faster is (ratio > least)
        on_cpu = contests.is_faster(ratio, seconds, problem, "cpu", in_turns=True)
        assert on_cpu is (ratio > MARGIN)


def test_where_both_were_held_without_a_pause_power_has_had_its_say(cache: Path) -> None:
    short = Gemm(1024, 4096, 28672, "bfloat16")
    for ratio, wins in ((1.03, True), (1.01, False)):
        faster = contests.is_faster(ratio, 2 * BRIEF_S, short, "cuda", in_turns=False, held=True)
        assert faster is wins
    assert contests.is_faster(1.01, BRIEF_S, short, "cuda", in_turns=False)
    tune_textbook(cache.parent / "families", cache, [PROBLEM.shape], library="OpenBLAS 0.3")
    store = TuningCache(CacheLocations.at(cache).database)
    told = next(each for each in store.records() if each.problem == PROBLEM.key())
    for ratio in (0.97, 1.5):
        held = SustainedRecord(Sustained(1e-3), Sustained(ratio * 1e-3))
        store.delete([each.id for each in store.records()])
        store.add(replace(told, sustained=held))
        forget()
        first = choosing._contenders(PROBLEM, "cpu")[0][0]
        faster, why = choosing._knowledge(first, PROBLEM, "cpu", choosing.ANY)
        assert faster is (ratio > 1)
        assert f"at {ratio:.2f}x OpenBLAS" in why


@pytest.mark.parametrize(
    ("kernel", "wins"),
    [((1e-5, 1e-5), True), ((1e-5, 3e-5), False), ((3e-5, 1e-5), False), ((1e-5,), True)],
)
def test_a_kernel_wins_in_both_of_two_calls_in_a_row(
    kernel: tuple[float, ...], wins: bool
) -> None:
    made = contest(FakeClock({"kernel": kernel, "library": (2e-5, 1.5e-5)}))
    play(made)
    assert made.over
    assert (made.winner is not None) is wins


def test_a_call_that_was_disturbed_hides_no_second_ones() -> None:
    clock = FakeClock({"kernel": (1e-5, 3e-5), "library": (5e-3,)})
    made = contest(clock)
    for number in range(40):
        if number == 6:
            clock.seconds["library"] = (2e-5, 1.5e-5)
        made.call(lambda kernel: "kernel", lambda: "library", A)
        if made.over:
            break
    assert made.winner is None


def test_calls_are_made_twice_only_where_nothing_of_the_callers_is_written() -> None:
    clock, made = make_target("cpu").clock(), []
    for twice in (False, True):
        made.clear()
        result, reading = clock.time(lambda: made.append(1) or "made", A, twice=twice)
        assert result == "made"
        assert len(made) == len(reading() or ()) == 1 + twice
    _, reading = clock.time(lambda: time.sleep(2 * AGAIN_S), A, twice=True)
    assert len(reading() or ()) == 1
    # An output that is an operand as well: once more would be another product.
    for _ in range(30):
        out = A[:, :5].copy()
        assert (matmul(out, A[:, :5], out) == 5).all()


def test_nothing_is_timed_in_a_capture() -> None:
    clock = FakeClock({"kernel": 1e-3, "library": 2e-3})
    made = contest(clock)
    clock.is_captured = True
    assert set(play(made, 30)) == {"library"}
    assert not clock.timed
    clock.is_captured = False
    assert "kernel" in play(made)


def twice(made: Contest, calls: int) -> list[str]:
    """Who computes in calls that write nothing of the caller's."""
    return [
        made.call(lambda kernel: "kernel", lambda: "library", A, twice=True) for _ in range(calls)
    ]


@pytest.mark.parametrize("seconds", [1e-3, 1.99e-3, 3e-3])
def test_where_nobody_waits_the_second_call_takes_all_turns(seconds: float) -> None:
    clock = DeviceLike({"kernel": seconds, "library": 2e-3})
    made = contest(clock)
    assert twice(made, 1) == ["library"]
    assert not clock.timed  # a shape that is used once costs nothing
    twice(made, 1)
    assert made.over
    assert (made.winner is not None) is (seconds < 1.9e-3)
    assert clock.cooled == len(clock.timed) <= 2 * (ENOUGH + 1)
    assert twice(made, 1) == ["kernel" if seconds < 1.9e-3 else "library"]


@pytest.mark.parametrize(("part", "wins"), [(1, False), (10**9, True)])
def test_what_stays_in_a_gpus_cache_is_timed_there_too(
    part: int, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that is faster only on what comes from memory loses in a small program."""
    monkeypatch.setattr(contests, "OF_CACHE", part)
    made = contest(DeviceLike({"kernel": (1e-3, 6e-4), "library": (2e-3, 5e-4)}))
    twice(made, 2)
    assert made.over
    assert (made.winner is not None) is wins


def test_what_is_faster_computes_from_the_second_call_on(cache: Path) -> None:
    made = contest(DeviceLike({"kernel": 1e-3, "library": 2e-3}))
    assert twice(made, 3) == ["library", "kernel", "kernel"]
    (kept,) = light(cache)
    assert kept.median_s == 1e-3


def test_times_of_turns_that_decided_nothing_are_forgotten() -> None:
    clock = DeviceLike({"kernel": math.nan, "library": 2e-3})
    made = contest(clock)
    assert twice(made, 2) == ["library"] * 2
    assert not made.over
    clock.seconds["kernel"] = 1e-3
    while not made.over:
        twice(made, 1)
    assert made.winner is not None


def test_turns_are_taken_call_by_call_where_there_is_no_memory_or_the_product_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = DeviceLike({"kernel": 1e-3, "library": 2e-3})
    clock.spare = 0
    made = contest(clock)
    assert twice(made, 6)[2:] == ["library", "kernel"] * 2
    assert clock.cooled == 1
    monkeypatch.setattr(contests, "MOST_FLOPS", PROBLEM.flops - 1)
    large = DeviceLike({"kernel": 1e-3, "library": 2e-3})
    twice(contest(large), 2)
    assert len(large.timed) == 1
    captured = DeviceLike({"kernel": 1e-3, "library": 2e-3})
    captured.is_captured = True
    twice(contest(captured), 9)
    assert not captured.timed


def test_a_failure_in_turns_taken_together_is_nobodys() -> None:
    clock = DeviceLike({"kernel": 1e-3, "library": 2e-3})
    made = contest(clock)

    def lacks(kernel: Kernel) -> Any:
        raise RuntimeError("out of memory")

    got = [made.call(lacks, lambda: "library", A, twice=True) for _ in range(2)]
    assert got == ["library"] * 2


def test_times_that_are_never_known_leave_the_library(cache: Path) -> None:
    clock = FakeClock({"kernel": 1e-3, "library": 2e-3})
    made = contest(clock)
    clock.knows = False
    play(made, 3 * contests.MOST_CALLS)
    assert made.over
    assert made.winner is None
    assert not light(cache)


def test_a_kernel_that_fails_costs_no_call(cache: Path) -> None:
    made = contest(FakeClock({"library": 2e-3}))

    def fails(kernel: Kernel) -> Any:
        raise LaunchError("no such device any more")

    got = [made.call(fails, lambda: "library", A) for _ in range(10)]
    assert set(got) == {"library"}
    assert made.over
    assert made.winner is None
    assert not light(cache)


def test_operands_that_a_kernel_does_not_take_are_told() -> None:
    made = contest(FakeClock({"library": 2e-3, "kernel": 1e-3}))

    def refuses(kernel: Kernel) -> Any:
        raise OperandError("a lies at an odd address")

    assert [made.call(refuses, lambda: "library", A) for _ in range(2)] == ["library"] * 2
    with pytest.raises(OperandError, match="odd address"):
        made.call(refuses, lambda: "library", A)


def test_turns_within_turns_are_the_librarys() -> None:
    made = contest(FakeClock({"library": 2e-3, "kernel": 1e-3}))

    def theirs() -> Any:  # an operator of the library that comes by here again
        return made.call(lambda kernel: pytest.fail("a kernel"), lambda: "library", A)

    made.call(lambda kernel: "kernel", lambda: "library", A)
    assert [made.call(lambda kernel: "kernel", theirs, A) for _ in range(2)] == [
        "library",
        "kernel",
    ]


def test_any_thread_may_call() -> None:
    made, got = contest(FakeClock({"kernel": 1e-3, "library": 2e-3})), []

    def work() -> None:
        for _ in range(50):
            got.append(made.call(lambda kernel: "kernel", lambda: "library", A))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made.over
    assert made.winner is not None
    assert len(got) == 400


def outcome(monkeypatch: pytest.MonkeyPatch, kernel_s: float) -> None:
    """Have `matmul` find out that the kernel takes so long, and NumPy one millisecond."""

    class Clock(FakeClock):
        def time(self, call: Callable[[], Any], like: Any, *, twice: bool) -> tuple[Any, Reading]:
            before = len(by_numpy)
            result = call()
            seconds = 1e-3 if len(by_numpy) > before else kernel_s
            return result, lambda: (seconds,)

    monkeypatch.setattr(type(make_target("cpu")), "clock", lambda self: Clock({}))
    by_numpy.clear()
    usual = NumpyArrays._product

    def counted(self: NumpyArrays, a: Any, b: Any, out: Any) -> Any:
        by_numpy.append(1)
        return usual(self, a, b, out)

    monkeypatch.setattr(NumpyArrays, "_product", counted)


by_numpy: list[int] = []


def is_numpys() -> bool:
    """Whether `matmul` leaves the product to NumPy, without asking any more."""
    product = multiplying._OF_ARRAYS[A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype]
    return product is multiplying.BY_NUMPY


@pytest.mark.parametrize("kernel_s", [0.5e-3, 1.5e-3])
def test_matmul_settles_and_remembers(
    kernel_s: float, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        outcome(patch, kernel_s)
        for _ in range(40):
            assert (matmul(A, B) == 6).all()
        assert is_numpys() is (kernel_s > 1e-3)
        (kept,) = light(cache)
        # Another process: what was found out is known at the first call.
        forget()
        matmul(A, B)
        assert is_numpys() is (kernel_s > 1e-3)
    kernel = load(PROBLEM, "cpu", match="nearest")
    assert kernel.match is MatchQuality.MEASURED
    assert kernel.record == kept
    served = load(PROBLEM, "cpu", match="nearest", fallback="library")
    assert served.library == ("NumPy" if kernel_s > 1e-3 else "")


@pytest.mark.cold
def test_the_library_computes_while_a_compiler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "1")
    monkeypatch.setattr(NumpyArrays, "_product", lambda *given: pytest.fail("the long way"))
    submitted: list[Callable[[str], None]] = []

    def submit(job: Job, told: Callable[[str], None]) -> bool:
        submitted.append(told)
        return True

    monkeypatch.setattr(background(), "submit", submit)
    job = Job("compiled", "a kernel", lambda workers: None)
    monkeypatch.setattr(Contender, "job", property(lambda self: job))
    made = choosing._CONTESTS[PROBLEM, "cpu", LIBRARY][0]
    assert made is not None
    made.call(lambda kernel: "kernel", lambda: "library", A)
    assert not is_numpys()
    for _ in range(20):
        assert made.call(lambda kernel: "kernel", lambda: "library", A) == "library"
        assert is_numpys()
        matmul(A, B)
    for told in submitted:
        told("")
    assert not is_numpys()
    assert "kernel" in play(made)


def test_without_turns_the_library_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contests.VARIABLE, "0")
    for _ in range(30):
        matmul(A, B)
        assert is_numpys()


def test_what_was_measured_beside_another_library_is_measured_again(cache: Path) -> None:
    tune_textbook(cache.parent / "families", cache, [PROBLEM.shape], library="OpenBLAS 0.3")
    forget()
    first = choosing._contenders(PROBLEM, "cpu")[0][0]
    assert choosing._knowledge(first, PROBLEM, "cpu", LIBRARY)[0] is None
    assert choosing._knowledge(first, PROBLEM, "cpu", "OpenBLAS 0.3.31")[0] is True
    assert choosing._knowledge(first, PROBLEM, "cpu", choosing.ANY)[0] is True


def test_stacks_on_a_gpu_are_the_librarys() -> None:
    torch: Any = pytest.importorskip("torch")
    from autotune.arrays.libraries import plain_library

    tensors = plain_library(torch.Tensor)
    assert tensors is not None
    meta = torch.ones(3, 4, 4, device="meta")

    class OnGpu:
        is_cuda = True
        dim = staticmethod(meta.dim)

    assert tensors.multiplies_stacks(OnGpu(), OnGpu())
    assert not tensors.multiplies_stacks(torch.ones(3, 4, 4), torch.ones(3, 4, 4))
