"""Ranking: the better of several records of a problem, and those nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from autotune.store import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.store.record import RecordKey, TuningRecord

Preference: TypeAlias = "Callable[[TuningRecord], tuple[bool, bool, float]]"
"""A sort key; the record that it puts first is the best."""


def preference(records: Iterable[TuningRecord]) -> Preference:
    """A sort key of records that fit equally well: the fastest first, never merely the newest.

    Times of two runs were taken under two conditions. Where two records were measured in turns,
    in one run, that decides; elsewhere a record that nothing disturbed comes before one that is
    noisy, and then the higher rate.

    Args:
        records: all those that are to be ordered.
    """
    beaten = _beaten(records)
    return lambda record: (
        bool(beaten) and record.id in beaten,
        record.noisy,
        -record.gflops,
    )


def superseded(
    records: Iterable[TuningRecord], current: Callable[[TuningRecord], bool] = lambda record: True
) -> list[TuningRecord]:
    """The records that never serve, since a better one of the same key always fits as well.

    A faster record is never among them for being old, nor is one that may still fit where the
    faster one does not.

    Args:
        records: what there is; the order is kept.
        current: whether the family of a record, and what compiles it, are as they were when it was
            made; False where that is not known.
    """
    records = list(records)
    order = preference(records)
    # Best first; the first that is current, and the first of each make, come before all others.
    newest = sorted(records, key=lambda record: record.created, reverse=True)
    fits: dict[tuple[RecordKey, bool], TuningRecord] = {}
    alike: dict[tuple[object, str], TuningRecord] = {}
    stale: dict[str, tuple[object, str]] = {}
    for record in sorted(newest, key=order):
        if current(record):
            fits.setdefault(_subject(record), record)
        else:
            stale[record.id] = make = _subject(record), _made_of(record)
            alike.setdefault(make, record)

    def comes_before(better: TuningRecord | None, record: TuningRecord) -> bool:
        if better is None:
            return False
        one, other = order(better), order(record)
        return one < other or (one == other and better.created > record.created)

    return [
        record
        for record in records
        if comes_before(fits.get(_subject(record)), record)
        or (record.id in stale and comes_before(alike[stale[record.id]], record))
    ]


def _subject(record: TuningRecord) -> tuple[RecordKey, bool]:
    """The subject in which records compete: times in calls are not those of finals."""
    return record.key, record.is_light


def _made_of(record: TuningRecord) -> str:
    made = [record.candidate.family, record.family_digest, dict(record.toolchain)]
    return strict_json.canonical(made)


def _beaten(records: Iterable[TuningRecord]) -> set[str]:
    """Ids of the records that lost in turns to another of these; the latest turns count."""
    records = list(records)
    told = [record for record in records if record.beat or record.lost_to]
    if not told:
        return set()
    loser: dict[frozenset[str], str] = {}
    for record in sorted(told, key=lambda record: record.created):
        own = record.id
        loser |= {frozenset((own, other)): other for other in record.beat}
        loser |= {frozenset((own, other)): own for other in record.lost_to}
    there = {record.id for record in records}
    return {lost for pair, lost in loser.items() if pair <= there}
