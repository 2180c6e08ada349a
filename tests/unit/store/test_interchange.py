"""Record files: what is exported comes back; what is not an export is refused in one line."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import FINGERPRINT, record

from autotune.core.errors import CacheError, InputError
from autotune.store import (
    TuningRecord,
    export_lines,
    export_records,
    import_records,
    interchange,
    shipped_records,
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
