"""Compiled programs that tests with caches of their own share: each is compiled once a run."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.facts import FILE, Facts
from autotune.core.paths import CacheLocations
from autotune.families.program_cache import ProgramCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class SharedPrograms:
    """A pool of compiled programs, which caches begin with and give theirs to.

    Everything is copied: what one cache does to its files and facts is nothing to another.

    Args:
        folder: of the pool; processes of one test run may share it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._open: list[Path] = []

    @contextlib.contextmanager
    def at(self, cache: Path) -> Iterator[Path]:
        """A cache that has the pool's programs from the start; afterwards the pool has its own."""
        programs = CacheLocations.at(cache).programs
        with self._locked():
            for other in self._open:  # whose tests are not done, but do not run now
                _copy(other, self._folder)
            _copy(self._folder, programs)
        self._open.append(programs)
        yield cache
        self._open.remove(programs)
        with self._locked():
            _copy(programs, self._folder)

    @contextlib.contextmanager
    def behind_all(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """All caches of this process take what they lack from the pool, and give it theirs."""
        made: set[Path] = set()
        make = ProgramCache.__init__

        def __init__(cache: ProgramCache, folder: Path, records: Path | None = None) -> None:
            make(cache, folder, records)
            if cache.shared is None:
                made.add(cache.folder)
                cache.shared = self._folder

        patch.setattr(ProgramCache, "__init__", __init__)
        yield
        for folder in made:
            if folder.is_dir():
                with self._locked():
                    _copy(folder, self._folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder.parent / f"{self._folder.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _copy(source: Path, target: Path) -> None:
    """Add what is not there: programs with all that was compiled of them, and what is known."""
    for place in sorted(source.iterdir()) if source.is_dir() else ():
        if not place.is_dir():
            continue
        folder = target / place.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.chmod(0o700)
        there = {each.stem for each in folder.iterdir() if each.is_file()}
        for file in (*place.iterdir(), *(place / "__pycache__").glob("*")):
            name = file.name.partition(".")[0]
            temporary = file.suffix == ".tmp"  # of a process that was killed while it wrote
            if file.is_file() and name not in there and file.name != FILE and not temporary:
                copy = folder / file.relative_to(place)
                copy.parent.mkdir(mode=0o700, exist_ok=True)
                shutil.copy2(file, copy)  # with its time, which compiled code is keyed by
        known, own = (_facts(each / FILE) for each in (place, folder))
        if new := {key: value for key, value in known.items() if key not in own}:
            Facts(folder / FILE).put(new)


def _facts(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    with contextlib.closing(sqlite3.connect(path)) as facts:
        return dict(facts.execute("SELECT key, value FROM facts").fetchall())
