"""Files of records by what their lines are of: a line is checked when it is asked for.

A file may have many thousand records of which a process wants a few. An index says where in the
file the records of each problem and device are. It goes by what a line says of itself: whoever
takes a record from it holds the record's own key against the one that was asked for.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from autotune.core import session
from autotune.core.checks import checked
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import InputError
from autotune.core.reading import open_regular
from autotune.model.portfolio import Portfolio
from autotune.store import strict_json
from autotune.store.interchange import LINE_LIMIT, parse_line, placed_lines
from autotune.store.record import TuningRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.core.facts import Stamp
    from autotune.store.interchange import Stored

Kind: TypeAlias = tuple[str, str]
"""Operation and target."""

Key: TypeAlias = tuple[str, str]
"""Digest of the fingerprint, and problem as canonical JSON."""


class Place(NamedTuple):
    """Where a line is: its number, and the byte that it begins at."""

    number: int
    begin: int


class Index(NamedTuple):
    """Where in a file everything is.

    Attributes:
        records: the places of the records, by key.
        portfolios: the places of the portfolios.
    """

    records: Mapping[Kind, Mapping[Key, Sequence[Place]]]
    portfolios: Mapping[Kind, Sequence[Place]]


_log = logging.getLogger(__name__)

_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_FLAT = rf'\{{[^{{}}"]*(?:{_TEXT}[^{{}}"]*)*\}}'
# As `TuningRecord.to_json` writes them: a quote within a text has a backslash before it, so that
# none of this is ever found in the middle of one.
_SUBJECT = re.compile(rf'"operation": ({_TEXT}), "problem": ({_FLAT}), "target": ({_TEXT})')
_DEVICE = re.compile(
    rf'"fingerprint": (\{{"kind": {_TEXT}, "name": {_TEXT}, "fields": {_FLAT}\}})'
)


@session.cached(most=64)
def index_of(stamp: Stamp) -> Index:
    """The index of a file as it was; lines that say nothing of themselves are logged."""
    file = Path(stamp[0])
    records: defaultdict[Kind, dict[Key, list[Place]]] = defaultdict(dict)
    portfolios: defaultdict[Kind, list[Place]] = defaultdict(list)
    unread: list[str] = []
    try:
        for number, begin, line in placed_lines(file):
            try:
                kind, key = _written(line) or _said(line)
            except (InputError, ValueError, RecursionError) as error:
                unread.append(f"{file}:{number}: left out: {error}")
                continue
            if key is None:
                portfolios[kind].append(Place(number, begin))
            else:
                records[kind].setdefault(key, []).append(Place(number, begin))
    except InputError as error:
        unread.append(f"the rest is left out: {error}")
    for told in unread[:_TOLD]:
        _log.warning("%s", told)
    if len(unread) > _TOLD:
        _log.warning("%s: %d more lines are left out", file, len(unread) - _TOLD)
    return Index(records, portfolios)


_TOLD = 4
"""Lines of a file that cannot be read and are told one by one."""


@session.cached(most=8192)
def records_at(stamp: Stamp, kind: Kind, key: Key) -> Sequence[TuningRecord]:
    """The records of one problem and device in a file, as it was.

    Args:
        stamp: the file.
        kind: operation and target.
        key: fingerprint and problem.
    """
    places = index_of(stamp).records.get(kind, {}).get(key, ())
    return [
        each
        for each in _at(stamp, places)
        if isinstance(each, TuningRecord) and (each.key[0], each.key[2]) == key
    ]


@session.cached(most=64)
def portfolios_at(stamp: Stamp, kind: Kind) -> Sequence[Portfolio]:
    """The portfolios in a file, as it was; arguments are those of `records_at`."""
    return [
        each
        for each in _at(stamp, index_of(stamp).portfolios.get(kind, ()))
        if isinstance(each, Portfolio) and (each.operation, each.target) == kind
    ]


def _at(stamp: Stamp, places: Sequence[Place]) -> Iterator[Stored]:
    """What is at some places of a file; a line that is no good is logged and left out."""
    file = Path(stamp[0])
    if not places:
        return
    try:
        with open_regular(file) as stream:
            for place in places:
                stream.seek(place.begin)
                try:
                    yield parse_line(stream.readline(LINE_LIMIT).decode("utf-8"))
                except (InputError, UnicodeDecodeError) as error:
                    _log.warning("%s:%d: left out: %s", file, place.number, error)
    except OSError as error:
        _log.warning("%s: left out: %s", file, error.strerror or error)


def _written(line: str) -> tuple[Kind, Key] | None:
    """Kind and key of a record as this package writes it; None of any other line."""
    subject = _SUBJECT.match(line, line.find('"operation": '))
    device = _DEVICE.match(line, line.find('"fingerprint": '))
    if subject is None or device is None:
        return None
    operation, problem, target = subject.groups()
    return (_name(operation), _name(target)), (_fingerprint(device[1]), _canonical(problem))


def _said(line: str) -> tuple[Kind, Key | None]:
    """The same of any line; no key of a portfolio.

    Raises:
        ValueError: it is neither a record nor a portfolio.
    """
    document = json.loads(line)
    if not isinstance(document, dict):
        raise InputError("a record must be an object")
    names = ("operation", "target", *(() if "entries" in document else ("problem", "fingerprint")))
    for name in names:
        if not isinstance(document.get(name), dict if name in names[2:] else str):
            raise InputError(f"key {name!r} is missing, or is no {name}")
    kind = document["operation"], document["target"]
    if "entries" in document:
        return kind, None
    fingerprint = _fingerprint(strict_json.line(document["fingerprint"]))
    return kind, (fingerprint, strict_json.canonical(document["problem"]))


@functools.lru_cache(maxsize=1024)
def _fingerprint(text: str) -> str:
    fingerprint: DeviceFingerprint = checked(strict_json.parse(text), DeviceFingerprint)
    return fingerprint.digest


_name = functools.lru_cache(maxsize=1024)(json.loads)


@functools.lru_cache(maxsize=1024)
def _canonical(text: str) -> str:
    return strict_json.canonical(json.loads(text))
