"""Records as documents and files: the same after a trip, and nothing strange is taken."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import FINGERPRINT, record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import CacheError, InputError
from autotune.core.measurement import Sustained
from autotune.operations.problem import Gemm
from autotune.store import (
    BaselineRecord,
    EffortRecord,
    SustainedRecord,
    TuningRecord,
    export_lines,
    export_records,
    import_records,
    interchange,
    shipped_records,
    strict_json,
    superseded,
)

HEADER = '{"format": "autotune-records", "version": 1}'
LINE = json.dumps(record().to_json())


def refused(file: Path, content: bytes) -> str:
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        import_records(file)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    return message


def test_export_comes_back(tmp_path: Path) -> None:
    records = [record(), record(128), record(256, baseline=None)]
    file = tmp_path / "records.jsonl"
    export_records(records, file)
    assert import_records(file) == records
    lines = file.read_text().splitlines()
    assert lines == list(export_lines(records))
    assert json.loads(lines[0]) == {"format": "autotune-records", "version": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_no_records_is_a_valid_export(tmp_path: Path) -> None:
    export_records([], tmp_path / "none.jsonl")
    assert import_records(tmp_path / "none.jsonl") == []


def test_export_replaces_a_file_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    export_records([record()], file)

    def failing() -> Any:
        yield record(128)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_records(failing(), file)
    assert import_records(file) == [record()]


@pytest.mark.parametrize("place", ["missing/folder/x.jsonl", "file/x.jsonl", ".", "/dev/full"])
def test_export_to_an_impossible_place(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheError, match=r"^cannot write "):
        export_records([record()], tmp_path / place)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("place", ["missing.jsonl", ".", "file/x.jsonl"])
def test_import_from_an_impossible_place(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"^cannot read "):
        import_records(tmp_path / place)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "a key 'format' is missing|key 'format' is missing"),
        ("[]", "a record must be an object"),
        ("nonsense", "not valid JSON"),
        (LINE[:-9], "not valid JSON"),
        (LINE.replace("100.5", "NaN"), "must be finite, got NaN"),
        (LINE.replace("100.5", "-Infinity"), "must be finite"),
        (LINE.replace("100.5", "1e400"), "must be finite"),
        (LINE.replace("100.5", "9" * 5000), "64 bits"),
        (LINE.replace("100.5", "100.25"), "id must be that of the content"),
        (LINE.replace('"format": 1', '"format": 2'), "newer autotune"),
        (LINE.replace("performance", "\\u0000"), "state.governor"),
        (LINE.replace("performance", "\\ud800"), "state.governor"),
        (LINE.replace("performance", "\\u001b[2J"), "state.governor"),
        (LINE.replace('"performance"', "[" * 100_000), "nested too deep"),
        (LINE.replace("performance", "x" * (1 << 20)), "a line may have 1048576 bytes"),
        (LINE.replace("performance", "\x00"), "not valid JSON"),
    ],
)
def test_bad_line_is_named_and_nothing_is_taken(tmp_path: Path, line: str, message: str) -> None:
    content = "\n".join([HEADER, LINE, "", line, LINE, ""]).encode()
    text = refused(tmp_path / "records.jsonl", content)
    assert any(part in text for part in message.split("|"))
    assert "records.jsonl:4: " in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n", "expected the header"),
        (LINE.encode(), "expected the header"),
        (b"[1]\n", "expected the header"),
        (b'{"format": "autotune-records"}\n', "expected the header"),
        (b'{"format": "autotune-records", "version": true}\n', "expected the header"),
        (b'{"format": "autotune-records", "version": 2}\n', "newer autotune (version 2"),
        (HEADER.encode("utf-16"), "not UTF-8"),
        (HEADER.encode() + b"\n\xff\xfe\n", ":2: not UTF-8"),
        (pickle.dumps(print), "not UTF-8"),
        (b"SQLite format 3\x00", "expected the header"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(tmp_path / "records.jsonl", content)


def test_endless_input_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        import_records(Path("/dev/zero"))
    assert "a line may have" in refused(tmp_path / "line.jsonl", b" " * (2 << 20))
    with (tmp_path / "sparse.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="a file of records may have"):
        import_records(tmp_path / "sparse.jsonl")
    monkeypatch.setattr(interchange, "LINES_LIMIT", 5)
    blank = f"{HEADER}{10 * chr(10)}".encode()
    assert "may have 5 lines" in refused(tmp_path / "blank.jsonl", blank)
    monkeypatch.setattr(interchange, "LINES_LIMIT", 100)
    monkeypatch.setattr(interchange, "FILE_LIMIT", 10 * len(LINE))
    text = "\n".join([HEADER, *[LINE] * 12])
    assert "a file of records may have" in refused(tmp_path / "records.jsonl", text.encode())


def attempt(file: Path) -> list[TuningRecord] | InputError:
    try:
        return import_records(file)
    except InputError as error:
        return error


VALID = "\n".join([HEADER, LINE, LINE, ""]).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid export with a few stretches of bytes replaced."""
    content = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        content[start : start + draw(st.integers(0, 30))] = draw(st.binary(max_size=12))
    return bytes(content)


@given(damaged() | st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_fuzzed_files_raise_input_errors_only(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    file.write_bytes(content)
    result = attempt(file)
    if isinstance(result, InputError):
        assert "\n" not in str(result)
    else:
        assert [TuningRecord.from_json(taken.to_json()) for taken in result] == result


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(record().to_json())), JSON, min_size=1))
def test_records_with_fuzzed_fields_raise_input_errors_only(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    document = record().to_json() | fields
    file = tmp_path_factory.getbasetemp() / "fields.jsonl"
    file.write_text(f"{HEADER}\n{json.dumps(document)}\n")
    result = attempt(file)
    if isinstance(result, InputError):
        assert "\n" not in str(result)
    else:
        assert result == [record()]


def test_shipped_records_leave_out_bad_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, cuda = record(), record(target="cuda")
    for slug, lines in {
        FINGERPRINT.slug: [HEADER, LINE, "nonsense", json.dumps(cuda.to_json())],
        "cpu-strange": ["no header"],
    }.items():
        (tmp_path / slug).mkdir()
        (tmp_path / slug / "gemm.jsonl").write_text("\n".join(lines))
    with caplog.at_level(logging.WARNING):
        assert list(shipped_records("gemm", folder=tmp_path)) == [good, cuda]
    messages = [entry.getMessage() for entry in caplog.records]
    file = tmp_path / FINGERPRINT.slug / "gemm.jsonl"
    assert any(message.startswith(f"{file}:3: left out: not valid JSON") for message in messages)
    assert any("cpu-strange" in message for message in messages)
    assert list(shipped_records("gemm", "cuda", folder=tmp_path)) == [cuda]
    assert list(shipped_records("conv", folder=tmp_path)) == []


def test_shipped_records_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    for slug in ("a", "b"):
        (tmp_path / slug).mkdir()
        (tmp_path / slug / "gemm.jsonl").write_text(f"{HEADER}\n{LINE}\n")
    records = shipped_records("gemm", folder=tmp_path)
    assert next(records) == record()
    (tmp_path / "b" / "gemm.jsonl").write_text(HEADER)
    assert list(records) == []


def test_the_package_ships_readable_records(caplog: pytest.LogCaptureFixture) -> None:
    list(shipped_records("gemm"))
    assert caplog.records == []


TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # of direction
PRINTABLE = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters=TURNS)
TEXT = st.text(PRINTABLE, min_size=1, max_size=20)
WHOLE = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(st.booleans(), WHOLE, st.floats(allow_nan=False, allow_infinity=False), TEXT)
SECONDS = st.floats(1e-12, 1e6)


@st.composite
def records(draw: st.DrawFn) -> TuningRecord:
    low, high = sorted((draw(SECONDS), draw(SECONDS)))
    zone = timezone(timedelta(minutes=draw(st.integers(-720, 840))))
    size = st.integers(1, 10**6)
    return record(
        problem=Gemm(
            draw(size),
            draw(size),
            draw(size),
            dtype=draw(st.sampled_from(["float32", "float64"])),
            threads=draw(st.none() | st.integers(1, 512)),
        ),
        fingerprint=DeviceFingerprint(
            draw(TEXT), draw(TEXT), draw(st.dictionaries(TEXT, TEXT | WHOLE))
        ),
        candidate=Candidate(draw(TEXT), Configuration(draw(st.dictionaries(TEXT, SCALARS)))),
        median_s=draw(SECONDS),
        interval_s=(low, high),
        gflops=draw(SECONDS),
        ties=draw(st.integers(0, 10**9)),
        baseline=draw(
            st.none() | st.builds(BaselineRecord, name=TEXT, median_s=SECONDS, ratio=SECONDS)
        ),
        effort=EffortRecord(draw(size), draw(SECONDS), draw(TEXT), draw(st.none() | size)),
        toolchain=draw(st.dictionaries(TEXT, TEXT | st.just(""))),
        state=draw(st.dictionaries(TEXT, TEXT)),
        created=draw(
            st.datetimes(datetime(1971, 1, 1), datetime(2999, 1, 1), timezones=st.just(zone))
        ).isoformat(),
    )


@given(records())
def test_record_survives_json(original: TuningRecord) -> None:
    text = json.dumps(original.to_json())
    again = TuningRecord.from_json(strict_json.parse(text))
    assert again == original
    assert again.id == original.id
    assert type(again.median_s) is float


@given(records(), records())
def test_equal_ids_mean_equal_records(one: TuningRecord, other: TuningRecord) -> None:
    assert (one.id == other.id) == (one.to_json() == other.to_json())


def test_id_is_twelve_hex_digits_that_every_field_changes() -> None:
    base = record()
    assert len(base.id) == 12
    int(base.id, 16)
    changed = [
        record(m=65),
        record(target="cuda"),
        record(candidate=Candidate("blocked", Configuration({"sm": 32, "order": "ikj"}))),
        record(median_s=1.26e-3),
        record(baseline=None),
        record(state={}),
        record(created="2026-01-31T12:00:01Z"),
        record(fingerprint=dataclasses.replace(FINGERPRINT, name="another")),
    ]
    assert len({base.id, *(other.id for other in changed)}) == 1 + len(changed)


def test_created_has_one_spelling() -> None:
    spellings = [
        "2026-01-31T12:00:00Z",
        "2026-01-31T13:30:00+01:30",
        "2026-01-31 12:00:00.0+00:00",
    ]
    assert {record(created=text).created for text in spellings} == {"2026-01-31T12:00:00.000000Z"}
    before = datetime.now(UTC)
    document = record().to_json()
    fields = {f.name: getattr(record(), f.name) for f in dataclasses.fields(TuningRecord)}
    del fields["created"]
    now = TuningRecord(**fields)
    assert before <= datetime.fromisoformat(now.created) <= datetime.now(UTC)
    assert now.id != document["id"]


def test_numpy_floats_become_python_floats() -> None:
    assert type(record(median_s=np.float64(0.5)).median_s) is float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"median_s": math.nan}, "median_s must be a finite number > 0, got nan"),
        ({"median_s": math.inf}, "median_s"),
        ({"median_s": 0.0}, "median_s"),
        ({"median_s": True}, "median_s"),
        ({"median_s": "1"}, "median_s"),
        ({"gflops": -1.0}, "gflops must be a finite number > 0"),
        ({"gflops": 10**400}, "gflops"),
        ({"interval_s": (2.0, 1.0)}, "the lower first"),
        ({"interval_s": (1.0,)}, "interval_s must be an array of 2 values"),
        ({"interval_s": None}, "interval_s"),
        ({"ties": -1}, "ties must be a whole number >= 0"),
        ({"ties": 1.0}, "ties"),
        ({"ties": 2**63}, "ties"),
        ({"target": ""}, "target must be one line of printable text"),
        ({"target": "cpu\x1b[2J"}, "target"),
        ({"version": "0.1\n"}, "version"),
        ({"family_digest": None}, "family_digest"),
        ({"toolchain": {"numba": 1}}, "toolchain.numba"),
        ({"state": {"a\x00": "b"}}, "a key of $.state"),
        ({"state": []}, "state must be an object"),
        ({"created": "yesterday"}, "created must be a time with its zone"),
        ({"created": "2026-01-31T12:00:00"}, "created"),
        ({"created": "0001-01-01T00:00:00+14:00"}, "created"),
        ({"created": 5}, "created"),
        ({"candidate": Candidate("", Configuration({}))}, "family"),
        ({"candidate": Candidate("f", Configuration({"x": math.inf}))}, "configuration.x"),
        ({"candidate": Candidate("f", Configuration({"x": 2**63}))}, "configuration.x"),
        ({"candidate": Candidate("f", Configuration({"x": [1]}))}, "configuration.x"),  # type: ignore[dict-item]
        ({"fingerprint": DeviceFingerprint("cpu", "\ud800", {})}, "fingerprint.name"),
    ],
)
def test_bad_field_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        record(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], 2, "record format must be 1, got 2: a newer autotune wrote it"),
        (["format"], True, "record format"),
        (["format"], "1", "record format"),
        (["problem", "m"], 0, "m must be a whole number"),
        (["problem", "m"], [1], "problem.m"),
        (["problem", "dtype"], "int8", "dtype must be one of"),
        (["problem", "colour"], "red", "gemm problem"),
        (["problem"], None, "problem must be an object"),
        (["fingerprint"], "cpu", "fingerprint must be an object"),
        (["fingerprint", "fields"], [], "fingerprint.fields"),
        (["fingerprint", "name"], 1, "fingerprint.name"),
        (["configuration"], [1], "configuration must be an object"),
        (["configuration", "sm"], None, "configuration.sm"),
        (["baseline", "ratio"], 0, "baseline.ratio"),
        (["baseline"], 3, "baseline must be an object"),
        (["effort", "trials"], -1, "effort.trials"),
        (["effort", "seed"], 0.5, "effort.seed"),
        (["effort"], None, "effort must be an object"),
        (["median_s"], 7.0, "id must be that of the content"),
        (["id"], 5, "id must be that of the content"),
        (["noise"], 5, "noise"),
        (["beat"], "0123456789ab", "$.beat must be an array"),
        (["beat"], ["0123456789aB"], "$.beat[0] must be a record id of 12 hex digits"),
        (["lost_to"], ["0123456789ab"] * 17, "$.lost_to must be an array of at most 16 values"),
        (["sustained"], {"kernel": {"median_s": 0}}, "$.sustained.kernel.median_s must be"),
        (["sustained"], {"baseline": None}, "key 'kernel' is missing in $.sustained"),
    ],
)
def test_bad_document_is_refused(path: list[str], value: object, message: str) -> None:
    document = json.loads(json.dumps(record().to_json()))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(InputError) as caught:
        TuningRecord.from_json(document)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BINARY = {
    "digest": "0" * 64,
    "architecture": "sm_90",
    "support": None,
    "sizes": [64, 64, 64],
    "workspace_bytes": 0,
    "steps": [{"kernel": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1], "shared_bytes": 0}],
}
OPTIONAL = {"id", "digest", "binary", "noise", "beat", "lost_to"}
"""Keys that came later, or may be left out: records of before are read as they are."""


@pytest.mark.parametrize("name", sorted(set(record().to_json()) - OPTIONAL))
def test_missing_key_is_refused(name: str) -> None:
    document = record().to_json()
    del document[name]
    with pytest.raises(InputError, match=f"'{name}' is missing"):
        TuningRecord.from_json(document)


@pytest.mark.parametrize("document", [None, [], "record", 1, {1: 2}])
def test_other_documents_are_refused(document: object) -> None:
    with pytest.raises(InputError):
        TuningRecord.from_json(document)


def test_unknown_keys_are_left_out_and_an_id_may_be_absent() -> None:
    document = record().to_json() | {"energy_j": 3.5}
    assert TuningRecord.from_json(document) == record()
    del document["id"]
    assert TuningRecord.from_json(document).id == record().id


def test_what_was_seen_in_the_finals_survives_storing_and_is_no_part_of_the_id() -> None:
    told = record(noise="others used 1.9 of 2 processors", beat=("0" * 12,), lost_to=("1" * 12,))
    assert TuningRecord.from_json(json.loads(json.dumps(told.to_json()))) == told
    assert told.id == record().id
    before = {key: value for key, value in told.to_json().items() if key not in OPTIONAL}
    assert TuningRecord.from_json(before) == record()


SUSTAINED = SustainedRecord(
    Sustained(1.5e-3, 0.9, 600.0, 1410.0), Sustained(1.45e-3, 0.8, None, 1500.0)
)


def test_times_without_a_pause_are_kept_and_say_whether_the_library_is_faster() -> None:
    told = record(sustained=SUSTAINED)
    assert TuningRecord.from_json(json.loads(json.dumps(told.to_json()))) == told
    assert told.id == record().id
    assert "sustained" not in record().to_json()  # digests of records before stay what they were
    assert told.to_json()["digest"] != record().to_json()["digest"]
    assert (record().ratio, record(baseline=None).ratio) == (1.2, None)
    assert told.ratio == pytest.approx(1.45 / 1.5)
    assert told.slower_than_library
    assert told.caveats == ("slower than NumPy 2.4 (OpenBLAS)",)
    alone = record(sustained=SustainedRecord(SUSTAINED.kernel))
    assert (alone.ratio, alone.slower_than_library) == (1.2, False)
    assert TuningRecord.from_json(json.loads(json.dumps(alone.to_json()))) == alone


@pytest.mark.parametrize("name", ["noise", "beat", "lost_to", "binary"])
def test_nothing_of_a_record_is_altered_unseen(name: str) -> None:
    other = record(noise="a cold GPU", beat=("0" * 12,), lost_to=("1" * 12,))
    told = record().to_json()
    changed = json.loads(json.dumps(told | {name: other.to_json()[name]}))
    if name == "binary":
        changed = json.loads(json.dumps(told | {"binary": BINARY}))
    with pytest.raises(InputError, match=r"digest must be that of the content .*was altered"):
        TuningRecord.from_json(changed)
    del changed["digest"]  # as records of before have it
    assert TuningRecord.from_json(changed).id == record().id


def test_a_copy_and_a_changed_record_have_their_own_id() -> None:
    one = record()
    assert one.id == pickle.loads(pickle.dumps(one)).id == copy.copy(one).id
    assert replace(one, ties=7).id == record(ties=7).id != one.id


def test_a_record_says_whether_it_is_noisy_or_slower_than_the_library() -> None:
    assert not record().noisy
    assert record(noise="a throttled GPU").noisy
    assert record(median_s=1e-3, interval_s=(0.9e-3, 1.15e-3)).noisy
    assert not record().slower_than_library
    assert not record(baseline=None).slower_than_library
    assert record(baseline=BaselineRecord("NumPy", 1e-3, 0.97)).slower_than_library
    assert record().caveats == ()
    assert record(baseline=BaselineRecord("NumPy", 1e-3, 0.97)).caveats == ("slower than NumPy",)
    assert record(baseline=None, noise="a throttled GPU").caveats == ("a throttled GPU",)


def test_pruning_looks_at_each_record_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's file may hold thousands of records of one problem."""
    counts = {"digests": 0, "current": 0}
    canonical = strict_json.canonical

    def counted(document: object) -> str:
        counts["digests"] += 1
        return canonical(document)

    def current(one: TuningRecord) -> bool:
        counts["current"] += 1
        return one.ties % 3 > 0

    monkeypatch.setattr(strict_json, "canonical", counted)
    many = [record(ties=number, gflops=1.0 + number % 7) for number in range(200)]
    many[0] = replace(many[0], beat=(many[1].id,))
    left = {each.ties for each in many} - {each.ties for each in superseded(many, current)}
    assert left == {each.ties for each in many if each.ties % 7 == 6}
    assert counts["current"] <= 200
    assert counts["digests"] <= 8 * 200


def test_of_equals_the_newest_of_each_key_is_kept() -> None:
    old, middle, new = (record(created=f"2026-01-0{day}T00:00:00Z") for day in (1, 2, 3))
    other = record(m=128, created="2025-01-01T00:00:00Z")
    assert superseded([middle, other, new, old]) == [middle, old]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("NaN", "must be finite, got NaN"),
        ("[-Infinity]", "must be finite"),
        ("1e999", "must be finite"),
        ("9223372036854775808", "64 bits"),
        ("9" * 100_000, "64 bits"),
        ('{"a": 1, "a": 2}', "may appear once, got 'a'"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 200_000, "nested too deep"),
    ],
)
def test_strict_json_refuses_in_one_short_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        strict_json.parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 120


@given(st.recursive(SCALARS | st.none(), lambda x: st.lists(x) | st.dictionaries(TEXT, x)))
def test_strict_json_takes_what_it_writes(document: object) -> None:
    assert strict_json.parse(strict_json.line(document)) == document
    assert strict_json.parse(strict_json.canonical(document)) == document


def test_only_canonical_json_sorts() -> None:
    assert strict_json.line({"b": 1, "a": 2}) == '{"b": 1, "a": 2}'
    assert strict_json.canonical({"b": 1, "a": 2}) == '{"a":2,"b":1}'
