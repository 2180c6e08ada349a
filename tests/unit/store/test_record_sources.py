"""Records of the user, of read-only layers, and shipped; portfolios beside them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from records import CUBIN, DEVICE, ENTRY, FINGERPRINT, PORTFOLIO, record

from autotune.core.errors import InputError
from autotune.families.gpu.launch import Binary, LaunchPlan, LaunchStep
from autotune.model import LARGEST, TERMS
from autotune.operations.problem import GEMM, Gemm
from autotune.store import (
    BinaryRecord,
    TuningCache,
    TuningRecord,
    export_lines,
    export_records,
    parse_line,
    pools,
    record_sources,
    strict_json,
)
from autotune.store import files as files_module
from autotune.store.portfolio import decoded, portfolio_document, read_portfolio
from autotune.store.sources import KeptSource, RecordFiles, shapes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.store import RecordSource


pytestmark = pytest.mark.usefixtures("nothing_shipped")
PROBLEM = Gemm(64, 64, 64)
PLAN = LaunchPlan((64, 64, 64), (LaunchStep("gemm", (1 << 30, 1, 1), (32, 1, 1)),), 0)
PLANNED = record(
    fingerprint=PORTFOLIO.fingerprint,
    target="cuda",
    binary=BinaryRecord.of(Binary(CUBIN, "sm_90", PLAN, b"")),
)


def found(user: Path, problem: Gemm = PROBLEM) -> list[list[TuningRecord]]:
    return list(pools(record_sources(user, "cpu"), problem, "cpu", DEVICE.fingerprint))


def test_layers_lie_under_the_users_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        record(median_s=second, interval_s=(second, second)) for second in (4.0, 3.0, 2.0, 1.0)
    ]
    user, site = tmp_path / "user.sqlite", tmp_path / "site"
    TuningCache(user).add(made[0])
    TuningCache(site / "tuning.sqlite").add(made[1])
    folder = tmp_path / "files" / FINGERPRINT.slug
    folder.mkdir(parents=True)
    export_records([made[2]], folder / "gemm.jsonl")
    export_records([made[3]], tmp_path / "one.jsonl")
    layers = (site, folder.parent, tmp_path / "one.jsonl")
    monkeypatch.setenv("AUTOTUNE_RECORDS", os.pathsep.join(map(str, layers)))
    assert found(user)[0] == made


def test_a_file_may_hold_records_and_portfolios(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export_records([record(), PORTFOLIO], tmp_path / "both.jsonl")
    files = RecordFiles(tmp_path / "both.jsonl", "cpu")
    assert files.of_problem(*record().key) == [record()]
    assert list(files.portfolios("gemm", "cuda")) == [PORTFOLIO]
    assert list(files.portfolios("gemm", "cpu")) == []
    assert caplog.messages == []


def test_a_distribution_brings_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "their_records"
    folder = package / FINGERPRINT.slug
    folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    export_records([record()], folder / "gemm.jsonl")
    (folder / f"{hashlib.sha256(b'kernel').hexdigest()}.cubin").write_bytes(b"kernel")
    about = tmp_path / "site-packages" / "their_records-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: their-records\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[autotune.records]\nours = their_records\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.delitem(sys.modules, "their_records", raising=False)
    assert found(tmp_path / "none.sqlite")[0] == [record()]
    binaries = [
        source.binary(hashlib.sha256(b"kernel").hexdigest())
        for source in record_sources(tmp_path / "none.sqlite", "cpu")
    ]
    assert b"kernel" in binaries


def test_a_layer_that_is_not_there_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUTOTUNE_RECORDS", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        assert found(tmp_path / "none.sqlite") == [[]]
        assert found(tmp_path / "none.sqlite") == [[]]
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}/gone: no such cache, or file or folder of records: left out"
    ]


def test_binaries_of_a_folder_that_others_may_write_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digest = hashlib.sha256(b"kernel").hexdigest()
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / f"{digest}.cubin").write_bytes(b"kernel")
    (tmp_path / "layer").chmod(0o777)
    monkeypatch.setenv("AUTOTUNE_RECORDS", str(tmp_path / "layer"))
    layer = record_sources(tmp_path / "none.sqlite", "cpu")[1]
    assert layer.binary(digest) is None
    assert "everybody may write (mode 777)" in caplog.text


def layers_with_plans(folder: Path) -> dict[str, Path]:
    """A layer of each form that holds a record and a portfolio, with their binaries."""
    stored = [PLANNED, PORTFOLIO]
    device = folder / "files" / PLANNED.fingerprint.slug
    device.mkdir(parents=True)
    export_records(stored[:1], device / "gemm.jsonl")
    export_records(stored[1:], device / "gemm.portfolio.jsonl")
    (folder / "one").mkdir()
    export_records(stored, folder / "one" / "both.jsonl")
    cache = TuningCache(folder / "cache" / "tuning.sqlite")
    cache.add(PLANNED, binaries=[CUBIN])
    cache.put_portfolio(PORTFOLIO, [CUBIN])
    for place in (device, folder / "one"):
        (place / f"{hashlib.sha256(CUBIN).hexdigest()}.cubin").write_bytes(CUBIN)
    for place in folder.rglob("*"):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return {
        "folder": device / "gemm.jsonl",
        "file": folder / "one" / "both.jsonl",
        "cache": folder / "cache" / "tuning.sqlite",
    }


def told(sources: Sequence[RecordSource]) -> tuple[set[bool], set[bool], set[bool]]:
    """Of what sources hold: records that say how a binary is launched, portfolios, binaries."""
    digest = hashlib.sha256(CUBIN).hexdigest()
    entries = [
        entry
        for source in sources
        for portfolio in decoded(source.portfolio_heads("gemm", "cuda"))
        for entry in portfolio.entries[:1]
    ]
    records = [each for source in sources for each in source.of_problem(*PLANNED.key)]
    assert len(records) == len(entries) == 1  # nothing else of them is lost
    return (
        {each.binary is not None for each in records},
        {each.binary is not None for each in entries},
        {source.binary(digest) is not None for source in sources[1:-1]},
    )


@pytest.mark.parametrize("form", ["folder", "file", "cache"])
@pytest.mark.parametrize("writable", ["", "layer", "device", "content"])
def test_how_binaries_are_launched_is_taken_from_no_stranger(
    form: str, writable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = layers_with_plans(tmp_path)[form]
    layer = {"folder": file.parents[1], "file": file, "cache": file.parent}[form]
    monkeypatch.setenv("AUTOTUNE_RECORDS", str(layer))
    if writable:
        place = {"layer": layer, "device": file.parent, "content": file}[writable]
        place.chmod(place.stat().st_mode | 0o022)
        if form == "folder" and writable == "content":
            (file.parent / "gemm.portfolio.jsonl").chmod(0o666)
            for each in file.parent.glob("*.cubin"):
                each.chmod(0o666)
    expected = ({not writable},) * 3
    for _ in range(2):  # what is kept of a file does not know better
        assert told(record_sources(tmp_path / "none.sqlite", "cuda")) == expected
    if not writable:
        file.parent.chmod(0o777)
        assert told(record_sources(tmp_path / "none.sqlite", "cuda")) == ({False},) * 3


def test_lines_of_other_writers_and_damaged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [*export_lines([record(), record(8, 8, 8)])]
    turned = json.dumps(dict(reversed(json.loads(lines[2]).items())), indent=None)
    lie = lines[1].replace('"state": {', '"state": {"fingerprint": "x", ')
    text = [lines[0], lines[1], "", "{", turned, "[]", lie, *["nothing"] * 6]
    (tmp_path / "one.jsonl").write_text("\n".join(text))
    files = RecordFiles(tmp_path / "one.jsonl", "cpu")
    assert files.of_problem(*record().key) == [record()]
    assert files.of_problem(*record(8, 8, 8).key) == [record(8, 8, 8)]
    assert len(list(files.problems("gemm", "cpu"))) == 2
    assert len(caplog.messages) == 6
    assert caplog.messages[0].startswith(f"{tmp_path}/one.jsonl:4: left out: ")
    assert caplog.messages[4].endswith(": 4 more lines are left out")
    assert "id must be that of the content" in caplog.messages[5]


def test_only_the_lines_of_a_problem_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_records([record(m=size) for size in range(1, 60)], tmp_path / "one.jsonl")
    read: list[str] = []

    def parse(line: str) -> Any:
        read.append(line)
        return parse_line(line)

    monkeypatch.setattr(files_module, "parse_line", parse)
    for size in (7, 30, 7):
        files = RecordFiles(tmp_path / "one.jsonl", "cpu")
        assert files.of_problem(*record(m=size).key) == [record(m=size)]
    assert len(read) == 2


def test_of_very_many_problems_the_nearest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.store.sources.FARTHEST", 3)
    other = replace(FINGERPRINT, name="Another")
    made = [
        record(m=size, fingerprint=each) for size in range(60, 80) for each in (FINGERPRINT, other)
    ]
    TuningCache(tmp_path / "user.sqlite").add(*made)
    *_, own, last = found(tmp_path / "user.sqlite", Gemm(70, 64, 64))
    sizes = [each.problem["m"] for each in own]
    assert (sizes[0], sorted(sizes)) == (70, [69, 70, 71, 72])
    assert sorted(each.problem["m"] for each in last[4:]) == [69, 70, 71]
    assert {each.fingerprint for each in last[4:]} == {other}


def test_a_read_only_layer_gets_no_files_beside_it(tmp_path: Path) -> None:
    database = tmp_path / "tuning.sqlite"
    TuningCache(database).add(record())
    layer = TuningCache(database, read_only=True)
    assert layer.problems("gemm", "cpu") == [record().key[0:3:2]]
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["tuning.sqlite"]


def test_a_cache_is_read_where_no_file_can_grow(tmp_path: Path) -> None:
    """A disk is full: the files that reading makes beside a database have no room."""
    database = tmp_path / "tuning.sqlite"
    TuningCache(database).add(record())
    assert not database.with_name("tuning.sqlite-wal").exists()
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from autotune.core.errors import CacheError\n"
        "from autotune.store import TuningCache\n"
        "cache = TuningCache(Path(sys.argv[1]))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "records = cache.records()\n"
        "try:\n"
        "    cache.add(*records)\n"
        "except CacheError:\n"
        "    print(len(records))\n"
    )
    command = [sys.executable, "-B", "-c", script, str(database)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.stdout == "1\n", made.stderr


def test_few_records_are_read_the_nearest_first(tmp_path: Path) -> None:
    user = tmp_path / "user.sqlite"
    sizes = [record(size, size, size) for size in (64, 128, 512, 2048, 4096)]
    other = replace(record(), fingerprint=replace(FINGERPRINT, name="Another"))
    TuningCache(user).add(*sizes, record(problem=Gemm(64, 64, 64, "float64")), other)
    read = found(user)
    assert read[0] == sizes[:1]
    assert read[1] == sizes[:2]
    assert [len(pool) for pool in read] == [1, 2, 4, 5, 6]
    assert read[-1][-1] == other
    assert found(user, Gemm(500, 500, 500))[:2] == [[], [sizes[2]]]


def test_shapes_are_those_of_the_devices_own_records(tmp_path: Path) -> None:
    user, fingerprint = tmp_path / "user.sqlite", DEVICE.fingerprint
    own = [Gemm(64, 32, 16), Gemm(64, 32, 16, layout="nt"), Gemm(8, 9, 10, "float64")]
    other = replace(record(1, 2, 3), fingerprint=replace(FINGERPRINT, name="Another"))
    damaged = record(5, 6, 7)
    TuningCache(user).add(*[record(problem=each) for each in own], other, damaged)
    with closing(sqlite3.connect(user)) as connection, connection:
        text = '{"m": [5], "n": 6, "k": 7}'
        connection.execute("UPDATE records SET problem = ? WHERE id = ?", (text, damaged.id))
    sources = record_sources(user, "cpu")
    assert shapes(sources, GEMM, "cpu", fingerprint.digest) == {(64, 32, 16), (8, 9, 10)}
    assert shapes(sources, GEMM, "cuda", fingerprint.digest) == set()
    for problem in own:  # whose first pools are not empty
        assert next(pools(sources, problem, "cpu", fingerprint))


def test_one_problem_is_asked_for_without_listing_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record(), record(8, 8, 8))
    source = KeptSource(cache)
    listed = cache.problems("gemm", "cpu")
    monkeypatch.setattr(TuningCache, "problems", None)
    asked = [source.of_problem(*record().key) for _ in range(2)]
    assert asked == [(record(),)] * 2
    monkeypatch.setattr(TuningCache, "problems", lambda self, *kind: listed)
    source.problems("gemm", "cpu")
    monkeypatch.setattr(TuningCache, "of_problem", None)  # nothing else is there
    assert source.of_problem(*record(9, 9, 9).key) == ()


def test_of_other_devices_portfolios_the_programs_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lie = replace(PORTFOLIO, dtype="float64")
    lines = [*export_lines([PORTFOLIO, lie])]
    lines[2] = lines[2].replace('"dtype": "float64"', '"dtype": "float16"', 1)
    (tmp_path / "both.jsonl").write_text("\n".join(lines))
    read: list[str] = []

    def parse(line: str) -> Any:
        read.append(line)
        return parse_line(line)

    monkeypatch.setattr(files_module, "parse_line", parse)
    heads = RecordFiles(tmp_path / "both.jsonl", "cuda", trusted=True).portfolio_heads(
        "gemm", "cuda"
    )
    assert [head.subject.dtype for head in heads] == ["float32", "float16"]
    assert {head.subject.fingerprint for head in heads} == {PORTFOLIO.fingerprint}
    assert read == []
    assert decoded(heads) == [PORTFOLIO]
    assert heads[0].read() is heads[0].read()
    assert len(read) == 2
    assert "digest must be that of the content" in caplog.text


def test_a_portfolio_survives_json() -> None:
    text = strict_json.line(portfolio_document(PORTFOLIO))
    assert read_portfolio(strict_json.parse(text)) == PORTFOLIO


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"format": 2}, {}, "portfolio format must be 1, got 2"),
    ({"terms": ["call"]}, {}, "terms are another autotune's"),
    ({"dtype": "float7"}, {}, "dtype must be one of"),
    ({"threads": 0}, {}, "threads must be a whole number >= 1"),
    ({"loss": -1.0}, {}, "loss must be a finite number >= 0"),
    ({"loss": 1e9}, {}, "loss must be a finite number <= 1000"),
    ({"loss": 0.5}, {}, "digest must be that of the content .*the portfolio was altered"),
    ({"fingerprint": {"kind": ["cpu"], "name": "x", "fields": {}}}, {}, "fingerprint.kind must"),
    ({"fingerprint": {"kind": "cpu", "name": None, "fields": {}}}, {}, "fingerprint.name must"),
    ({"fingerprint": {"kind": "cpu", "name": "\x1b[2J", "fields": {}}}, {}, "fingerprint.name"),
    ({"fingerprint": {"kind": "cpu", "name": "x", "fields": {"a": {}}}}, {}, "fields.a must"),
    (
        {"families": {"pipelined": [1e308] * len(TERMS)}},
        {},
        r"\$.families.pipelined\[0\] must be a .* <= 1,",
    ),
    ({"entries": [{}] * (LARGEST + 1)}, {}, f"{LARGEST} programs at most"),
    ({}, {"layout": "xy"}, "layout must be one of"),
    ({}, {"prices": [1.0]}, "prices, got 1"),
    (
        {},
        {"prices": [-1.0] * len(TERMS)},
        r"\$.entries\[0\].prices\[0\] must be a finite number >= 0",
    ),
    ({}, {"prices": [1e308] * len(TERMS)}, r"prices\[0\] must be a finite number <= 1,"),
    ({}, {"spread": 1e308}, "spread must be a finite number <= 10"),
    ({}, {"largest": 1e308}, "largest must be a finite number <= 1e.60"),
    ({}, {"resident": 1 << 40}, "resident must be a finite number <= 65536"),
    ({}, {"resident": 0}, "resident must be a finite number > 0"),
    ({}, {"calls": [[1, 2]]}, "a value for each of 1 parameters, got 2"),
    ({}, {"free": ["sn"]}, "free must be names of the configuration"),
    ({}, {"binary": "../../etc/passwd"}, "binary must be a SHA-256"),
]


@pytest.mark.parametrize(("change", "entry", "message"), FAULTS, ids=[f[2] for f in FAULTS])
def test_what_is_not_a_portfolio_is_refused(
    change: dict[str, Any], entry: dict[str, Any], message: str
) -> None:
    document = portfolio_document(PORTFOLIO) | change
    if entry:
        document["entries"][0] |= entry
    with pytest.raises(InputError, match=message):
        read_portfolio(document)


@pytest.mark.parametrize(
    ("target", "sectors", "ragged"), [("cuda", 3e-10, 6e-11), ("cpu", 0.0, 0.0)]
)
def test_terms_that_came_later_cost_part_of_what_is_usual(
    target: str, sectors: float, ragged: float
) -> None:
    known = TERMS.index("sectors in vain")
    document = portfolio_document(PORTFOLIO) | {"target": target, "terms": list(TERMS[:known])}
    del document["digest"]
    prices = [*document["families"].values(), *(each["prices"] for each in document["entries"])]
    for each in prices:
        del each[known:]
    read = read_portfolio(document)
    found = [*read.families.values(), *(each.prices for each in read.entries)]
    for each in found:
        # Of caches and words between rows nothing is usual.
        assert each[known:] == pytest.approx([sectors, 0.0, 0.0, 0.0, 0.0, ragged])
    assert read.entries[0].prices[:known] == PORTFOLIO.entries[0].prices[:known]


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(InputError, match=r"loss must be a finite number"):
        portfolio_document(replace(PORTFOLIO, loss=math.nan))


def test_the_cache_keeps_one_for_a_device_and_its_binaries(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    assert cache.portfolios("gemm", "cuda") == []
    cache.put_portfolio(PORTFOLIO, [CUBIN])
    cache.put_portfolio(replace(PORTFOLIO, dtype="float64"))
    newer = replace(PORTFOLIO, loss=0.02)
    cache.put_portfolio(newer)
    found = cache.portfolios("gemm", "cuda")
    assert sorted(found, key=lambda each: each.dtype) == [
        newer,
        replace(PORTFOLIO, dtype="float64"),
    ]
    assert cache.binary(ENTRY.binary or "") == CUBIN
    assert cache.portfolios("gemm", "cpu") == []
    # Removing records leaves it, and a portfolio without it lets it go.
    cache.delete(["no such record"])
    assert cache.binary(ENTRY.binary or "") == CUBIN
    other = tuple(replace(each, binary=None) for each in PORTFOLIO.entries)
    for dtype in ("float32", "float64"):
        cache.put_portfolio(replace(PORTFOLIO, dtype=dtype, entries=other))
    assert cache.binary(ENTRY.binary or "") is None


def test_a_damaged_one_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.put_portfolio(PORTFOLIO)
    cache.put_portfolio(replace(PORTFOLIO, dtype="float64"))
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE portfolios SET document = 'x' WHERE subject LIKE '%float64%'")
    assert cache.portfolios("gemm", "cuda") == [PORTFOLIO]
    assert "a portfolio is left out" in caplog.text
    cache.delete(["no such record"])  # and does not stand in the way


def test_folders_hold_them_beside_records(tmp_path: Path) -> None:
    folder = tmp_path / PORTFOLIO.fingerprint.slug
    folder.mkdir()
    lines = ['{"format": "autotune-records", "version": 1}']
    lines += [strict_json.line(portfolio_document(PORTFOLIO)), "{}"]
    (folder / "gemm.portfolio.jsonl").write_text("\n".join(lines))
    files = RecordFiles(tmp_path, "cuda", trusted=True)
    assert list(files.portfolios("gemm", "cuda")) == [PORTFOLIO]
    assert list(files.portfolios("gemm", "cpu")) == []
    assert list(RecordFiles(tmp_path, "cpu").portfolios("gemm", "cuda")) == []
