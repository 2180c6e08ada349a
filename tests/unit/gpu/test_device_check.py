"""The check of what lies on a device, on a stand-in whose memory is the host's."""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from operation_examples import SUM

from autotune.core.dtypes import DTYPES, WORDS
from autotune.gpu.measure import checks as device_check
from autotune.gpu.measure import memory
from autotune.gpu.measure.bench import ProblemBench
from autotune.gpu.measure.checks import DeviceCheck, MirrorCheck
from autotune.gpu.measure.memory import OperandSets, Placement, SetMemory
from autotune.measuring.timing import Stop
from autotune.operations.cases import Case
from autotune.operations.poke import Poke
from autotune.operations.problem import Gemm
from autotune.operations.verification import Verdict

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from autotune.gpu.measure.support import Allowed

CASE = Case(9, 8, 7)


class Allocation:
    """Memory that is freed with it."""

    def __init__(self, size: int) -> None:
        self._buffer = ctypes.create_string_buffer(size)

    def __int__(self) -> int:
        return ctypes.addressof(self._buffer)


class HostDriver:
    """What of a driver moves memory."""

    allocate = Allocation

    @staticmethod
    def upload(target: int, values: NDArray[Any]) -> None:
        ctypes.memmove(target, values.ctypes.data, values.nbytes)

    @staticmethod
    def download(values: NDArray[Any], source: int) -> None:
        ctypes.memmove(values.ctypes.data, source, values.nbytes)

    @staticmethod
    def duplicate(target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)


class HostSupport:
    """The helpers of a device, in NumPy, for results of one type."""

    def __init__(self, dtype: str = "float32") -> None:
        self.result = DTYPES[dtype].numpy

    def fill(self, address: int, count: int, itemsize: int) -> None:
        array(address, count, f"u{itemsize}")[:] = WORDS[itemsize].poison

    def inspect(self, base: int, place: Placement) -> list[int]:
        size, word = place.itemsize, f"u{place.itemsize}"
        poison = WORDS[size].poison
        words = matrix(base, place, word)
        guards = (
            array(base + place.offset - size * place.guard, place.guard, word),
            array(base + place.offset + size * place.elements, place.guard, word),
        )
        written = [int((guard != poison).sum()) for guard in guards]
        return [*written, 0, int((words == poison).sum()), zlib.crc32(words.tobytes())]

    def hash(self, address: int, size: int, word: int = 8) -> int:
        return zlib.crc32(ctypes.string_at(address, size))

    def largest_error(
        self, base: int, place: Placement, expected: int, scale: int | None, allowed: Allowed
    ) -> float:
        count = place.rows * place.columns
        c = matrix(base, place, self.result).ravel().astype(np.float64)
        factor, rounding, absolute = allowed
        values = array(expected, count, "float64")
        scales = array(scale, count, "float64") if scale else 1.0
        limits = factor * scales + rounding * np.abs(values) + absolute
        return float((np.abs(c - values) / limits).max())

    def take(self, base: int, place: Placement, rows: Any, columns: Any) -> NDArray[Any]:
        return matrix(base, place, self.result)[rows]


def array(address: int, count: int, dtype: DTypeLike) -> NDArray[Any]:
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8).view(dtype)


def matrix(base: int, place: Placement, dtype: DTypeLike) -> NDArray[Any]:
    flat = array(base + place.offset, place.elements, dtype)
    return flat.reshape(place.rows, place.stride)[:, : place.columns]


def multiply(check: DeviceCheck, base: int) -> None:
    places = check.slab.layout.placements.values()
    a, b, c = (matrix(base, place, "float32") for place in places)
    np.matmul(a, b, out=c)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> DeviceCheck:
    for module in (device_check, memory):
        monkeypatch.setattr(module, "driver", HostDriver)
    monkeypatch.setattr(device_check, "upload", upload)
    rng = np.random.default_rng(0)
    return DeviceCheck(CASE, Gemm(1, 1, 1), rng, HostSupport(), others=("normal",))


def upload(values: NDArray[Any]) -> Allocation:
    allocation = Allocation(values.nbytes)
    HostDriver.upload(int(allocation), np.ascontiguousarray(values))
    return allocation


def test_contents_take_turns_in_every_set(check: DeviceCheck) -> None:
    sets = OperandSets(check.slab, 3)
    check.bases = sets.bases
    seen = []
    for _ in range(3):
        check.prepare()
        for base in sets.bases:
            multiply(check, base)
            assert check.judge_result(base, "ieee").right
        assert check.judge("ieee").right
        seen.append(
            [
                matrix(base, check.slab.layout.placements["A"], "float32").copy()
                for base in sets.bases
            ]
        )
        check.turn()
    assert check.contents == 2
    for first, second, third in zip(*seen, strict=True):
        assert not (first == second).any()
        assert (first == third).all()
        assert (first == seen[0][0]).all()
    check.redraw(np.random.default_rng(1))
    check.prepare()
    multiply(check, check.slab.base)
    assert check.judge("ieee").right
    assert not (
        matrix(sets.bases[2], check.slab.layout.placements["A"], "float32") == seen[0][0]
    ).any()


def test_a_result_of_the_contents_before_is_wrong(check: DeviceCheck) -> None:
    check.prepare()
    multiply(check, check.slab.base)
    assert check.judge("ieee").right
    check.turn()
    assert "error is" in check.judge("ieee").reason
    check.prepare()
    assert "unwritten" in check.judge("ieee").reason


def test_a_modified_input_and_a_written_guard_are_damage(check: DeviceCheck) -> None:
    check.prepare()
    multiply(check, check.slab.base)
    place = check.slab.layout.placements["B"]
    matrix(check.slab.base, place, "float32")[0, 0] += 1
    verdict = check.judge("ieee")
    assert verdict.damaged
    assert "modified B" in verdict.reason
    check.turn()
    check.prepare()
    multiply(check, check.slab.base)
    assert check.judge("ieee").right
    array(check.slab.base + place.offset - 4, 1, "uint32")[0] = 1
    assert "wrote outside B" in check.judge("ieee").reason


def test_what_was_right_is_not_brought_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are outputs brought there again, to be what they are before a launch."""
    downloads: list[int] = []
    uploads: list[int] = []

    class CountingDriver(HostDriver):
        @staticmethod
        def upload(target: int, values: NDArray[Any]) -> None:
            uploads.append(target)
            HostDriver.upload(target, values)

        @staticmethod
        def download(values: NDArray[Any], source: int) -> None:
            downloads.append(source)
            HostDriver.download(values, source)

    for module in (device_check, memory):
        monkeypatch.setattr(module, "driver", CountingDriver)
    rng = np.random.default_rng(0)
    case = Case(9, 8, 7, padding=2)
    check = MirrorCheck(case, Gemm(1, 1, 1), rng, HostSupport(), others=("normal",))
    places = check.slab.layout.placements
    c = matrix(check.slab.base, places["C"], "float32")

    def verdict() -> Verdict:
        check.prepare()
        multiply(check, check.slab.base)
        return check.judge("ieee")

    for content in range(2):
        before, there = len(downloads), len(uploads)
        assert verdict().right
        assert len(downloads) == before + 1
        assert verdict().right
        assert len(uploads) == there
        assert check.judge_result(check.slab.base, "ieee").right
        assert len(downloads) == before + 1
        c[2, 3] += 1e-2
        assert "C[2, 3] is" in check.judge("ieee").reason
        if content == 0:
            check.turn()
    # Outputs that are as they were excuse nothing else.
    assert verdict().right
    array(check.slab.base + places["C"].offset - 4, 1, "uint32")[0] = 1
    assert "wrote outside C" in check.judge("ieee").reason
    assert verdict().right
    matrix(check.slab.base, places["B"], "float32")[0, 0] += 1
    assert "modified B" in check.judge("ieee").reason


def test_a_launch_finds_its_operands(check: DeviceCheck) -> None:
    assert check.arguments == (*check.slab.layout.operands(check.slab.base), 1.0, 0.0)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("out_dtype", [None, "float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_operands_and_results_of_either_size(
    dtype: str, out_dtype: str | None, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (device_check, memory):
        monkeypatch.setattr(module, "driver", HostDriver)
    monkeypatch.setattr(device_check, "upload", upload)
    short, result = DTYPES[dtype].numpy, DTYPES[out_dtype or dtype].numpy
    support = HostSupport(out_dtype or dtype)
    case = Case(9, 2000, 7, scalars={"beta": 0.5}, padding=padding)
    problem = Gemm(1, 1, 1, dtype, out_dtype)
    check = DeviceCheck(case, problem, np.random.default_rng(0), support)
    at_a, at_b, at_c = check.slab.layout.placements.values()
    assert (at_a.itemsize, at_c.itemsize) == (2, result.itemsize)
    assert at_c.offset % result.itemsize == 0
    a, b = (matrix(check.slab.base, each, short).astype(np.float32) for each in (at_a, at_b))
    c = matrix(check.slab.base, at_c, result)

    check.prepare()
    c[...] = (a @ b + np.float32(0.5) * c.astype(np.float32)).astype(result)
    assert check.judge("ieee").right
    check.prepare()
    before = c.astype(np.float32)
    sums = np.zeros_like(before)
    for column, row in zip(a.T, b, strict=True):
        sums = (sums + np.outer(column, row)).astype(short).astype(np.float32)
    c[...] = (sums + np.float32(0.5) * before).astype(result)
    assert "times what ieee allows" in check.judge("ieee").reason
    check.prepare()
    array(check.slab.base + at_c.offset - result.itemsize, 1, f"u{result.itemsize}")[0] = 1
    assert "wrote outside C" in check.judge("ieee").reason


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_elements_of_any_set_are_poked(
    dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (device_check, memory):
        monkeypatch.setattr(module, "driver", HostDriver)
    monkeypatch.setattr(device_check, "upload", upload)
    rng = np.random.default_rng(0)
    check = DeviceCheck(CASE, Gemm(1, 1, 1, dtype, layout=layout), rng, HostSupport(dtype))
    all_sets = OperandSets(check.slab, 3)  # which frees them with itself
    base = all_sets.bases[2]
    placed = check.slab.layout.placements.values()
    a, b, c = (matrix(base, place, DTYPES[dtype].numpy) for place in placed)
    before = a.tobytes(), b.tobytes()
    left, right = (a, b) if layout == "nn" else (a.T, b.T)

    def call() -> None:
        c[...] = (left.astype(np.float32) @ right.astype(np.float32)).astype(c.dtype)

    elements = SetMemory(check.problem.operands, check.slab.layout, base)
    poke = Poke(CASE, check.problem, elements, call, rng)
    for _ in range(20):
        poke.begin(1e-6)
        assert np.isnan(c.astype(np.float32)).sum() == 1
        call()
        poke.end()
    assert poke.flaw == ""
    assert (a.tobytes(), b.tobytes()) == before
    poke.begin(1e-6)
    poke.end()
    assert "unwritten in a timed call" in poke.flaw


class HostStopwatch:
    """Launches at once; each takes what it is said to."""

    stream = None
    busy_at = 0.0

    def __init__(self, launch_s: float = 3e-4) -> None:
        self._launch_s = launch_s

    def once(self, enqueue: Callable[[], None]) -> float:
        enqueue()
        return self._launch_s

    def samples(self, enqueue: Callable[[], None], launches: int, count: int) -> list[float]:
        for _ in range(count):
            enqueue()
        return [self._launch_s] * count


@pytest.mark.parametrize(("launch_s", "launches"), [(0.2, 3), (5.0, 2)])
def test_long_launches_are_not_made_twice_to_be_past_their_code(
    check: DeviceCheck, launch_s: float, launches: int
) -> None:
    """As a library's first turn begins; the last one is timed."""
    made: list[int] = []

    def launch(a: int, *rest: Any, stream: Any) -> None:
        made.append(a)

    bench = ProblemBench(check, launch, HostStopwatch(launch_s), dict)
    bench.stopwatch.busy_at = float("inf")  # it has not idled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.gpu.measure.bench.STEADY_S", 0.0)
        assert bench.settle() == launch_s
    assert len(made) == launches


@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("cheat", [False, True])
def test_launches_that_are_timed_write_what_is_spoilt(
    check: DeviceCheck, sets: int, cheat: bool
) -> None:
    all_sets = OperandSets(check.slab, sets)
    check.bases = all_sets.bases
    seen: dict[int, bytes] = {}

    def launch(a: int, lda: int, b: int, ldb: int, c: int, *rest: Any, stream: Any) -> None:
        base = a - check.slab.layout.placements["A"].offset
        now = bytes(matrix(base, check.slab.layout.placements["A"], "float32")[0])
        if not cheat or seen.get(base) != now:
            multiply(check, base)
        seen[base] = now

    bench = ProblemBench(check, launch, HostStopwatch(), dict)
    for _ in range(3):
        bench.once()
        assert bench.judge("ieee").right
        bench.series(3e-4, Stop(0.05, 0.02, 1.0))
        verdict = bench.judge_last("ieee")
        assert verdict.right is not cheat
        if cheat:
            assert re.search(r"C\[.*\] (stays|unwritten in a timed call)", verdict.reason)
            return
        check.turn()
        bench.settle()


@pytest.mark.parametrize("cheat", [False, True])
def test_outputs_of_other_operations_follow_changes_in_every_set(
    cheat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheat computes what was spoilt or prepared, and nothing else again."""
    for module in (device_check, memory):
        monkeypatch.setattr(module, "driver", HostDriver)
    problem, rng = SUM.at((9, 8)), np.random.default_rng(0)
    check = MirrorCheck(Case(9, 8), problem, rng, HostSupport(), others=("normal",))
    all_sets = OperandSets(check.slab, 3)  # which frees them with itself
    check.bases = all_sets.bases

    def launch(x: int, *rest: Any, stream: Any) -> None:
        base = x - check.slab.layout.placements["x"].offset
        placed = check.slab.layout.placements.values()
        left, right, out = (matrix(base, place, "float32") for place in placed)
        np.add(left, right, out=out, where=np.isnan(out) | (not cheat))

    bench = ProblemBench(check, launch, HostStopwatch(), dict)
    for _ in range(2):
        bench.once()
        assert bench.judge("ieee").right
        bench.settle()
        bench.series(3e-4, Stop(0.05, 0.02, 1.0))
        verdict = bench.judge_last("ieee")
        assert verdict.right is not cheat
        if cheat:
            told = r"y\[.*\] stays .*, expected .*, once [xz]\[.*\] has changed"
            assert re.search(told, verdict.reason)
            return
        bench.turn()
