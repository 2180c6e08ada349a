"""The contract of a cache, and of the file behind it when things go wrong."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from records import FINGERPRINT, record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import CacheError, UnknownNameError
from autotune.core.measurement import Measurement, Outcome
from autotune.operations.problem import Gemm
from autotune.store import TuningCache, TuningRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OTHER = DeviceFingerprint("cpu", "Other CPU", {"vendor": "Other"})
PROBLEM = Gemm(64, 64, 64)
CANDIDATE = Candidate("blocked", Configuration({"sm": 64, "order": "ikj", "x": 0.5, "y": True}))
MEASUREMENTS = [
    (CANDIDATE, Measurement(Outcome.OK, 1e-3, (0.9e-3, 1.1e-3), 40, 0.02, details={"warm": 0.5})),
    (CANDIDATE, Measurement(Outcome.WRONG_RESULT, error=float("inf"), reason="C[3, 4] is off")),
    (CANDIDATE, Measurement(Outcome.ABANDONED, 2e-3, (1e-3, 3e-3), 3)),
    (CANDIDATE, Measurement(Outcome.TIMEOUT, reason="killed after 10 s")),
]


class CacheContract:
    """What every cache does; a subclass gives the fixture `cache`: empty, not yet created."""

    connect = staticmethod(sqlite3.connect)
    """How the processes of a test open the file."""

    def test_reading_creates_nothing(self, cache: TuningCache) -> None:
        assert cache.records() == []
        assert cache.measurements() == []
        assert cache.damage() == []
        assert cache.delete(["0" * 12]) == 0
        assert cache.delete_measurements(before="2100-01-01T00:00:00Z") == 0
        with pytest.raises(UnknownNameError):
            cache.get("0")
        assert not cache.path.exists()

    def test_records_come_back_newest_first(self, cache: TuningCache) -> None:
        days = [2, 3, 1]
        records = {day: record(64 * day, created=f"2026-01-0{day}T00:00:00Z") for day in days}
        assert cache.add(*records.values()) == 3
        assert cache.records() == [records[3], records[2], records[1]]

    def test_between_records_of_one_moment_the_last_added_is_newest(
        self, cache: TuningCache
    ) -> None:
        for median in (3.0, 1.0, 2.0):
            cache.add(record(median_s=median))
        assert [stored.median_s for stored in cache.records()] == [2.0, 1.0, 3.0]

    def test_every_record_of_a_key_is_kept(self, cache: TuningCache) -> None:
        cache.add(record(median_s=2.0))
        cache.add(record(median_s=1.0))
        assert len(cache.records()) == 2

    def test_adding_again_changes_nothing(self, cache: TuningCache) -> None:
        assert cache.add(record(), record(128)) == 2
        assert cache.add(record(), record(256)) == 1
        assert len(cache.records()) == 3
        assert cache.add() == 0

    def test_records_are_filtered(self, cache: TuningCache) -> None:
        here, there = record(), record(fingerprint=OTHER)
        gpu, conv = record(target="cuda"), record(operation="conv")
        cache.add(here, there, gpu, conv)
        assert set(_ids(cache, OTHER.digest)) == {there.id}
        assert set(_ids(cache, None, "conv")) == {conv.id}
        assert set(_ids(cache, None, None, "cuda")) == {gpu.id}
        assert set(_ids(cache, FINGERPRINT.digest, "gemm", "cpu")) == {here.id}
        assert _ids(cache, "none") == []

    def test_get_by_prefix(self, cache: TuningCache) -> None:
        records = [record(m) for m in range(1, 40)]
        cache.add(*records)
        for stored in records:
            assert cache.get(stored.id) == stored
        firsts = [stored.id[0] for stored in records]
        repeated = next(digit for digit in firsts if firsts.count(digit) > 1)
        with pytest.raises(UnknownNameError, match=f"'{repeated}' is ambiguous"):
            cache.get(repeated)
        with pytest.raises(UnknownNameError, match="ambiguous"):
            cache.get("")
        with pytest.raises(UnknownNameError, match=r"no record '%'.*cache list"):
            cache.get("%")

    def test_delete(self, cache: TuningCache) -> None:
        cache.add(record(), record(128))
        assert cache.delete([record().id, "0" * 12]) == 1
        assert cache.records() == [record(128)]
        assert cache.delete([]) == 0

    def test_measurements_come_back_in_order(self, cache: TuningCache) -> None:
        cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS)
        stored = cache.measurements()
        assert [(row.candidate, row.measurement) for row in stored] == MEASUREMENTS
        assert type(stored[0].candidate.configuration["y"]) is bool
        assert {row.study for row in stored} == {"study"}
        assert {row.fingerprint for row in stored} == {FINGERPRINT.digest}
        assert stored[0].problem == PROBLEM.key()
        assert (stored[0].operation, stored[0].target) == ("gemm", "cpu")

    def test_measurements_that_are_there_are_not_stored_again(self, cache: TuningCache) -> None:
        cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS[1:])
        cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS)
        cache.add_measurements("another", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS)
        stored = [(row.candidate, row.measurement) for row in cache.measurements("study")]
        assert stored == [*MEASUREMENTS[1:], MEASUREMENTS[0]]
        assert len(cache.measurements("another")) == len(MEASUREMENTS)

    def test_measurements_are_filtered(self, cache: TuningCache) -> None:
        cache.add_measurements("one", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS[:1])
        cache.add_measurements("two", OTHER, Gemm(1, 2, 3), "cuda", MEASUREMENTS[1:])
        assert len(cache.measurements()) == 4
        assert len(cache.measurements("one")) == 1
        assert len(cache.measurements(fingerprint_digest=OTHER.digest)) == 3
        assert len(cache.measurements(problem=PROBLEM)) == 1
        assert len(cache.measurements(target="cuda")) == 3
        assert cache.measurements("one", target="cuda") == []

    def test_a_batch_is_stored_whole_or_not_at_all(self, cache: TuningCache) -> None:
        cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS[:1])
        unstorable = (CANDIDATE, Measurement(Outcome.OK, repeats=2**70))
        with pytest.raises(OverflowError):
            cache.add_measurements(
                "study", FINGERPRINT, PROBLEM, "cpu", [*MEASUREMENTS, unstorable]
            )
        assert len(cache.measurements()) == 1

    def test_old_measurements_can_be_dropped(self, cache: TuningCache) -> None:
        cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS)
        created = cache.measurements()[0].created
        for before, count in ((created, 0), ("2999-01-01T00:00:00+01:00", 4)):
            assert cache.count_measurements(before=before) == count
            assert cache.delete_measurements(before=before) == count
        assert cache.measurements() == []

    def test_check_writable_leaves_an_empty_cache(self, cache: TuningCache) -> None:
        cache.check_writable()
        assert cache.path.exists()
        assert cache.records() == []
        assert cache.damage() == []

    def test_a_second_handle_sees_what_the_first_wrote(self, cache: TuningCache) -> None:
        second = TuningCache(cache.path)
        assert second.records() == []
        cache.add(record())
        assert second.records() == [record()]

    def test_processes_that_write_at_once_lose_nothing(self, cache: TuningCache) -> None:
        context = multiprocessing.get_context("spawn")
        arguments = [(cache.path, worker, self.connect) for worker in range(3)]
        workers = [context.Process(target=_write, args=each) for each in arguments]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            # Reading meanwhile must neither fail nor see half a transaction.
            assert len(cache.measurements()) % 2 == 0
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert len(cache.records()) == 3 * _WRITES
        assert len(cache.measurements()) == 3 * _WRITES * 2
        assert cache.damage() == []


_WRITES = 50


def _write(
    path: Path, worker: int, connect: Callable[..., sqlite3.Connection] = sqlite3.connect
) -> None:
    sqlite3.connect = connect
    cache = TuningCache(path)
    for write in range(_WRITES):
        cache.add(record(m=worker + 1, n=write + 1))
        cache.add_measurements(f"{worker} {write}", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS[:2])


def _ids(cache: TuningCache, *wanted: str | None) -> list[str]:
    return [stored.id for stored in cache.records(*wanted)]


class TestTuningCache(CacheContract):
    @pytest.fixture
    def cache(self, tmp_path: Path) -> TuningCache:
        return TuningCache(tmp_path / "new folder" / "50% #1?.sqlite")

    def test_uses_a_write_ahead_log(self, cache: TuningCache) -> None:
        cache.check_writable()
        assert _journal_mode(cache.path) == "wal"


_connect = sqlite3.connect


def _connect_without_shared_memory(place: str, **options: Any) -> sqlite3.Connection:
    """Like a network file system: locks by files, no shared memory, no write-ahead log."""
    return _connect(f"{place}&vfs=unix-dotfile", **options)


class TestTuningCacheWithoutWriteAheadLog(CacheContract):
    connect = staticmethod(_connect_without_shared_memory)

    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningCache:
        monkeypatch.setattr(sqlite3, "connect", self.connect)
        return TuningCache(tmp_path / "tuning.sqlite")

    def test_falls_back_to_the_default_journal(self, cache: TuningCache) -> None:
        cache.add(record())
        assert _journal_mode(cache.path) == "delete"


def _journal_mode(path: Path) -> Any:
    with closing(_connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


def _operations(path: Path) -> list[Callable[[], object]]:
    """Everything that opens the file at `path`: reads first, then writes."""
    cache = TuningCache(path, timeout_s=0.1)
    return [
        cache.records,
        cache.measurements,
        cache.damage,
        lambda: cache.get("0"),
        cache.check_writable,
        lambda: cache.add(record()),
        lambda: cache.add_measurements("s", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS),
        lambda: cache.delete(["0"]),
        lambda: cache.delete_measurements(before="2100-01-01T00:00:00Z"),
    ]


def _refusal(operation: Callable[[], object]) -> str:
    with pytest.raises(CacheError) as caught:
        operation()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _sql(path: Path, *statements: str) -> None:
    with closing(_connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "content", [b"not a database " * 100, b"SQLite format 3\x00" + b"\xff" * 4096, b"x"]
)
def test_damaged_file_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tuning.sqlite"
    path.write_bytes(content)
    for operation in _operations(path):
        message = _refusal(operation)
        assert message.startswith(f"{path} is damaged or not a cache")
        assert "the file was left as it is" in message
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_damage_inside_is_found(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(*(record(m) for m in range(1, 200)))
    _sql(
        cache.path,
        "PRAGMA writable_schema = 1",
        "DELETE FROM sqlite_master WHERE name = 'records_by_key'",
    )
    assert any("never used" in line for line in cache.damage())


@pytest.mark.parametrize("column", ["fingerprint", "operation", "problem", "target"])
def test_a_record_that_is_not_found_by_its_key_is_damage(tmp_path: Path, column: str) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record(), record(128))
    assert cache.damage() == []
    _sql(cache.path, f"UPDATE records SET {column} = 'x' WHERE id = '{record().id}'")
    (told,) = cache.damage()
    assert told.startswith(f"record {record().id} is not found by its key ('gemm', ")


def test_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    TuningCache(path).add(record())
    _sql(path, "PRAGMA journal_mode = DELETE", "PRAGMA user_version = 7")
    content = path.read_bytes()
    for operation in _operations(path):
        assert _refusal(operation) == (
            f"{path} was written by a newer autotune (schema 7, this one knows 4): "
            "upgrade autotune or use --cache elsewhere"
        )
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 1])
def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "photos.sqlite"
    _sql(path, "CREATE TABLE records (id)", f"PRAGMA user_version = {version}")
    content = path.read_bytes()
    for operation in _operations(path):
        assert "is an SQLite database of another program" in _refusal(operation)
    assert path.read_bytes() == content


def test_empty_file_becomes_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    path.touch()
    cache = TuningCache(path)
    assert cache.records() == []
    assert path.stat().st_size == 0
    assert cache.add(record()) == 1


def test_place_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "tuning.sqlite"
    reads, writes = _operations(path)[:3], _operations(path)[4:7]
    assert [read() for read in reads] == [[], [], []]
    for write in writes:
        assert _refusal(write).startswith(f"cannot create the cache folder {path.parent} ")


def test_place_of_a_folder(tmp_path: Path) -> None:
    for operation in _operations(tmp_path):
        assert _refusal(operation).startswith(f"cannot use the cache {tmp_path} (Is a directory)")


def test_place_of_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    os.mkfifo(path)
    for operation in _operations(path):
        assert _refusal(operation).startswith(f"cannot use the cache {path} (not a regular file)")


def test_locked_for_too_long(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    TuningCache(path).add(record())
    with closing(_connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        impatient = TuningCache(path, timeout_s=0.05)
        assert impatient.records() == [record()]  # a writer does not keep readers out
        message = _refusal(lambda: impatient.add(record(128)))
        assert message.startswith(f"{path} is locked by another process")
        holder.execute("COMMIT")
        assert impatient.add(record(128)) == 1


def test_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.sqlite"
    cache = TuningCache(path)
    cache.add(record())

    def connect_to_a_full_disk(place: str, **options: Any) -> sqlite3.Connection:
        connection = _connect(place, **options)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite raises it to the present size
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_a_full_disk)
    with pytest.raises(CacheError, match=rf"^cannot write {path}: the disk is full"):
        cache.add(*(record(m) for m in range(1, 1000)))
    with pytest.raises(CacheError, match="the disk is full"):
        TuningCache(tmp_path / "new.sqlite").add(record())
    monkeypatch.undo()
    assert cache.records() == [record()]
    assert cache.damage() == []


def test_write_that_fails_half_way_loses_nothing(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record())
    # The kernel refuses to let files grow: what a quota or a full network disk look like.
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from records import record; from autotune.store import TuningCache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "TuningCache(Path(sys.argv[1])).add(*(record(m) for m in range(1, 1000)))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(cache.path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 1
    assert "autotune.core.errors.CacheError: cannot " in child.stderr
    assert cache.records() == [record()]
    assert cache.damage() == []


def test_process_killed_amid_writes_loses_only_its_last_transaction(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(path, 0))
    writer.start()
    cache = TuningCache(path)
    while len(seen := cache.records()) < 20:
        assert writer.is_alive()
    writer.kill()
    writer.join()
    assert set(map(_id, seen)) <= set(map(_id, cache.records()))
    assert cache.damage() == []
    assert cache.add(record(m=999)) == 1


def test_read_only_media_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record())
    opened = []

    def connect_to_read_only_media(place: str, **options: Any) -> sqlite3.Connection:
        # What SQLite meets where neither the file nor a log beside it can be written.
        opened.append(place.rpartition("?")[2])
        if "immutable" not in place:
            return _connect(f"{place.rpartition('?')[0]}/unreachable?mode=rw", **options)
        return _connect(place, **options)

    monkeypatch.setattr(sqlite3, "connect", connect_to_read_only_media)
    assert cache.records() == [record()]
    assert opened == ["mode=rw", "mode=ro&immutable=1"]
    assert "for a writable place" in _refusal(lambda: cache.add(record(128)))


def test_a_database_is_read_as_it_lies_only_where_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record())
    opened = []

    def connect(place: str, **options: Any) -> sqlite3.Connection:
        opened.append(place.rpartition("?")[2])
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    monkeypatch.setattr(sqlite3, "connect", connect)
    assert "check the disk" in _refusal(cache.records)
    assert opened == ["mode=rw", "mode=ro&immutable=1"]  # a full disk has room for no log
    cache.path.with_name("tuning.sqlite-wal").write_bytes(b"what was not written yet")
    assert "check the disk" in _refusal(cache.records)
    assert opened[2:] == ["mode=rw"]  # as immutable it might be read amid somebody's writing


def test_a_disk_that_takes_nothing_is_found_before_there_is_something(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record())
    script = (
        "import resource, sys; from pathlib import Path; from autotune.store import TuningCache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))\n"
        "TuningCache(Path(sys.argv[1])).check_writable()\n"
    )
    with closing(_connect(cache.path)) as holder:  # the log stays, and grows beyond the limit
        holder.execute("SELECT count(*) FROM records").fetchall()
        cache.add(*(record(m) for m in range(1, 50)))
        assert cache.path.with_name("tuning.sqlite-wal").stat().st_size > 32768
        command = [sys.executable, "-c", script, str(cache.path)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 1, "a transaction that changes nothing would pass"
    assert "autotune.core.errors.CacheError: cannot " in child.stderr
    assert len(cache.records()) == 50


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW more AS WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) "
        "SELECT x FROM t",
        "CREATE TRIGGER more AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "CREATE VIRTUAL TABLE more USING fts4(text)",
    ],
    ids=["view", "trigger", "virtual table"],
)
def test_a_schema_that_runs_something_is_refused(tmp_path: Path, statement: str) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record())
    _sql(cache.path, statement)
    before = cache.path.read_bytes()
    for work in (cache.records, cache.portfolios, lambda: cache.add(record(128))):
        assert "has views, triggers or virtual tables" in _refusal(work)
    assert cache.path.read_bytes() == before


def test_values_of_strangers_have_a_size_and_a_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(*(record(m) for m in (1, 2, 3, 4)))
    for m, value in ((1, "CAST(x'ff7b7d' AS TEXT)"), (2, "x'7b7d'"), (3, "'[]'")):
        _sql(cache.path, f"UPDATE records SET document = {value} WHERE id = '{record(m).id}'")
    assert cache.records() == [record(4)]
    assert len(caplog.messages) == 3
    _sql(cache.path, "UPDATE records SET document = zeroblob(100000000)")
    assert "too big" in _refusal(cache.records)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("problem", "'[]'"),
        ("configuration", """'{"sm": [1]}'"""),
        ("configuration", "'[[]]'"),
        ("details", "x'00'"),
        ("details", f"'{'[' * 20_000}'"),
        ("median_s", "'long'"),
        ("interval_low_s", "-1.0"),
    ],
)
def test_measurements_of_strangers_are_checked(tmp_path: Path, column: str, value: str) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS)
    _sql(cache.path, f"UPDATE measurements SET {column} = {value} WHERE number = 1")
    assert "a measurement cannot be read" in _refusal(cache.measurements)


def test_unreadable_rows_do_not_hide_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = TuningCache(tmp_path / "tuning.sqlite")
    cache.add(record(), record(128))
    broken = record(128).id
    _sql(cache.path, f"UPDATE records SET document = '{{' WHERE id = '{broken}'")
    assert cache.records() == [record()]
    assert f"record {broken} is left out: not valid JSON" in caplog.text
    assert f"record {broken} cannot be read" in _refusal(lambda: cache.get(broken))
    assert [id_ for id_, _ in cache.documents()].count(broken) == 1
    cache.add_measurements("study", FINGERPRINT, PROBLEM, "cpu", MEASUREMENTS)
    _sql(cache.path, "UPDATE measurements SET outcome = 'vanished' WHERE number = 2")
    assert "a measurement cannot be read: 'vanished'" in _refusal(cache.measurements)


def _id(stored: TuningRecord) -> str:
    return stored.id
