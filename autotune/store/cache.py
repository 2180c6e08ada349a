"""The user's cache: tuning records, winners' binaries and every measurement, in one file."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.core import arguments, checks
from autotune.core.errors import CacheError, InputError, UnknownNameError
from autotune.core.measurement import Outcome
from autotune.store import measured, schema, strict_json
from autotune.store.interchange import without_binaries
from autotune.store.measured import MeasuredProblem, StoredMeasurement
from autotune.store.portfolio import (
    PortfolioHead,
    decoded,
    portfolio_document,
    read_portfolio,
    subject_of,
)
from autotune.store.record import TuningRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.core.configuration import Candidate
    from autotune.core.device import DeviceFingerprint
    from autotune.core.measurement import Measurement
    from autotune.model.portfolio import Portfolio
    from autotune.operations.problem import Problem

_log = logging.getLogger(__name__)


class TuningCache:
    """Tuning records and measurements in one file that many processes may use at once.

    Nothing is opened or created before the first write; reading a cache that is not there finds
    nothing. No method ever removes or overwrites a file that it cannot read.

    Args:
        path: the SQLite file.
        timeout_s: how long to wait for another process's transaction, in seconds.
        read_only: whether it is only read, and no file may be made beside it.
        trusted: whether it may say what runs: its binaries, and how they are launched.

    Raises (every method):
        CacheError: the file is damaged, from a newer autotune, locked, or its place cannot be
            written; the message names the file and the remedy, and what is stored stays.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = 30.0,
        read_only: bool = False,
        trusted: bool = True,
    ) -> None:
        self.path = arguments.path("path", path)
        self._trusted = trusted
        self._timeout_s = timeout_s
        self._read_only = read_only

    def __repr__(self) -> str:
        return f"TuningCache({str(self.path)!r})"

    def check_writable(self) -> None:
        """Create the file if it is missing and make sure that it can be written to."""
        with schema.transaction(self.path, self._timeout_s) as connection:
            # A transaction that changes nothing would pass on a full or read-only disk.
            connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")

    def check_free(self) -> None:
        """Make sure that no other process keeps this one from writing; nothing is changed."""
        schema.check_free(self.path, self._timeout_s)

    def add(self, *records: TuningRecord, binaries: Iterable[bytes] = ()) -> int:
        """Store records in one transaction and return how many were new.

        A record that is there already (same id) is left as it is. The others of a key are
        kept: lookups take the best.

        Args:
            records: what to store.
            binaries: the binaries that these records name by digest.
        """
        with schema.transaction(self.path, self._timeout_s) as connection:
            _put_binaries(connection, binaries)
            return _put_records(connection, records)

    def put_portfolio(self, portfolio: Portfolio, binaries: Iterable[bytes] = ()) -> None:
        """Store a portfolio in place of the one for the same device and problems.

        Args:
            portfolio: what to store.
            binaries: the binaries that its entries name by digest.
        """
        with schema.transaction(self.path, self._timeout_s) as connection:
            _put_binaries(connection, binaries)
            _put_portfolio(connection, portfolio, "REPLACE")
            connection.execute(_DELETE_UNNAMED_BINARIES)

    def take(
        self, records: Iterable[TuningRecord], portfolios: Iterable[Portfolio]
    ) -> tuple[int, list[bool]]:
        """Store what an export holds in one transaction: all, or nothing if it fails.

        What is there already stays. Returns how many records were new, and for each portfolio
        whether it was.
        """
        with schema.transaction(self.path, self._timeout_s) as connection:
            new = _put_records(connection, records)
            return new, [_put_portfolio(connection, each, "IGNORE") for each in portfolios]

    def portfolio_heads(
        self, operation: str | None = None, target: str | None = None
    ) -> list[PortfolioHead]:
        """The portfolios that fit, of all devices, by what they are for; None fits all.

        One that cannot be read is logged and left out.
        """
        found = []
        for document in self.portfolio_documents(operation, target):
            try:
                head = PortfolioHead.of(
                    subject_of(document), str(self.path), functools.partial(_portfolio, document)
                )
            except InputError as error:
                _log.warning("%s: a portfolio is left out: %s", self.path, error)
            else:
                found.append(head if self._trusted else head.without_binaries())
        return found

    def portfolios(
        self, operation: str | None = None, target: str | None = None
    ) -> list[Portfolio]:
        """Like `portfolio_heads`, decoded."""
        return decoded(self.portfolio_heads(operation, target))

    def portfolio_documents(
        self, operation: str | None = None, target: str | None = None
    ) -> list[str]:
        """Like `portfolios`, as JSON text that nothing has checked."""
        where, values = _where(operation=operation, target=target)
        query = f"SELECT document FROM portfolios{where} ORDER BY rowid"
        return [document for (document,) in self._read(query, values, since=3)]

    def binary(self, digest: str) -> bytes | None:
        """The binary with this SHA-256; None where there is none, or only a damaged one."""
        if not self._trusted:
            return None
        query = "SELECT CAST(content AS BLOB) FROM binaries WHERE digest = ?"
        for (content,) in self._read(query, (digest,), since=2):
            if hashlib.sha256(content).hexdigest() == digest:
                return bytes(content)
            _log.warning("%s: binary %s is damaged and left out", self.path, digest)
        return None

    def records(
        self,
        fingerprint_digest: str | None = None,
        operation: str | None = None,
        target: str | None = None,
    ) -> list[TuningRecord]:
        """The records that fit, newest first; None fits all.

        A stored record that cannot be read is logged and left out: `autotune cache verify`
        lists those.
        """
        return self._checked(self.documents(fingerprint_digest, operation, target))

    def of_problem(
        self, fingerprint: str, operation: str, problem: str, target: str
    ) -> list[TuningRecord]:
        """The records of one problem on one device, newest first; others are not read.

        Args:
            fingerprint: digest of the device's fingerprint.
            operation: the operation's name.
            problem: the problem's key as canonical JSON.
            target: where it runs.
        """
        return self._checked(self.documents(fingerprint, operation, target, problem))

    def problems(self, operation: str, target: str) -> list[tuple[str, str]]:
        """The problems of records: digest of the fingerprint, problem as canonical JSON."""
        query = (
            "SELECT DISTINCT fingerprint, problem FROM records WHERE operation = ? AND target = ?"
        )
        return [(str(row[0]), str(row[1])) for row in self._read(query, (operation, target))]

    def documents(
        self,
        fingerprint_digest: str | None = None,
        operation: str | None = None,
        target: str | None = None,
        problem: str | None = None,
    ) -> list[tuple[str, str]]:
        """Like `records`, as (id, JSON text) pairs that nothing has checked."""
        where, values = _where(
            fingerprint=fingerprint_digest, operation=operation, target=target, problem=problem
        )
        query = f"SELECT id, document FROM records{where} ORDER BY created DESC, rowid DESC"
        return [(id_, document) for id_, document in self._read(query, values)]

    def get(self, id_prefix: str) -> TuningRecord:
        """The one record whose id begins with `id_prefix`.

        Raises:
            UnknownNameError: no record's id begins so, or several do.
        """
        query = "SELECT id, document FROM records WHERE substr(id, 1, ?) = ? ORDER BY id"
        rows = self._read(query, (len(id_prefix), id_prefix))
        if len(rows) > 1:
            ids = ", ".join(id_ for id_, _ in rows[:4]) + (", ..." if len(rows) > 4 else "")
            raise UnknownNameError(
                f"record id {id_prefix!r} is ambiguous ({ids}): give more of its digits"
            )
        if not rows:
            raise UnknownNameError(
                f"no record {id_prefix!r} in {self.path}: `autotune cache list` shows those "
                "there are"
            )
        [[id_, document]] = rows
        try:
            return self._taken(_record(document))
        except InputError as error:
            raise CacheError(f"{self.path}: record {id_} cannot be read: {error}") from error

    def delete(self, ids: Iterable[str]) -> int:
        """Remove the records with these full ids and return how many there were.

        Binaries that no record names any more go with them.
        """
        wanted = [(id_,) for id_ in ids]
        if not wanted or not self.path.exists():
            return 0
        with schema.transaction(self.path, self._timeout_s) as connection:
            count = connection.executemany("DELETE FROM records WHERE id = ?", wanted).rowcount
            connection.execute(_DELETE_UNNAMED_BINARIES)
            return count

    def add_measurements(
        self,
        study: str,
        fingerprint: DeviceFingerprint,
        problem: Problem,
        target: str,
        rows: Iterable[tuple[Candidate, Measurement]],
    ) -> None:
        """Store what came of trials, failures too, in one transaction.

        What is there already is left as it is: a study's measurements may be given again.
        """
        values = list(measured.rows(study, fingerprint, problem, target, rows))
        with schema.transaction(self.path, self._timeout_s) as connection:
            connection.executemany(measured.ADD, values)

    def measurements(
        self,
        study: str | None = None,
        fingerprint_digest: str | None = None,
        problem: Problem | Mapping[str, Any] | None = None,
        target: str | None = None,
    ) -> list[StoredMeasurement]:
        """The measurements that fit, in the order they were stored; None fits all.

        A problem may be given by its fields.
        """
        key = problem if problem is None or isinstance(problem, Mapping) else problem.key()
        where, values = _where(
            study=study,
            fingerprint=fingerprint_digest,
            operation=getattr(problem, "operation", None),
            problem=None if key is None else strict_json.canonical(key),
            target=target,
        )
        query = f"SELECT {measured.COLUMNS} FROM measurements{where} ORDER BY number"
        try:
            return [measured.stored(row) for row in self._read(query, values)]
        except (ValueError, TypeError, RecursionError) as error:
            raise CacheError(f"{self.path}: a measurement cannot be read: {error}") from error

    def studies(self) -> list[str]:
        """Names of the studies of which there are measurements, the newest last."""
        query = "SELECT study FROM measurements GROUP BY study ORDER BY max(number)"
        return [str(study) for (study,) in self._read(query, ())]

    def measured_problems(self, operation: str, target: str) -> list[MeasuredProblem]:
        """The problems of measurements, for one operation and target."""
        query = (
            "SELECT fingerprint, problem, count(*) FROM measurements WHERE operation = ? "
            "AND target = ? AND outcome = ? GROUP BY fingerprint, problem"
        )
        try:
            return [
                MeasuredProblem(fingerprint, strict_json.parse(problem), count)
                for fingerprint, problem, count in self._read(
                    query, (operation, target, Outcome.OK.value)
                )
            ]
        except ValueError as error:
            raise CacheError(f"{self.path}: a measurement cannot be read: {error}") from error

    def count_measurements(self, *, before: str) -> int:
        """The number of measurements that were stored before a moment (UTC, ISO 8601)."""
        query = "SELECT count(*) FROM measurements WHERE created < ?"
        return sum(count for (count,) in self._read(query, (checks.moment("before", before),)))

    def delete_measurements(self, *, before: str) -> int:
        """Remove the measurements stored before a moment and return how many there were."""
        moment = checks.moment("before", before)
        if not self.path.exists():
            return 0
        with schema.transaction(self.path, self._timeout_s) as connection:
            statement = "DELETE FROM measurements WHERE created < ?"
            return connection.execute(statement, (moment,)).rowcount

    def damage(self) -> list[str]:
        """The faults of the file; none for a sound one.

        SQLite looks at its pages and indices; a binary has to have its digest, and a record to lie
        under its own key, where it is looked for. Documents that cannot be read are not told:
        `autotune cache verify` lists those.
        """
        lines = [line for (line,) in self._read("PRAGMA integrity_check", ()) if line != "ok"]
        for digest, content in self._read(
            "SELECT digest, CAST(content AS BLOB) FROM binaries", (), since=2
        ):
            if hashlib.sha256(content).hexdigest() != digest:
                lines.append(f"binary {digest} is damaged: tune its problem again")
        query = "SELECT id, fingerprint, operation, problem, target, document FROM records"
        for id_, *key, document in self._read(query, ()):
            with contextlib.suppress(InputError):
                if (record := _record(document)).key != tuple(key):
                    lines.append(f"record {id_} is not found by its key {record.key[1:]}")
        return lines

    def _checked(self, documents: Iterable[tuple[str, str]]) -> list[TuningRecord]:
        found = []
        for id_, document in documents:
            try:
                found.append(self._taken(_record(document)))
            except InputError as error:
                _log.warning("%s: record %s is left out: %s", self.path, id_, error)
        return found

    def _taken(self, record: TuningRecord) -> TuningRecord:
        return record if self._trusted else without_binaries(record)

    def _read(
        self, query: str, values: tuple[object, ...], *, since: int = 1
    ) -> list[tuple[Any, ...]]:
        return schema.read(
            self.path, query, values, self._timeout_s, since=since, read_only=self._read_only
        )


# A document that is not JSON names nothing.
_DELETE_UNNAMED_BINARIES = """
    DELETE FROM binaries WHERE digest NOT IN (
        SELECT coalesce(CASE WHEN json_valid(document) THEN json_extract(document, path) END, '')
        FROM records, (SELECT '$.binary.digest' AS path UNION SELECT '$.binary.support')
        UNION SELECT coalesce(json_extract(entry.value, place), '')
        FROM portfolios, json_each(portfolios.document, '$.entries') AS entry,
            (SELECT '$.binary' AS place UNION SELECT '$.support')
        WHERE json_valid(portfolios.document)
    )
"""


def _put_records(connection: sqlite3.Connection, records: Iterable[TuningRecord]) -> int:
    """Store records that are not there, and return how many those were."""
    rows = [
        (record.id, *record.key, record.created, strict_json.line(record.to_json()))
        for record in records
    ]
    return connection.executemany(
        "INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows
    ).rowcount


def _put_portfolio(connection: sqlite3.Connection, portfolio: Portfolio, verb: str) -> bool:
    """Store a portfolio and say whether it was; `verb` is what is done with one that is there."""
    key = (portfolio.fingerprint.digest, portfolio.operation, portfolio.target)
    subject = strict_json.canonical(
        [portfolio.dtype, portfolio.out_dtype, portfolio.accuracy, portfolio.threads]
    )
    row = (*key, subject, strict_json.line(portfolio_document(portfolio)))
    sql = f"INSERT OR {verb} INTO portfolios VALUES (?, ?, ?, ?, ?)"
    return connection.execute(sql, row).rowcount > 0


def _put_binaries(connection: sqlite3.Connection, binaries: Iterable[bytes]) -> None:
    """Store binaries by their digests. One that is there is replaced: it may be damaged."""
    contents = [(hashlib.sha256(content).hexdigest(), content) for content in binaries]
    connection.executemany("INSERT OR REPLACE INTO binaries VALUES (?, ?)", contents)


def _where(**wanted: str | None) -> tuple[str, tuple[str, ...]]:
    given = {column: value for column, value in wanted.items() if value is not None}
    clause = " AND ".join(f"{column} = ?" for column in given)
    return (f" WHERE {clause}" if clause else ""), tuple(given.values())


@functools.lru_cache(maxsize=4096)
def _record(document: str) -> TuningRecord:
    return TuningRecord.from_json(strict_json.parse(document))


def _portfolio(document: str) -> Portfolio:
    return read_portfolio(strict_json.parse(document))
