"""Lookups: the best record, how well it fits, and why not better."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import DEVICE, FINGERPRINT, TOOLCHAIN, record

from autotune.configuration import Candidate, Configuration
from autotune.device import Device, DeviceFingerprint
from autotune.problem import Gemm
from autotune.store import Match, MatchQuality, TuningRecord, find, neighbours
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
    old = record(toolchain=TOOLCHAIN | {"numba": "0.68.0"}, family_digest="e" * 16)
    match = lookup(old)
    assert (match.record, match.quality) == (old, MatchQuality.STALE)
    assert match.reason == "family blocked eeeeeeeeeeee → ffffffffffff; numba 0.68.0 → 0.68.1"


def test_older_exact_record_comes_before_newer_stale_one() -> None:
    stale = record(toolchain={}, created="2026-03-01T00:00:00Z")
    assert lookup(stale, record()).record == record()


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        ({"python": "3.11.9"}, []),
        ({"blas": "MKL"}, []),
        ({"blas_architecture": "SkylakeX"}, []),
        ({"python": "3.12.2"}, ["python 3.11 → 3.12"]),
        ({"llvm": "21"}, ["llvm 20.1 → 21"]),
        ({"tbb": "2022"}, ["tbb none → 2022"]),
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
