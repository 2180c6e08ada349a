"""``autotune cache``: every action, as a document and as text."""

from __future__ import annotations

import argparse
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from records import CUBIN, ENTRY, FINGERPRINT, PORTFOLIO, record

from autotune.cli.cache import add_cache
from autotune.cli.terminal import plain
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import CacheError, InputError, UnknownNameError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.operations.problem import Gemm
from autotune.store import TuningCache, document_of, export_records, import_records
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cli.parser import CommandResult

FAMILY = """\
family = "mine"
operation = "gemm"
target = "cpu"
template = "mine.py.j2"
accuracy = "ieee"
summary = "Mine"

[parameters]
tile = { values = [1, 2, 4], default = 1 }

[[restrictions]]
expr = "tile <= 2"
reason = "large tiles are not mine"
"""


@pytest.fixture
def cache() -> TuningCache:
    return TuningCache(CacheLocations.at().database)


def run(*arguments: str | Path) -> CommandResult:
    parser = argparse.ArgumentParser()
    add_cache(parser.add_subparsers())
    args = parser.parse_args(["cache", *map(str, arguments)])
    result: CommandResult = args.run(args)
    json.dumps(result.document, allow_nan=False)
    return replace(result, text=plain(result.text))


def test_list(cache: TuningCache) -> None:
    assert run("list").document == []
    assert "`autotune tune` makes one" in run("list").text
    old, new = record(), record(128, baseline=None, created="2026-02-01T00:00:00Z")
    conv = record(operation="conv", created="2020-01-01T00:00:00Z")
    cache.add(old, new, conv)
    result = run("list")
    assert result.document == [item.to_json() for item in (new, old, conv)]
    header, *rows = result.text.splitlines()
    assert header.split()[:2] == ["id", "device"]
    assert [row.split()[0] for row in rows] == [new.id, old.id, conv.id]
    assert "64x64x64-float32" in rows[1]
    assert "100.5  1.20x  2026-01-31 12:00:00" in rows[1]


def test_show(cache: TuningCache) -> None:
    cache.add(record(), record(128))
    result = run("show", record().id[:6])
    assert result.document == record().to_json()
    for part in ("blocked: sm=64 order=ikj", "1.20x the speed of NumPy", "governor", "0.68.1"):
        assert part in result.text
    with pytest.raises(UnknownNameError, match="no record 'nope'"):
        run("show", "nope")


def test_export_and_import(cache: TuningCache, tmp_path: Path) -> None:
    records = [record(m) for m in (1, 2, 3)]
    cache.add(*records)
    file = tmp_path / "some.jsonl"
    result = run("export", file, "--id", records[0].id, "--id", records[2].id[:8])
    assert result.text == f"wrote 2 records to {file}"
    assert import_records(file) == [records[0], records[2]]
    twice = run("export", tmp_path / "one.jsonl", "--id", records[0].id, "--id", records[0].id[:8])
    assert twice.text.startswith("wrote 1 record ")
    everything = run("export", "-")
    (tmp_path / "all.jsonl").write_text(everything.text)
    assert [item.id for item in import_records(tmp_path / "all.jsonl")] == [
        item["id"] for item in everything.document
    ]
    other = tmp_path / "other.sqlite"
    first = run("import", file, "--cache", other)
    assert first.text == f"2 new records of 2 stored in {other}"
    assert first.document == [records[0].to_json(), records[2].to_json()]
    assert run("import", tmp_path / "all.jsonl", "--cache", other).text.startswith(
        "1 new record of 3"
    )
    assert len(TuningCache(other).records()) == 3


def test_portfolios_travel_without_their_binaries(cache: TuningCache, tmp_path: Path) -> None:
    cache.add(record())
    cache.put_portfolio(PORTFOLIO, [CUBIN])
    cache.put_portfolio(replace(PORTFOLIO, dtype="float64", threads=2))
    file, other = tmp_path / "all.jsonl", tmp_path / "other.sqlite"
    assert run("export", file).text == f"wrote 1 record and 2 portfolios to {file}"
    result = run("import", file, "--cache", other)
    assert result.text.splitlines() == [
        f"1 new record of 1 stored in {other}",
        "portfolio gemm float32 ieee on NVIDIA H200: stored",
        "portfolio gemm float64-float32 ieee threads=2 on NVIDIA H200: stored",
    ]
    entries = tuple(replace(each, binary=None) for each in PORTFOLIO.entries)
    bare = replace(PORTFOLIO, entries=entries)
    assert TuningCache(other).portfolios() == [bare, replace(bare, dtype="float64", threads=2)]
    again = run("import", file)
    assert again.text.count("not stored: there is one, which stays") == 2
    assert cache.portfolios("gemm", "cuda")[0] == PORTFOLIO
    assert cache.binary(ENTRY.binary or "") == CUBIN


def test_an_import_that_fails_at_a_portfolio_stores_nothing(
    cache: TuningCache, tmp_path: Path
) -> None:
    file, other = tmp_path / "all.jsonl", TuningCache(tmp_path / "other.sqlite")
    export_records([record(), PORTFOLIO], file)
    other.check_writable()
    with closing(sqlite3.connect(other.path)) as database:
        database.execute("DROP TABLE portfolios")  # as far as a disk that is full gets
    with pytest.raises(CacheError):
        run("import", file, "--cache", other.path)
    assert other.records() == []


def test_list_portfolios(cache: TuningCache) -> None:
    assert run("list", "--portfolios").document == []
    assert "`autotune tune --preset gpu`" in run("list", "--portfolios").text
    cache.put_portfolio(PORTFOLIO, [CUBIN])
    result = run("list", "--portfolios")
    assert result.document == [document_of(PORTFOLIO)]
    assert result.text.splitlines()[1].split() == [
        *("NVIDIA", "H200", "gemm", "float32", "ieee", "cuda", "2", "1", "60", "1.0%"),
        *("2026-01-31", "12:00:00"),
    ]


def test_verify_grades_portfolios(cache: TuningCache) -> None:
    family = load_families(target="cuda")[ENTRY.family]
    current = replace(
        ENTRY,
        family_digest=family.digest,
        configuration=Configuration({each.name: each.values[0] for each in family.parameters}),
        free=family.free_parameters,
        calls=(),
    )
    cache.put_portfolio(replace(PORTFOLIO, entries=(current,)), [CUBIN])
    [row] = run("verify").document["portfolios"]
    assert row == {"portfolio": "gemm float32 ieee on NVIDIA H200", "status": "ok", "detail": ""}
    none = [
        replace(current, configuration=Configuration({**current.configuration, "sm": 7777})),
        replace(current, free=("sm", *current.free), calls=()),
        replace(current, calls=((7777,) * len(current.free),)),
    ]
    for entry, why in zip(none, ("sm must be one of", "free param", "no call with"), strict=True):
        cache.put_portfolio(replace(PORTFOLIO, entries=(entry, current)), [CUBIN])
        result = run("verify")
        [row] = result.document["portfolios"]
        assert (row["status"], result.exit_code) == ("invalid", 1)
        assert row["detail"].startswith("1 of 2 programs not of their families (")
        assert why in row["detail"]
    cache.put_portfolio(PORTFOLIO, [CUBIN])
    [row] = run("verify").document["portfolios"]
    assert row["status"] == "stale"
    assert row["detail"] == "2 of 2 programs of families that changed since: pipelined"
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE binaries SET content = 'other'")
    result = run("verify")
    assert result.exit_code == 1
    assert result.text.endswith(f"1 portfolio in {cache.path}: 0 ok, 0 stale, 1 invalid")
    [row] = result.document["portfolios"]
    assert row["detail"] == f"binaries are missing or damaged: {ENTRY.binary}"
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE portfolios SET document = '{}'")
    [row] = run("verify").document["portfolios"]
    assert (row["portfolio"], row["status"]) == ("-", "invalid")


def test_verify_finds_a_record_that_was_altered_under_its_id(cache: TuningCache) -> None:
    cache.add(record(noise="others used 1.9 of 2 processors"))
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE records SET document = replace(document, '1.9', '0.1')")
    result = run("verify")
    [row] = result.document["records"]
    assert (row["status"], result.exit_code) == ("invalid", 1)
    assert row["detail"].startswith("digest must be that of the content")


def test_import_is_all_or_nothing(cache: TuningCache, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    cache.add(record())
    cache.put_portfolio(PORTFOLIO)
    run("export", file)
    cache.delete([record().id])
    file.write_text(file.read_text() + "nonsense\n")
    with pytest.raises(InputError, match=r"records\.jsonl:4: not valid JSON"):
        run("import", file)
    assert cache.records() == []


def test_verify_grades_every_record(cache: TuningCache, tmp_path: Path) -> None:
    families = tmp_path / "families"
    families.mkdir()
    (families / "mine.toml").write_text(FAMILY)
    (families / "mine.py.j2").write_text("def gemm({{ arguments }}): pass\n")
    digest = load_families(target="cpu", extra=[families])["mine"].digest
    here = make_target("cpu").device().fingerprint

    def mine(tile: int) -> Candidate:
        return Candidate("mine", Configuration({"tile": tile}))

    def tuned(tile: int) -> dict[str, object]:
        return {"fingerprint": here, "family_digest": digest, "candidate": mine(tile)}

    gone = Candidate("gone", Configuration({}))
    graded = [
        (record(**tuned(2)), "ok", ""),
        (record(**tuned(2) | {"fingerprint": FINGERPRINT}), "ok", "tuned on another device"),
        (record(target="tpu"), "ok", "cannot be checked here"),
        (record(candidate=mine(2)), "stale", "family mine ffffffffffffffff → "),
        (record(candidate=gone), "stale", "no family 'gone'"),
        (record(operation="conv", family_digest=digest), "stale", "no family"),
        (record(**tuned(3)), "invalid", "tile"),
        (record(**tuned(4)), "invalid", "tile <= 2: large tiles are not mine (tile = 4)"),
    ]
    cache.add(*(item for item, _, _ in graded))
    expected = {item.id: (status, detail) for item, status, detail in graded}
    expected["0123456789ab"] = ("invalid", "not valid JSON")
    expected["cdef01234567"] = ("invalid", f"the content's id is {record(77).id}")
    broken = [("0123456789ab", "{"), ("cdef01234567", json.dumps(record(77).to_json()))]
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.executemany("INSERT INTO records VALUES (?, '', '', '', '', '', ?)", broken)

    result = run("verify", "--families", families)
    found = {row["id"]: (row["status"], row["detail"]) for row in result.document["records"]}
    assert found.keys() == expected.keys()
    for id_, (status, detail) in expected.items():
        assert found[id_][0] == status, found[id_]
        assert detail in found[id_][1]
    assert result.exit_code == 1
    assert result.text.endswith(f"10 records in {cache.path}: 3 ok, 3 stale, 4 invalid")

    cache.delete(id_ for id_, (status, _) in expected.items() if status == "invalid")
    assert run("verify", "--families", families).exit_code == 0


def test_verify_of_nothing() -> None:
    result = run("verify")
    assert result.exit_code == 0
    assert result.document["records"] == []
    assert result.text.startswith("there is no cache at ")


def test_prune(cache: TuningCache) -> None:
    old, new = record(), record(created="2026-02-01T00:00:00Z")
    cache.add(old, new, record(128))
    row = (new.candidate, Measurement(Outcome.OK, 1.0, (1.0, 1.0), 3))
    cache.add_measurements("study", FINGERPRINT, Gemm(64, 64, 64), "cpu", [row])
    dry = run("prune", "--days", "0", "--dry-run")
    assert dry.document == {
        "removed": [old.to_json()],
        "measurements": 1,
        "folders": [],
        "dry_run": True,
    }
    assert "would remove 1 superseded record and 1 measurement from " in dry.text
    assert len(cache.records()) == 3
    assert run("prune", "--days", "30").document["measurements"] == 0
    assert cache.records() == [new, record(128)]
    assert (
        "removed 0 superseded records and 1 measurement from " in run("prune", "--days", "0").text
    )
    assert cache.measurements() == []
    for days in ("-1", "9999999999"):
        with pytest.raises(InputError, match="--days"):
            run("prune", "--days", days)


def test_prune_keeps_records_of_other_devices(cache: TuningCache) -> None:
    cache.add(record(), record(fingerprint=replace(FINGERPRINT, name="Other")))
    assert run("prune").document["removed"] == []


def test_path(tmp_path: Path) -> None:
    result = run("path", "--cache", tmp_path / "here")
    assert result.document == {
        "root": str(tmp_path / "here"),
        "database": str(tmp_path / "here" / "tuning.sqlite"),
        "studies": str(tmp_path / "here" / "studies"),
        "programs": str(tmp_path / "here" / "programs"),
    }
    assert not (tmp_path / "here").exists()
