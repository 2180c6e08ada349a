"""Emitted sources on disk: tracebacks show them, and compilers cache their work beside them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from autotune.core import session
from autotune.core.errors import CacheError
from autotune.core.facts import FILE, Facts
from autotune.core.paths import (
    NO_SPACE,
    can_write,
    check_trusted,
    no_space,
    private_folder,
    user_folder,
)
from autotune.core.reading import read_regular
from autotune.core.version import __version__
from autotune.families.compiled_files import LARGEST_PROGRAM, CompiledFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.core.paths import CacheLocations
    from autotune.families.rendering import Source


_log = logging.getLogger(__name__)


class ProgramCache:
    """A folder of emitted sources, ``<target>/<family>_<digest>.py``, private to its owner.

    What compilers make of them lies beside them. The suffix is that of the target's language; a
    digest of its compiler's settings follows the target, where they are not the defaults.

    The sources are run, so the folder is trusted code: one that others may write is refused. Where
    this process may not write, the programs go to a folder of the user's own, or, where there is
    none either, to a temporary one of the process; what is in the folder is used from there.

    Args:
        folder: where the programs are to be.
        cache: what `CacheLocations.at` takes for the cache that it is part of; None says that the
            folder is in that one's.

    Attributes:
        folder: where the sources go; created when the first one is written.
        shared: the folder that was given, where that cannot be written.
        cache: where records are that go with the programs.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        own = can_write(folder)
        self.folder = folder if own else _own_folder(os.getpid())
        self.shared = None if own else folder
        self.cache = cache or folder.parent

    @classmethod
    def of(cls, cache: CacheLocations) -> ProgramCache:
        """The programs of a cache."""
        return cls(cache.programs, cache.database)

    def path(self, source: Source, family_name: str) -> Path:
        """Where a source is, or would be written."""
        place = self._place(source.target, source.settings)
        return place / f"{family_name}_{source.digest[:16]}{source.suffix}"

    def binary(self, source: Source, family_name: str, variant: str) -> Path:
        """Where something that a compiler made of a source is, or would be kept.

        Args:
            source: what was compiled.
            family_name: whose source it is.
            variant: for what and with what it was compiled, and its suffix.

        Raises:
            CacheError: the folder cannot be written, or others can write it.
        """
        path = self.path(source, family_name).with_suffix(f".{variant}")
        for each in (path, path.with_suffix(".json")):  # with what its compiler said of it
            self._adopt(each)
        return path

    def write(self, source: Source, family_name: str) -> Path:
        """Make sure that a source is on disk and return its path.

        A file that holds the source already is left as it is: compilers keep their work with it.
        A file that holds anything else is replaced. Either way the file appears whole or not at
        all, however many processes write it at once.

        Raises:
            CacheError: the folder cannot be written, or others can write it.
        """
        path = self.path(source, family_name)
        self._adopt(path)
        self.keep(path, source.text.encode())
        return path

    def written(
        self,
        name: str,
        target: str,
        key: object,
        render: Callable[[], Source],
        settings: str = "",
    ) -> Path:
        """The path of a source, which is rendered only if it was not before.

        Args:
            name: whose source it is.
            target: what it is source for.
            key: all that the source depends on, beside the code of this package, as JSON.
            render: makes it.
            settings: of the compiler, as `Language.settings`.

        Raises:
            CacheError: as `write`.
        """
        fact, place = _fact(name, target, key), self._place(target, settings)
        path = self._known(fact, place)
        if path is None:
            path = _WRITTEN[place, fact] = self._rendered(fact, name, render)
        return path

    def known(self, name: str, target: str, key: object, settings: str = "") -> Path | None:
        """The path of a source that `written` has rendered before; None of one that it has not."""
        return self._known(_fact(name, target, key), self._place(target, settings))

    def _place(self, target: str, settings: str) -> Path:
        """The folder for a target's sources."""
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        return self.folder / (f"{target}-{digest}" if settings else target)

    def _known(self, fact: str, place: Path) -> Path | None:
        path = _WRITTEN.get((place, fact))
        if path is not None and path.exists():
            return path
        path = self._kept(fact, place)
        if path is not None:
            _WRITTEN[place, fact] = path
        return path

    def _kept(self, known: str, place: Path) -> Path | None:
        """The source that a fact tells of, if it is still there as it was."""
        for folder in (place, *([self.shared / place.name] if self.shared else [])):
            file = Facts(folder / FILE).get(known).get(known)
            path = place / str(file)
            if file is None or path.name != file:
                continue
            self._adopt(path)
            if _is_named_by_its_digest(path):
                self._check(path)
                return path
        return None

    def _rendered(self, known: str, name: str, render: Callable[[], Source]) -> Path:
        path = self.write(render(), name)
        Facts(path.parent / FILE).put({known: path.name})
        return path

    def keep(self, path: Path, content: bytes) -> None:
        """Make sure that a file of this folder has a content; see `write`.

        Raises:
            CacheError: the folder cannot be written, or others can write it.
        """
        try:
            private_folder(path.parent)
            self._check(path)
            if not _holds(path, content):
                _publish(path, content)
        except OSError as error:
            raise _unwritable(path, error) from error

    def _check(self, path: Path) -> None:
        """Every folder on the way to a program, that of the cache excepted, is the user's own."""
        for folder in (self.folder, path.parent):
            check_trusted(folder)

    def _adopt(self, path: Path) -> None:
        """Take over a file of the shared folder, and what its compiler made of it."""
        if self.shared is None or path.exists():
            return
        shared = self.shared / path.relative_to(self.folder)
        try:
            content = read_regular(shared, LARGEST_PROGRAM)
            for folder in (self.shared, shared.parent):
                check_trusted(folder)
        except OSError:
            return
        self.keep(path, content)
        if path.suffix == ".py":
            CompiledFiles(path).adopt(CompiledFiles(shared))


_WRITTEN: dict[tuple[Path, str], Path] = session.keep("written programs", {}, lasting=True)
"""Sources by folder and fact, as this process has found or written them."""


def _fact(name: str, target: str, key: object) -> str:
    """The key of a source before it is rendered."""
    text = json.dumps([name, target, key, _renderer()], sort_keys=True)
    return f"source {hashlib.sha256(text.encode()).hexdigest()}"


@session.cached()
def _renderer() -> list[object]:
    """Digest of the rendering code, part of the key: sources are rendered anew when it changes."""
    package = Path(__file__).parents[1]
    modules = (
        each
        for name in ("families", "operations", "space")
        for each in (package / name).glob("*.py")
    )
    stamps = [each.stat() for each in (package / "core" / "dtypes.py", *sorted(modules))]
    return [__version__, *([stamp.st_mtime_ns, stamp.st_size] for stamp in stamps)]


def _is_named_by_its_digest(path: Path) -> bool:
    """Return whether a source is what was rendered under its name."""
    try:
        digest = hashlib.sha256(read_regular(path, LARGEST_PROGRAM)).hexdigest()
    except OSError:
        return False
    return path.stem.rpartition("_")[2] == digest[:16]


@session.cached()
def _own_folder(process: int) -> Path:
    """Where a process keeps programs that it may not keep where they should be."""
    folder = user_folder(platformdirs.user_cache_path) / "programs"
    if can_write(folder):
        with contextlib.suppress(CacheError, OSError):
            check_trusted(private_folder(folder))
            return folder
    temporary = Path(tempfile.mkdtemp(prefix="autotune-programs-"))
    atexit.register(_remove, temporary, process)
    _log.warning(
        "no cache folder can be written: programs are compiled into %s, for this process alone; "
        "AUTOTUNE_CACHE names a folder that can",
        temporary,
    )
    return temporary


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a child by fork
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(path: Path, error: OSError) -> CacheError:
    if error.errno in NO_SPACE:
        return CacheError(f"cannot write the program {path}: {no_space(path)}")
    return CacheError(
        f"cannot write the program {path} ({error.strerror or error}): "
        "give a writable folder with --cache or AUTOTUNE_CACHE"
    )


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_regular(path, len(content)) == content
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG):  # something else has its name
            return False
        raise


def _publish(path: Path, content: bytes) -> None:
    """Write a temporary file and give it the final name in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # Where the name is taken a link fails, and the first writer's file stays; compiled code is
        # keyed by its time. Some file systems have no links at all.
        with contextlib.suppress(OSError):
            path.hardlink_to(temporary)
        if not _holds(path, content):
            temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
