"""Where records come from: the user's cache, read-only layers under it, and what is shipped."""

from __future__ import annotations

import contextlib
import functools
import heapq
import logging
import os
import sys
from collections import defaultdict
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.core import session
from autotune.core.errors import InputError
from autotune.core.facts import stamps_of
from autotune.core.paths import data_dir, expanded, others_who_write
from autotune.store import strict_json
from autotune.store.cache import TuningCache
from autotune.store.interchange import without_binaries
from autotune.store.lines import index_of, portfolios_at, records_at
from autotune.store.matching import problem_sizes, size_distance, without
from autotune.store.shipped import shipped_binary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autotune.core.device import DeviceFingerprint
    from autotune.core.facts import Stamp
    from autotune.model.portfolio import Portfolio
    from autotune.operations.operation import Operation
    from autotune.operations.problem import Problem
    from autotune.store.record import TuningRecord

VARIABLE = "AUTOTUNE_RECORDS"
"""Names read-only layers: caches, or files and folders of records as the shipped ones are."""

GROUP = "autotune.records"
"""Entry points of installed distributions whose package is such a folder of records."""

FARTHEST = 512
"""Problems, other than a problem itself, whose records are looked at for it."""

_log = logging.getLogger(__name__)


class RecordSource(Protocol):
    """Records that can be asked for by their key, and the binaries that they name."""

    def problems(self, operation: str, target: str) -> Iterable[tuple[str, str]]:
        """Digest of the fingerprint, and problem as canonical JSON, of what there are records."""
        ...

    def of_problem(
        self, fingerprint: str, operation: str, problem: str, target: str
    ) -> Iterable[TuningRecord]:
        """The records of one problem on one device, newest first."""
        ...

    def binary(self, digest: str) -> bytes | None:
        """The binary with this SHA-256, where it is here and as it should be."""
        ...

    def portfolios(self, operation: str, target: str) -> Iterable[Portfolio]:
        """Of all devices."""
        ...


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
                for stamp, _ in self._stamps(f"{operation}.jsonl")
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

    def portfolios(self, operation: str, target: str) -> Iterable[Portfolio]:
        """See `RecordSource.portfolios`."""
        return [
            each if trusted else without_binaries(each)
            for stamp, trusted in self._stamps(f"{operation}.portfolio.jsonl")
            for each in portfolios_at(stamp, (operation, target))
        ]

    def _records(
        self, operation: str, target: str, *keys: tuple[str, str]
    ) -> Iterator[tuple[bool, TuningRecord]]:
        """The records of some keys, or all, and whether each may say how binaries are launched."""
        for stamp, trusted in self._stamps(f"{operation}.jsonl"):
            for key in keys or index_of(stamp).records.get((operation, target), ()):
                for record in records_at(stamp, (operation, target), key):
                    yield trusted, record

    def _stamps(self, name: str) -> list[tuple[Stamp, bool]]:
        """The files of a name, and whether each may say how binaries are launched."""
        found = []
        for file in self._files(name):
            with contextlib.suppress(OSError):  # it was there when the folder was listed
                [stamp] = stamps_of([file])
                found.append((stamp, self._trusted or self._is_trusted(file)))
        return found

    def _is_trusted(self, file: Path) -> bool:
        if file not in self._trusts:
            self._trusts[file] = _is_trusted(file, self._path)
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


def record_sources(database: Path, kind: str) -> list[RecordSource]:
    """All there are, in order of preference.

    Args:
        database: of the user's cache.
        kind: the kind of device that is looked for.
    """
    shipped = RecordFiles(data_dir("cache"), kind, trusted=True)
    return [TuningCache(database), *_layers(kind), shipped]


def layer_paths() -> list[Path]:
    """Where the read-only layers are to be: those of the variable, then those of distributions."""
    named = [each for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]
    found = (_named(each) for each in named)
    return [*(each.absolute() for each in found if each), *_installed(tuple(sys.path))]


@session.cached()
def _named(place: str) -> Path | None:
    try:
        path = expanded(place)
        path.exists()  # a name may be too long to be looked for
    except (InputError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        _log.warning("%s: a layer is left out: %s", VARIABLE, why)
        return None
    return path


def layer_database(path: Path) -> Path:
    """The database of a layer, if it is a cache."""
    return path if path.suffix == ".sqlite" else path / "tuning.sqlite"


def _layers(kind: str) -> Iterator[RecordSource]:
    installed = _installed(tuple(sys.path))
    for path in layer_paths():
        database = layer_database(path)
        if database.is_file():
            trusted = path in installed or _is_trusted(database, path)
            yield TuningCache(database, read_only=True, trusted=trusted)
        elif path.is_dir() or (path.suffix == ".jsonl" and path.is_file()):
            # Code is imported from where distributions are, too.
            yield RecordFiles(path, kind, trusted=path in installed)
        else:
            _missing(path)


@session.cached()
def _missing(path: Path) -> None:
    _log.warning("%s: no such cache, or file or folder of records: left out", path)


@session.cached(most=4)
def _installed(places: tuple[str, ...]) -> tuple[Path, ...]:
    """The folders of records in installed distributions; looked for once a process."""
    found = []
    for point in metadata.entry_points(group=GROUP):
        try:
            spec = util.find_spec(point.module)
        except (ImportError, ValueError) as error:
            _log.warning("entry point %s of %s: left out: %s", point.name, GROUP, error)
            continue
        found += [Path(each) for each in (spec and spec.submodule_search_locations) or ()]
    return tuple(found)


def _is_trusted(file: Path, layer: Path) -> bool:
    """Whether nobody else may change a file of a layer, or put another one in its place."""
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


def shapes(
    sources: Sequence[RecordSource], operation: Operation, target: str, fingerprint: str
) -> frozenset[tuple[object, ...]]:
    """Sizes of the problems that there are records of; of no others the first pool has any.

    Args:
        sources: whose records.
        operation: what the problems are of.
        target: where they run.
        fingerprint: digest of the device's.
    """
    names = tuple(name.lower() for name in operation.sizes)
    found = (
        _parts(problem, names)[1]
        for source in sources
        for digest, problem in source.problems(operation.name, target)
        if digest == fingerprint
    )
    return frozenset(
        each for each in found if each and all(isinstance(size, int) for size in each)
    )


def pools(
    sources: Sequence[RecordSource],
    problem: Problem,
    target: str,
    fingerprint: DeviceFingerprint,
) -> Iterator[list[TuningRecord]]:
    """Records that may serve a problem, as few as will do.

    First those of the problem itself on the device; then, with them, those of other sizes, the
    nearest first; at last those of other devices. No record that is left out of a pool fits as
    well as any in it, but of the problems of other sizes, and of those of other devices, only the
    `FARTHEST` with the nearest sizes are looked at.

    Args:
        sources: in order of preference.
        problem: what is to be computed.
        target: where it is to run.
        fingerprint: of the device.
    """
    operation, here = problem.operation, fingerprint.digest
    wanted = strict_json.canonical(problem.key())
    pool = _records(sources, [(here, wanted)], operation, target)
    yield pool
    sizes = problem_sizes(problem)
    names = tuple(sizes)
    fixed = _parts(wanted, names)[0]
    by_distance: defaultdict[float, dict[tuple[str, str], None]] = defaultdict(dict)
    elsewhere: dict[tuple[str, str], float] = {}
    for source in sources:
        for key in source.problems(operation, target):
            others, at = _parts(key[1], names)
            if others != fixed or key == (here, wanted):
                continue
            distance = size_distance(dict(zip(names, at, strict=True)), sizes)
            if key[0] != here:
                elsewhere[key] = distance
            else:
                by_distance[distance][key] = None
    step, waiting, left = 1, sorted(by_distance), FARTHEST
    while waiting and left > 0:  # twice as many each time: whoever needs them all gets there soon
        nearest, waiting = waiting[:step], waiting[step:]
        keys = [key for distance in nearest for key in by_distance[distance]][:left]
        left -= len(keys)
        pool = [*pool, *_records(sources, keys, operation, target)]
        yield pool
        step *= 2
    if elsewhere:
        keys = heapq.nsmallest(FARTHEST, elsewhere, key=elsewhere.__getitem__)
        yield [*pool, *_records(sources, keys, operation, target)]


def _records(
    sources: Sequence[RecordSource],
    keys: Sequence[tuple[str, str]],
    operation: str,
    target: str,
) -> list[TuningRecord]:
    return [
        record
        for source in sources
        for fingerprint, problem in keys
        for record in source.of_problem(fingerprint, operation, problem, target)
    ]


@functools.lru_cache(maxsize=1 << 17)
def _parts(problem: str, names: tuple[str, ...]) -> tuple[str | None, tuple[object, ...]]:
    """What a problem has beside its sizes, as canonical JSON, and these; None of what is none.

    Args:
        problem: as canonical JSON.
        names: of the sizes.
    """
    try:
        fields = strict_json.parse(problem)
    except ValueError:
        return None, ()
    if not isinstance(fields, dict):
        return None, ()
    fixed = strict_json.canonical(without(fields, names))
    return sys.intern(fixed), tuple(map(fields.get, names))
