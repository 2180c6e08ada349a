"""Files of records: an index by what their lines say of themselves, and a line read when wanted.

A file may have many thousand records of which a process wants a few. An index says where in the
file the records of each problem and device are, and the portfolios of each device. It goes by what
a line says of itself: whoever takes a record holds the record's own key against the one asked for.
Beside the files lie the binaries that their records name.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import lzma
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from autotune.core import session
from autotune.core.checks import checked
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import InputError
from autotune.core.facts import stamps_of
from autotune.core.paths import data_dir, others_who_write
from autotune.core.reading import open_regular, read_regular
from autotune.model.portfolio import Portfolio
from autotune.store import strict_json
from autotune.store.interchange import (
    LINE_LIMIT,
    parse_line,
    placed_lines,
    read_lines,
    without_binaries,
)
from autotune.store.portfolio import (
    DEVICE,
    FLAT,
    TEXT,
    PortfolioHead,
    Subject,
    decoded,
    subject_of,
)
from autotune.store.record import TuningRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
        portfolios: what they are for, and their places.
    """

    records: Mapping[Kind, Mapping[Key, Sequence[Place]]]
    portfolios: Mapping[Kind, Sequence[tuple[Subject, Place]]]


_RECORD = re.compile(rf'"operation": ({TEXT}), "problem": ({FLAT}), "target": ({TEXT})')
_TOLD = 4
"""Lines of a file that cannot be read and are told one by one."""

_log = logging.getLogger(__name__)


@session.cached(most=64)
def index_of(stamp: Stamp) -> Index:
    """The index of a file as it was; lines that say nothing of themselves are logged."""
    file = Path(stamp[0])
    records: defaultdict[Kind, dict[Key, list[Place]]] = defaultdict(dict)
    portfolios: defaultdict[Kind, list[tuple[Subject, Place]]] = defaultdict(list)
    unread: list[str] = []
    try:
        for number, begin, line in placed_lines(file):
            try:
                said = _written(line) or _said(line)
            except (InputError, ValueError, RecursionError) as error:
                unread.append(f"{file}:{number}: left out: {error}")
                continue
            if isinstance(said, Subject):
                kind = said.operation, said.target
                portfolios[kind].append((said, Place(number, begin)))
            else:
                records[said[0]].setdefault(said[1], []).append(Place(number, begin))
    except InputError as error:
        unread.append(f"the rest is left out: {error}")
    for told in unread[:_TOLD]:
        _log.warning("%s", told)
    if len(unread) > _TOLD:
        _log.warning("%s: %d more lines are left out", file, len(unread) - _TOLD)
    return Index(records, portfolios)


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
def portfolios_at(stamp: Stamp, kind: Kind) -> Sequence[PortfolioHead]:
    """The portfolios in a file, as it was; arguments are those of `records_at`."""
    return [
        PortfolioHead.of(
            subject, f"{stamp[0]}:{place.number}", functools.partial(_first, stamp, place)
        )
        for subject, place in index_of(stamp).portfolios.get(kind, ())
    ]


def _first(stamp: Stamp, place: Place) -> Stored | None:
    return next(_at(stamp, [place]), None)


def _at(stamp: Stamp, places: Sequence[Place]) -> Iterator[Stored]:
    """The documents at some places of a file; a faulty line is logged and left out."""
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


def _written(line: str) -> tuple[Kind, Key] | Subject | None:
    """Kind and key of a record as this package writes it; None of any other line."""
    record = _RECORD.match(line, line.find('"operation": '))
    if record is None:
        return subject_of(line) if '"entries": [' in line else None
    device = DEVICE.match(line, line.find('"fingerprint": '))
    if device is None:
        return None
    operation, problem, target = record.groups()
    return (_name(operation), _name(target)), (_fingerprint(device[1]), _canonical(problem))


def _said(line: str) -> tuple[Kind, Key] | Subject:
    """The same of any line.

    Raises:
        ValueError: it is neither a record nor a portfolio.
    """
    document = json.loads(line)
    if not isinstance(document, dict):
        raise InputError("a record must be an object")
    if "entries" in document:
        return subject_of(line)
    for name, kind in (("operation", str), ("target", str), ("problem", dict)):
        if not isinstance(document.get(name), kind):
            raise InputError(f"key {name!r} is missing, or is no {name}")
    fingerprint: DeviceFingerprint = checked(document.get("fingerprint"), DeviceFingerprint)
    key = fingerprint.digest, strict_json.canonical(document["problem"])
    return (document["operation"], document["target"]), key


@functools.lru_cache(maxsize=1024)
def _fingerprint(text: str) -> str:
    fingerprint: DeviceFingerprint = checked(strict_json.parse(text), DeviceFingerprint)
    return fingerprint.digest


_name = functools.lru_cache(maxsize=1024)(json.loads)


@functools.lru_cache(maxsize=1024)
def _canonical(text: str) -> str:
    return strict_json.canonical(json.loads(text))


COMPRESSED = ".cubin.xz"
"""The suffix of compressed binaries: they take a sixth of the room."""

BINARY_LIMIT = 16 << 20
"""Bytes that a binary may have, as it lies there and once it is decompressed."""

_MEMORY = 256 << 20


def shipped_records(
    operation: str, target: str | None = None, folder: Path | None = None
) -> Iterator[TuningRecord]:
    """The shipped records of an operation, for every device, read as they are asked for.

    A line that cannot be read is logged and left out.

    Args:
        operation: the operation's name: the file is ``<device>/<operation>.jsonl``.
        target: "cpu", "cuda", ...; None takes all.
        folder: where the devices' folders are; None takes the package's own.
    """
    root = data_dir("cache") if folder is None else folder
    for file in sorted(root.glob(f"*/{operation}.jsonl")):
        for record in read_records(file):
            if target in (None, record.target):
                yield record


def read_records(file: Path) -> Iterator[TuningRecord]:
    """The records of a file, read as they are asked for.

    A line that cannot be read is logged and left out.
    """
    return (each for each in _read(file) if isinstance(each, TuningRecord))


def read_portfolios(file: Path) -> Iterator[Portfolio]:
    """The portfolios of a file, read as they are asked for.

    A line that cannot be read is logged and left out.
    """
    return (each for each in _read(file) if isinstance(each, Portfolio))


def _read(file: Path) -> Iterator[Stored]:
    try:
        for number, line in read_lines(file):
            try:
                yield parse_line(line)
            except InputError as error:
                _log.warning("%s:%d: left out: %s", file, number, error)
    except InputError as error:
        _log.warning("the rest is left out: %s", error)


def shipped_binary(
    digest: str, folder: Path | None = None, trusted: Callable[[Path], bool] | None = None
) -> bytes | None:
    """The shipped binary with this SHA-256, or None; a damaged one is logged and left out.

    Args:
        digest: in hex, as a `BinaryRecord` has it: the file is ``<device>/<digest>.cubin``, or
            the same compressed (``.cubin.xz``), or lies in the folder itself.
        folder: where the devices' folders are; None takes the package's own.
        trusted: whether a file may be read; None reads any.
    """
    root = data_dir("cache") if folder is None else folder
    names = (f"{digest}.cubin", f"{digest}{COMPRESSED}")
    found = [file for name in names for file in (*sorted(root.glob(f"*/{name}")), root / name)]
    for file in found:
        if not file.exists() or not (trusted is None or trusted(file)):
            continue
        try:
            content = _content(file)
        except (OSError, lzma.LZMAError) as error:
            _log.warning("%s: left out: %s", file, getattr(error, "strerror", None) or error)
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        _log.warning("%s: left out: its content is not what its name says", file)
    return None


def _content(file: Path) -> bytes:
    """The content of a binary's file; no more than a binary may have.

    Raises:
        OSError: it cannot be read.
        LZMAError: it is not what its name says.
    """
    content = read_regular(file, BINARY_LIMIT)
    if not file.name.endswith(COMPRESSED):
        return content
    return lzma.LZMADecompressor(memlimit=_MEMORY).decompress(content, max_length=BINARY_LIMIT)


class RecordFiles:
    """Records in JSON Lines: a file, or a folder with ``<device>/<operation>.jsonl`` in it.

    Files are read again only when they have changed.

    Args:
        path: the file or the folder.
        kind: the kind of device that is looked for: folders of others are passed over.
        trusted: whether it came with this package, or a distribution; otherwise binaries, and how
            they are launched, are taken only from files that nobody else may write.
    """

    def __init__(self, path: Path, kind: str, *, trusted: bool = False) -> None:
        self._path = path
        self._kind = kind
        self._trusted = trusted
        self._trusts: dict[Path, bool] = {}

    def problems(self, operation: str, target: str) -> Iterable[tuple[str, str]]:
        """See `RecordSource.problems`."""
        return list(
            dict.fromkeys(
                key
                for stamp, _ in self.stamps(f"{operation}.jsonl")
                for key in index_of(stamp).records.get((operation, target), ())
            )
        )

    def of_problem(
        self, fingerprint: str, operation: str, problem: str, target: str
    ) -> Iterable[TuningRecord]:
        """See `RecordSource.of_problem`."""
        found = [
            record if trusted else without_binaries(record)
            for trusted, record in self._records(operation, target, (fingerprint, problem))
        ]
        return sorted(found, key=lambda record: record.created, reverse=True)

    def binary(self, digest: str) -> bytes | None:
        """See `RecordSource.binary`."""
        folder = self._path if self._path.is_dir() else self._path.parent
        return shipped_binary(digest, folder, None if self._trusted else self._is_trusted)

    def portfolio_heads(self, operation: str, target: str) -> list[PortfolioHead]:
        """See `RecordSource.portfolio_heads`."""
        return [
            head if trusted else head.without_binaries()
            for stamp, trusted in self.stamps(f"{operation}.portfolio.jsonl")
            for head in portfolios_at(stamp, (operation, target))
        ]

    def portfolios(self, operation: str, target: str) -> list[Portfolio]:
        """The portfolios of all devices."""
        return decoded(self.portfolio_heads(operation, target))

    def _records(
        self, operation: str, target: str, *keys: tuple[str, str]
    ) -> Iterator[tuple[bool, TuningRecord]]:
        """The records of some keys, or all, and whether each may say how binaries are launched."""
        for stamp, trusted in self.stamps(f"{operation}.jsonl"):
            for key in keys or index_of(stamp).records.get((operation, target), ()):
                for record in records_at(stamp, (operation, target), key):
                    yield trusted, record

    def stamps(self, name: str) -> list[tuple[Stamp, bool]]:
        """The files of a name, and whether each may say how binaries are launched."""
        found = []
        for file in self._files(name):
            with contextlib.suppress(OSError):  # it was there when the folder was listed
                [stamp] = stamps_of([file])
                found.append((stamp, self._trusted or self._is_trusted(file)))
        return found

    def _is_trusted(self, file: Path) -> bool:
        if file not in self._trusts:
            self._trusts[file] = is_trusted(file, self._path)
        return self._trusts[file]

    def _files(self, name: str) -> list[Path]:
        """Those of a name in the devices' folders; a single file holds whatever is asked for."""
        if self._path.suffix == ".jsonl":
            return [self._path]
        return [
            file
            for file in sorted(self._path.glob(f"*/{name}"))
            if file.parent.name.partition("-")[0] == self._kind
        ]


def is_trusted(file: Path, layer: Path) -> bool:
    """Return whether nobody else may change a file of a layer, or put another in its place."""
    for place in (layer, file.parent, file):
        try:
            who = others_who_write(place.resolve())
        except (OSError, RuntimeError) as error:  # a loop of links, say
            who = f"cannot be looked at ({error})"
        if who is not None:
            _untrusted(place, who)
            return False
    return True


@session.cached(most=1024)
def _untrusted(place: Path, who: str) -> None:
    _log.warning("%s %s: its binaries, and how they are launched, are left out", place, who)
