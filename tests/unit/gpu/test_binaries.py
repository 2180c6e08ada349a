"""Winners' binaries: kept with their records, found by digest, never taken from strangers."""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import record

from autotune.core.errors import InputError
from autotune.families.gpu.launch import Binary, LaunchPlan, LaunchStep
from autotune.store import (
    BinaryRecord,
    TuningCache,
    TuningRecord,
    export_records,
    import_records,
    schema,
    shipped_binary,
    shipped_records,
    strict_json,
)
from autotune.store.files import BINARY_LIMIT

CONTENT, SUPPORT = b"\x7fELF kernel", b"\x7fELF support"
PLAN = LaunchPlan(
    (64, 64, 64),
    (
        LaunchStep("prepare", (3, 1, 1), (256, 1, 1)),
        LaunchStep("gemm", (2, 4, 8), (16, 16, 1), shared_bytes=65536),
    ),
    workspace_bytes=1 << 20,
)
BINARY = Binary(CONTENT, "sm_90", PLAN, SUPPORT)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def with_binary(m: int = 64, binary: Binary = BINARY, **changes: Any) -> TuningRecord:
    return record(m, binary=BinaryRecord.of(binary), target="cuda", **changes)


def test_record_names_the_binary_and_its_launch() -> None:
    kept = BinaryRecord.of(BINARY)
    assert (kept.digest, kept.support) == (digest(CONTENT), digest(SUPPORT))
    assert kept.launch == PLAN
    assert BinaryRecord.of(replace(BINARY, support=b"")).support is None


@pytest.mark.parametrize("support", [b"", SUPPORT])
@pytest.mark.parametrize("runtime", [(), (3, 0)])
@pytest.mark.parametrize("workspace", [None, 0, 1 << 20])
def test_record_survives_json(
    support: bytes, workspace: int | None, runtime: tuple[int, ...]
) -> None:
    zeroed = min(16, workspace or 0)
    plan = replace(PLAN, workspace_bytes=workspace, runtime=runtime, zeroed_bytes=zeroed)
    original = with_binary(binary=replace(BINARY, launch=plan, support=support))
    text = strict_json.line(original.to_json())
    assert TuningRecord.from_json(strict_json.parse(text)) == original


def test_records_from_before_binaries_still_load() -> None:
    document = record().to_json()
    del document["binary"]
    assert TuningRecord.from_json(document) == record()


def test_id_is_that_of_the_record_without_binary() -> None:
    original = with_binary()
    assert original.id == replace(original, binary=None).id


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"digest": "../../etc/passwd"}, "binary.digest must be a SHA-256"),
        ({"support": "ABC"}, "binary.support must be a SHA-256"),
        ({"architecture": 90}, "binary.architecture must be"),
        ({"sizes": []}, "binary.sizes must be an array of at least 1 values"),
        ({"sizes": [64, 64, 0]}, r"binary.sizes\[2\] must be a whole number >= 1"),
        ({"workspace_bytes": -1}, "binary.workspace_bytes"),
        ({"zeroed_bytes": 6}, "binary.zeroed_bytes must be whole words within the workspace"),
        ({"zeroed_bytes": 1 << 30}, "binary.zeroed_bytes must be whole words within"),
        ({"runtime": [-1]}, r"binary.runtime\[0\] must be a whole number"),
        ({"runtime": [1] * 17}, "binary.runtime must be an array of at most 16 values"),
        ({"steps": []}, "binary.steps must be an array of at least 1 values"),
        ({"steps": [{}] * 17}, "binary.steps must be an array of at most 16 values"),
        ({"steps": ["gemm"]}, r"binary.steps\[0\] must be an object"),
    ],
)
def test_bad_description_is_refused(change: dict[str, Any], named: str) -> None:
    document = with_binary().to_json()
    document["binary"] |= change
    with pytest.raises(InputError, match=named):
        TuningRecord.from_json(document)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"block": [32, 64, 1]}, "block must be of 1024 threads at most"),
        ({"grid": [1 << 31, 1, 1]}, r"grid\[0\] must be a whole number <= 2147483647"),
        ({"grid": [1, True, 1]}, r"grid\[1\] must be a whole number"),
        ({"grid": [1, 1]}, "grid must be an array of 3 values, got"),
        ({"grid": []}, "grid must be an array of 3 values, got"),
        ({"block": [32, 1, 1, 1]}, "block must be an array of 3 values, got"),
        ({"cluster": "111"}, "cluster must be an array, got"),
        ({"kernel": ""}, r"steps\[0\].kernel"),
        ({"kernel": 'gemm"); system("true'}, "kernel must be a C identifier"),
        ({"kernel": "g" * 300}, "kernel must be a C identifier"),
        ({"shared_bytes": 1.5}, "shared_bytes must be a whole number"),
    ],
)
def test_bad_launch_is_refused(change: dict[str, Any], named: str) -> None:
    document = with_binary().to_json()
    document["binary"]["steps"][0] |= change
    with pytest.raises(InputError, match=named):
        TuningRecord.from_json(document)


def test_cache_keeps_binaries_with_their_record(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    assert cache.binary(digest(CONTENT)) is None
    cache.add(with_binary(), binaries=[CONTENT, SUPPORT])
    assert cache.binary(digest(CONTENT)) == CONTENT
    assert cache.binary(digest(SUPPORT)) == SUPPORT
    assert cache.binary("0" * 64) is None
    assert cache.damage() == []


def test_damaged_binary_is_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(with_binary(), binaries=[CONTENT])
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE binaries SET content = 'text'")
    with caplog.at_level(logging.WARNING):
        assert cache.binary(digest(CONTENT)) is None
    assert "is damaged" in caplog.text
    assert any(digest(CONTENT) in line for line in cache.damage())
    cache.add(with_binary(), binaries=[CONTENT])  # tuned again
    assert cache.binary(digest(CONTENT)) == CONTENT


def test_binaries_go_with_the_last_record_that_names_them(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    one, other = with_binary(64), with_binary(128, replace(BINARY, support=b""))
    cache.add(one, other, record(256), binaries=[CONTENT, SUPPORT])
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE records SET document = '{' WHERE id = ?", [record(256).id])
    cache.delete([one.id])
    assert cache.binary(digest(SUPPORT)) is None
    assert cache.binary(digest(CONTENT)) == CONTENT
    cache.delete([other.id])
    assert cache.binary(digest(CONTENT)) is None


def version_1(path: Path) -> TuningCache:
    """A cache as it was before binaries and portfolios: the same but for their tables."""
    cache = TuningCache(path)
    cache.add(record(1), record(2))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE binaries")
        connection.execute("DROP TABLE portfolios")
        for id_, text in connection.execute("SELECT id, document FROM records").fetchall():
            document = json.loads(text)
            del document["binary"]
            connection.execute(
                "UPDATE records SET document = ? WHERE id = ?", [json.dumps(document), id_]
            )
        connection.execute("PRAGMA user_version = 1")
    return cache


def user_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [[version]] = connection.execute("PRAGMA user_version")
        return int(version)


def test_older_file_is_read_as_it_is(tmp_path: Path) -> None:
    cache = version_1(tmp_path / "tuning.sqlite")
    assert len(cache.records()) == 2
    assert cache.binary(digest(CONTENT)) is None
    assert cache.damage() == []
    assert user_version(cache.path) == 1


def test_a_file_of_version_2_is_examined_before_it_is_upgraded(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(with_binary(), binaries=[CONTENT])
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("DROP TABLE portfolios")
        connection.execute("UPDATE binaries SET content = ?", [b"damaged"])
        connection.execute("PRAGMA user_version = 2")
    (told,) = cache.damage()
    assert told.startswith(f"binary {digest(CONTENT)} is damaged")
    assert user_version(cache.path) == 2


def test_older_file_is_upgraded_by_the_first_write_and_loses_nothing(tmp_path: Path) -> None:
    cache = version_1(tmp_path / "tuning.sqlite")
    before = {old.id: old for old in cache.records()}
    cache.add(with_binary(3), binaries=[CONTENT])
    assert user_version(cache.path) == schema.SCHEMA_VERSION == 4
    after = {kept.id: kept for kept in cache.records()}
    assert after == before | {with_binary(3).id: with_binary(3)}
    assert cache.binary(digest(CONTENT)) == CONTENT
    fresh = TuningCache(tmp_path / "fresh.sqlite")
    fresh.check_writable()
    assert tables(cache.path) == tables(fresh.path)


def tables(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def test_imported_records_bring_no_binary(tmp_path: Path) -> None:
    export_records([with_binary()], tmp_path / "records.jsonl")
    assert digest(CONTENT) in (tmp_path / "records.jsonl").read_text()
    assert import_records(tmp_path / "records.jsonl") == [replace(with_binary(), binary=None)]


def test_shipped_records_and_binaries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / with_binary().fingerprint.slug
    folder.mkdir()
    export_records([with_binary()], folder / "gemm.jsonl")
    (folder / f"{digest(CONTENT)}.cubin").write_bytes(CONTENT)
    (folder / f"{digest(SUPPORT)}.cubin").write_bytes(CONTENT)
    assert list(shipped_records("gemm", folder=tmp_path)) == [with_binary()]
    assert shipped_binary(digest(CONTENT), tmp_path) == CONTENT
    assert shipped_binary("0" * 64, tmp_path) is None
    with caplog.at_level(logging.WARNING):
        assert shipped_binary(digest(SUPPORT), tmp_path) is None
    assert "not what its name says" in caplog.text


def test_shipped_binaries_may_be_compressed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cuda-device"
    folder.mkdir()
    file = folder / f"{digest(CONTENT)}.cubin.xz"
    file.write_bytes(lzma.compress(CONTENT))
    assert shipped_binary(digest(CONTENT), tmp_path) == CONTENT
    assert shipped_binary(digest(CONTENT), folder) == CONTENT
    # Cut short, no such file at all, and one that never ends: left out, and said.
    for content in (file.read_bytes()[:30], b"x", lzma.compress(bytes(BINARY_LIMIT + 1))):
        caplog.clear()
        file.write_bytes(content)
        assert shipped_binary(digest(CONTENT), tmp_path) is None
        assert "left out" in caplog.text
