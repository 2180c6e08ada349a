"""Sources of records that are read once, for look-ups of many problems in one process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from autotune.store.sources import record_sources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.model import Portfolio
    from autotune.store.record import TuningRecord
    from autotune.store.sources import RecordSource

State = tuple[tuple[int, int], ...]


class KeptSource:
    """A source that is asked once for everything.

    Args:
        source: what is asked.
    """

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self._problems: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
        self._records: dict[tuple[str, str, str, str], tuple[TuningRecord, ...]] = {}
        self._binaries: dict[str, bytes | None] = {}
        self._portfolios: dict[tuple[str, str], tuple[Portfolio, ...]] = {}

    def problems(self, operation: str, target: str) -> dict[tuple[str, str], None]:
        """See `RecordSource.problems`."""
        key = operation, target
        if key not in self._problems:
            self._problems[key] = dict.fromkeys(self._source.problems(operation, target))
        return self._problems[key]

    def of_problem(
        self, fingerprint: str, operation: str, problem: str, target: str
    ) -> Sequence[TuningRecord]:
        """See `RecordSource.of_problem`; what there are no records of is not looked for."""
        if (fingerprint, problem) not in self.problems(operation, target):
            return ()
        key = fingerprint, operation, problem, target
        if key not in self._records:
            self._records[key] = tuple(self._source.of_problem(*key))
        return self._records[key]

    def binary(self, digest: str) -> bytes | None:
        """See `RecordSource.binary`."""
        if digest not in self._binaries:
            self._binaries[digest] = self._source.binary(digest)
        return self._binaries[digest]

    def portfolios(self, operation: str, target: str) -> Sequence[Portfolio]:
        """See `RecordSource.portfolios`."""
        key = operation, target
        if key not in self._portfolios:
            self._portfolios[key] = tuple(self._source.portfolios(operation, target))
        return self._portfolios[key]


def kept_sources(database: Path, kind: str) -> list[RecordSource]:
    """All sources there are; arguments are those of `record_sources`."""
    return [KeptSource(each) for each in record_sources(database, kind)]


def state_of(database: Path) -> State:
    """What changes when a database is written: times and sizes of its file and of its log.

    A log with nothing in it comes and goes with those who only read.
    """
    return tuple(_state(f"{database}{suffix}") for suffix in ("", "-wal"))


def _state(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of making a Path
    except OSError:
        return 0, 0
    return (status.st_mtime_ns, status.st_size) if status.st_size else (0, 0)
