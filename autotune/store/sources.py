"""Where records come from: the user's cache, read-only layers under it, and what is shipped."""

from __future__ import annotations

import functools
import heapq
import logging
import os
import sys
from collections import defaultdict
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from autotune.core import session
from autotune.core.errors import InputError
from autotune.core.paths import data_dir, expanded
from autotune.store import strict_json
from autotune.store.cache import TuningCache
from autotune.store.files import RecordFiles, is_trusted
from autotune.store.matching import problem_sizes, size_distance, without
from autotune.store.schema import file_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from autotune.core.device import DeviceFingerprint
    from autotune.operations.operation import Operation
    from autotune.operations.problem import Problem
    from autotune.store.portfolio import PortfolioHead
    from autotune.store.record import TuningRecord

VARIABLE = "AUTOTUNE_RECORDS"
"""Names read-only layers: caches, or files and folders of records as the shipped ones are."""

GROUP = "autotune.records"
"""Entry points of installed distributions whose package is such a folder of records."""

FARTHEST = 512
"""Problems, other than a problem itself, whose records are looked at for it."""

Kept = TypeVar("Kept")

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

    def portfolio_heads(self, operation: str, target: str) -> Iterable[PortfolioHead]:
        """The portfolios of all devices, by what they are for."""
        ...


class KeptSource:
    """A source that is asked once for everything, for look-ups of many problems in one process.

    Args:
        source: what is asked.
    """

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self._answers: dict[tuple[str, ...], Any] = {}

    def problems(self, operation: str, target: str) -> Collection[tuple[str, str]]:
        """See `RecordSource.problems`."""
        return self._ask("problems", dict.fromkeys, operation, target)

    def of_problem(
        self, fingerprint: str, operation: str, problem: str, target: str
    ) -> Sequence[TuningRecord]:
        """See `RecordSource.of_problem`; all problems are listed for none of it."""
        listed = self._answers.get(("problems", operation, target))
        if listed is not None and (fingerprint, problem) not in listed:
            return ()
        return self._ask("of_problem", tuple, fingerprint, operation, problem, target)

    def binary(self, digest: str) -> bytes | None:
        """See `RecordSource.binary`."""
        return self._ask("binary", _same, digest)

    def portfolio_heads(self, operation: str, target: str) -> Sequence[PortfolioHead]:
        """See `RecordSource.portfolio_heads`."""
        return self._ask("portfolio_heads", tuple, operation, target)

    def _ask(self, what: str, keep: Callable[[Any], Kept], *key: str) -> Kept:
        asked = (what, *key)
        if asked not in self._answers:
            self._answers[asked] = keep(getattr(self._source, what)(*key))
        found: Kept = self._answers[asked]
        return found


def _same(content: bytes | None) -> bytes | None:
    return content


def record_sources(database: Path, kind: str) -> list[RecordSource]:
    """All there are, in order of preference.

    Args:
        database: of the user's cache.
        kind: the kind of device that is looked for.
    """
    return [TuningCache(database), *_layers(kind), _shipped(kind)]


def _shipped(kind: str) -> RecordFiles:
    return RecordFiles(data_dir("cache"), kind, trusted=True)


def kept_sources(database: Path, kind: str) -> list[RecordSource]:
    """All sources there are, each asked once; arguments are those of `record_sources`."""
    return [KeptSource(source) for source in record_sources(database, kind)]


def layer_states(kind: str) -> list[object]:
    """The states of the files of all sources but the user's cache, for a kind of device."""
    return [
        (layer.path, state_of(layer.path))
        if isinstance(layer, TuningCache)
        else layer.stamps("*.jsonl")
        for layer in (*_layers(kind), _shipped(kind))
    ]


def state_of(database: Path) -> tuple[tuple[int, int], ...]:
    """The times and sizes of a database and its log, which change when it is written.

    A log with nothing in it comes and goes with those who only read.
    """
    return file_state(f"{database}"), file_state(f"{database}-wal")


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


def _layers(kind: str) -> Iterator[TuningCache | RecordFiles]:
    installed = _installed(tuple(sys.path))
    for path in layer_paths():
        database = layer_database(path)
        if database.is_file():
            trusted = path in installed or is_trusted(database, path)
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
    """A problem beside its sizes, as canonical JSON, and its sizes; None of what is none.

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
