"""Lookups: the best record, how well it fits, and why not better."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import DEVICE, FINGERPRINT, TOOLCHAIN, record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import Device, DeviceFingerprint
from autotune.families.gpu.launch import LaunchPlan, LaunchStep
from autotune.operations.problem import Gemm
from autotune.store import (
    BinaryRecord,
    Match,
    MatchQuality,
    TuningRecord,
    find,
    neighbours,
    superseded,
)
from autotune.store.matching import size_distance, toolchain_changes

PROBLEM = Gemm(64, 64, 64)
DIGESTS = {"blocked": "f" * 16}


def lookup(
    *records: TuningRecord,
    problem: Gemm = PROBLEM,
    device: Device = DEVICE,
    unusable: dict[str, str] | None = None,
) -> Match:
    refusals = unusable or {}
    return find(records, problem, "cpu", device, DIGESTS, lambda r: refusals.get(r.id))


def elsewhere(**fields: str | int) -> DeviceFingerprint:
    return DeviceFingerprint("cpu", "Other CPU", {**FINGERPRINT.fields, **fields})


def test_exact() -> None:
    match = lookup(record(32), record())
    assert match == Match(record(), MatchQuality.EXACT, "")


def test_nothing() -> None:
    match = lookup()
    assert match.record is None
    assert match.quality is MatchQuality.DEFAULT
    assert match.reason == "no record fits 64x64x64-float32 on Example CPU 9000"


@pytest.mark.parametrize(
    "other",
    [
        record(target="cuda"),
        record(operation="conv"),
        record(problem=Gemm(64, 64, 64, dtype="float64")),
        record(problem=Gemm(64, 64, 64, layout="nt")),
        record(problem=Gemm(64, 64, 64, accuracy="strassen")),
        record(problem=Gemm(64, 64, 64, threads=1)),
        record(problem=Gemm(64, 64, 64, out_dtype="float64")),
        record(fingerprint=replace(FINGERPRINT, kind="cuda")),
    ],
    ids=lambda other: other.id,
)
def test_other_kinds_of_problem_never_match(other: TuningRecord) -> None:
    assert lookup(other).quality is MatchQuality.DEFAULT


def test_stale_names_the_fields_and_both_values() -> None:
    old = record(toolchain=TOOLCHAIN | {"numba": "0.67.2"}, family_digest="e" * 16)
    match = lookup(old)
    assert (match.record, match.quality) == (old, MatchQuality.STALE)
    assert match.reason == "family blocked eeeeeeeeeeee → ffffffffffff; numba 0.67 → 0.68"


def test_older_exact_record_comes_before_newer_stale_one() -> None:
    stale = record(toolchain={}, created="2026-03-01T00:00:00Z")
    assert lookup(stale, record()).record == record()


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        ({"python": "3.11.9"}, []),
        ({"blas": "MKL"}, []),
        ({"blas_architecture": "SkylakeX"}, []),
        ({"numba": "0.68.9"}, []),
        ({"numpy": "3.0.0", "driver": "600.1", "autotune": "9.9"}, []),
        ({"python": "3.12.2"}, ["python 3.11 → 3.12"]),
        ({"numba": "0.69.0"}, ["numba 0.68 → 0.69"]),
        ({"llvm": "21"}, ["llvm 20.1 → 21"]),
        ({"nvrtc": "13.1"}, ["nvrtc none → 13.1"]),
    ],
)
def test_toolchain_fields_that_matter(now: dict[str, str], changes: list[str]) -> None:
    assert toolchain_changes(TOOLCHAIN, TOOLCHAIN | now) == changes


def test_nearest_takes_the_smallest_sum_of_log_ratios() -> None:
    flat, cube = record(1, 64 * 64, 64), record(128, 128, 128)
    match = lookup(flat, cube)
    assert (match.record, match.quality) == (cube, MatchQuality.NEAREST)
    assert match.reason == "tuned for 128x128x128"


def test_same_product_is_not_the_same_size() -> None:
    assert size_distance({"m": 1024, "n": 1, "k": 1}, {"m": 32, "n": 32, "k": 1}) == 10
    assert size_distance({"m": 1, "n": 1}, {"m": 1, "n": 1, "k": 1}) == math.inf


def cubin_record(**changes: Any) -> TuningRecord:
    """A record of a GPU's kernel whose binary is kept, as the shipped ones are."""
    step = LaunchStep("gemm", (1, 1, 1), (32, 1, 1), 0)
    fields: dict[str, Any] = {
        "target": "cuda",
        "toolchain": CUDA_TOOLCHAIN,
        "binary": BinaryRecord("a" * 64, "sm_90", LaunchPlan((64, 64, 64), (step,), None)),
    }
    return record(**(fields | changes))


CUDA_TOOLCHAIN = {
    "python": "3.12.3",
    "driver": "580.159.04",
    "cuda": "13.0",
    "nvrtc": "13.0",
    "pycuda": "2026.1",
    "cuda_bindings": "13.3.1",
    "numba_cuda": "0.30.4",
    "nvjitlink": "13.0",
}


@pytest.mark.parametrize(
    "now",
    [
        {"driver": "580.105.08"},
        {"python": "3.14.1"},
        {"pycuda": "none", "cuda_bindings": "13.0.3"},
        {"nvrtc": "none", "numba_cuda": "none", "nvjitlink": "none"},
        {"nvrtc": "13.4"},
        {"cuda": "14.1"},
    ],
)
@pytest.mark.cold
def test_a_binary_that_is_kept_is_exact_whatever_would_compile_it_now(
    now: dict[str, str],
) -> None:
    device = replace(DEVICE, toolchain=CUDA_TOOLCHAIN | now)
    match = find([cubin_record()], PROBLEM, "cuda", device, DIGESTS, lambda r: None)
    assert (match.quality, match.reason) == (MatchQuality.EXACT, "")


@pytest.mark.cold
def test_a_binary_that_is_gone_is_compiled_anew_by_what_is_here() -> None:
    device = replace(DEVICE, toolchain=CUDA_TOOLCHAIN | {"nvrtc": "13.4"})
    match = find(
        [cubin_record()], PROBLEM, "cuda", device, DIGESTS, lambda r: None, lambda r: False
    )
    assert (match.quality, match.reason) == (MatchQuality.STALE, "nvrtc 13.0 → 13.4")


def test_a_binary_of_a_newer_cuda_than_the_driver_knows_is_stale() -> None:
    device = replace(DEVICE, toolchain=CUDA_TOOLCHAIN | {"cuda": "12.8"})
    match = find([cubin_record()], PROBLEM, "cuda", device, DIGESTS, lambda r: None)
    assert match.quality is MatchQuality.STALE
    assert match.reason == "compiled for CUDA 13.0, and the driver has 12.8"


def faster(times: float, **changes: Any) -> TuningRecord:
    """A record of the same problem at a multiple of the usual speed."""
    usual = record()
    low, high = usual.interval_s
    speed = {
        "median_s": usual.median_s / times,
        "interval_s": (low / times, high / times),
        "gflops": usual.gflops * times,
    }
    return record(**(speed | changes))


def test_the_fastest_serves_and_not_the_newest() -> None:
    best = faster(2, created="2026-01-01T00:00:00Z")
    later = faster(1.5, created="2026-03-01T00:00:00Z")
    for records in permutations([best, record(), later]):
        assert lookup(*records).record == best


def test_what_was_measured_undisturbed_comes_before_what_was_not() -> None:
    noisy = faster(2, noise="others used 1.8 of 2 processors meanwhile")
    scattered = faster(2, interval_s=(0.1e-3, 9e-3))
    assert lookup(noisy, scattered, record()).record == record()


def test_turns_decide_between_records_of_two_runs() -> None:
    """Times of two runs were taken under two conditions; those of one run were not."""
    quiet = faster(2)
    busy_but_better = faster(1.5, beat=(quiet.id,), created="2026-03-01T00:00:00Z")
    assert lookup(quiet, busy_but_better).record == busy_but_better
    loser = faster(3, lost_to=(quiet.id,), created="2026-03-01T00:00:00Z")
    assert lookup(quiet, loser).record == quiet
    assert lookup(loser).record == loser  # whoever beat it is gone


def test_between_the_latest_turns_and_earlier_ones_the_latest_decide() -> None:
    first = record()
    second = faster(1.1, beat=(first.id,), created="2026-02-01T00:00:00Z")
    third = faster(0.9, beat=(second.id,), created="2026-03-01T00:00:00Z")
    again = replace(first, beat=(third.id,), created="2026-04-01T00:00:00Z")
    assert lookup(first, second, third).record == third
    assert lookup(second, third, again).record == again


@given(
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=6),
    noise=st.lists(st.booleans(), min_size=6, max_size=6),
    old_tools=st.lists(st.booleans(), min_size=6, max_size=6),
    old_family=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_pruning_never_changes_what_serves(
    speeds: list[float], noise: list[bool], old_tools: list[bool], old_family: list[bool]
) -> None:
    records = [
        faster(
            speed,
            noise="a busy machine" if noise[position] else "",
            toolchain=TOOLCHAIN | ({"llvm": "19.0"} if old_tools[position] else {}),
            family_digest=("e" if old_family[position] else "f") * 16,
            created=f"2026-01-{position + 1:02}T00:00:00Z",
        )
        for position, speed in enumerate(speeds)
    ]
    current = {
        each.id
        for each in records
        if each.family_digest == "f" * 16 and each.toolchain == TOOLCHAIN
    }
    gone = {each.id for each in superseded(records, lambda each: each.id in current)}
    left = [each for each in records if each.id not in gone]
    newest_first = sorted(records, key=lambda each: each.created, reverse=True)
    served = lookup(*newest_first)
    assert served.record in left
    assert lookup(*(each for each in newest_first if each in left)) == served


def test_between_equals_the_first_given_wins() -> None:
    users = record(128, created="2026-01-01T00:00:00Z")
    shipped = record(32, created="2026-02-01T00:00:00Z")
    assert lookup(users, shipped).record == users
    assert lookup(shipped, users).record == shipped


def test_similar_device_prefers_common_fields_to_sizes() -> None:
    far = record(2048, fingerprint=elsewhere(l2_bytes=1))
    near = record(fingerprint=elsewhere(llvm_cpu="haswell", l2_bytes=1))
    match = lookup(near, far)
    assert (match.record, match.quality) == (far, MatchQuality.SIMILAR_DEVICE)
    assert match.reason == "tuned on Other CPU; tuned for 2048x64x64"
    same_name = record(fingerprint=replace(FINGERPRINT, fields={"vendor": "Example"}))
    assert "tuned on another Example CPU 9000" in lookup(same_name).reason


def test_any_size_on_this_device_comes_before_another_device() -> None:
    here, there = record(10**6, 10**6, 10**6), record(fingerprint=elsewhere())
    assert lookup(there, here).record == here


def test_unusable_records_are_skipped_and_the_reason_is_kept() -> None:
    best, second = record(), record(128)
    match = lookup(best, second, unusable={best.id: "needs 16 threads, 2 available"})
    assert match.record == second
    assert match.reason == (
        f"tuned for 128x64x64; record {best.id} cannot be used: needs 16 threads, 2 available"
    )


def test_record_of_a_family_that_is_gone_is_skipped_unasked() -> None:
    gone = record(candidate=Candidate("gone", Configuration({})))

    def usable(offered: TuningRecord) -> str | None:
        raise AssertionError("asked about a family that is not there")

    match = find([gone], PROBLEM, "cpu", DEVICE, DIGESTS, usable)
    assert match.quality is MatchQuality.DEFAULT
    assert match.reason.endswith("there is no family 'gone'")


def test_many_refusals_make_a_short_reason() -> None:
    records = [record(64 + step) for step in range(100)]
    match = lookup(*records, unusable={r.id: "no" for r in records})
    assert match.record is None
    assert match.reason.endswith("and 97 more")
    assert match.reason.count("cannot be used") == 3


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, "and 1 more")])
def test_no_more_refusals_are_counted_than_there_are(count: int, more: str) -> None:
    records = [record(64 + step) for step in range(count)]
    reason = lookup(*records, unusable={r.id: "no" for r in records}).reason
    assert reason.count("cannot be used") == min(count, 3)
    assert ("more" in reason, reason.endswith(more)) == (bool(more), True)


def test_usable_is_asked_from_the_best_on_and_no_further() -> None:
    asked: list[str] = []

    def usable(offered: TuningRecord) -> str | None:
        asked.append(offered.id)
        return None

    near, far = record(128), record(512)
    find([far, near], PROBLEM, "cpu", DEVICE, DIGESTS, usable)
    assert asked == [near.id]


SIZES = st.integers(1, 4096)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=8), SIZES, SIZES, SIZES)
def test_nearest_agrees_with_brute_force(
    shapes: list[tuple[int, int, int]], m: int, n: int, k: int
) -> None:
    wanted = (m, n, k)
    found = lookup(*(record(*shape) for shape in shapes), problem=Gemm(*wanted)).record
    assert found is not None

    def ratio(shape: tuple[int, ...]) -> float:
        return math.prod(max(a, b) / min(a, b) for a, b in zip(shape, wanted, strict=True))

    best = min(map(ratio, shapes))
    got = ratio(tuple(found.problem[name] for name in ("m", "n", "k")))
    assert got == pytest.approx(best, rel=1e-9)


def test_neighbours_rank_devices_then_sizes_and_give_each_candidate_once() -> None:
    def tuned(sm: int, m: int, fingerprint: DeviceFingerprint = FINGERPRINT) -> TuningRecord:
        return record(
            m, candidate=Candidate("blocked", Configuration({"sm": sm})), fingerprint=fingerprint
        )

    near, far, again = tuned(1, 128), tuned(2, 4096), tuned(1, 8192)
    there = tuned(3, 64, elsewhere())
    other = record(problem=Gemm(64, 64, 64, dtype="float64"))
    assert neighbours([there, again, far, near, other], PROBLEM, FINGERPRINT) == [near, far, there]
    many = [tuned(sm, 64 + sm) for sm in range(50)]
    assert neighbours(many, PROBLEM, FINGERPRINT) == many[:8]
