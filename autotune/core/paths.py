"""Where files are: the data that ships with the package, and the user's cache."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import platformdirs

from autotune.core import session
from autotune.core.errors import AutotuneError, CacheError, InputError
from autotune.core.printable import shown

_PRIVATE = 0o700

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors that say that there is no room left, on the disk or for the user."""


@session.cached()
def data_dir(name: str) -> Path:
    """The folder of shipped data of that name: templates, search_spaces, cache or datasets.

    An installed package carries them under ``autotune/_data``; in a checkout they lie beside the
    package, next to ``pyproject.toml``.

    Raises:
        AutotuneError: neither place has the folder: the installation is incomplete.
    """
    package = Path(str(resources.files("autotune")))
    packaged = package / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = package.parent
    # Without this guard a stray folder called "cache" in site-packages would be taken for ours.
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise AutotuneError(
        f"shipped data {name!r} must be in {packaged} or, in a checkout, in {checkout / name}, "
        "and is in neither: reinstall autotune-kernels"
    )


NOWHERE = Path(os.devnull, "autotune")
"""Stands for a user's own folders where there is no home: nothing is there, nor can be made."""


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with ``~`` replaced by the home folder that it stands for.

    Raises:
        InputError: there is no such user, or no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{shown(str(path))} begins with the home folder of a user who is not known here: "
            "give the whole path"
        ) from error


def user_folder(find: Callable[..., Path]) -> Path:
    """A folder for the user's files, or `NOWHERE` without a home folder.

    Args:
        find: a function of platformdirs.
    """
    try:
        path = find("autotune", appauthor=False)
    except RuntimeError:
        return NOWHERE
    # Earlier versions of it leave the name of a home folder that is not known.
    return NOWHERE if path.parts[:1] == ("~",) else path


def runtime_folder() -> Path:
    """A folder of the user's on this host, for what processes have in common while they run."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given:
        return Path(given, "autotune")
    own = Path("/run/user", str(os.getuid()))  # what the variable has where it is set
    if own.is_dir():
        return own / "autotune"
    import tempfile

    return Path(tempfile.gettempdir(), f"autotune-{os.getuid()}")


@dataclass(frozen=True, slots=True)
class CacheLocations:
    """The places of one cache; they move together.

    Attributes:
        root: the folder that holds everything.
        database: the SQLite file of tuning records and measurements.
    """

    root: Path
    database: Path

    @classmethod
    def at(cls, cache: str | os.PathLike[str] | None = None) -> CacheLocations:
        """The locations for an explicit path, else `$AUTOTUNE_CACHE`, else the user's data folder.

        A path that ends in ``.sqlite`` names the database file, and its folder is the root.
        Nothing is created.

        Without a home folder they are `NOWHERE`.

        Raises:
            InputError: the path is that of another file, or of a user who is not known.
        """
        given = cache or os.environ.get("AUTOTUNE_CACHE")
        path = expanded(given) if given else user_folder(platformdirs.user_data_path)
        path = path.absolute()
        if path.suffix == ".sqlite":
            return cls(root=path.parent, database=path)
        if _is_file(path) or path.suffix == ".jsonl":
            raise InputError(_no_cache(path, "" if cache else " (from $AUTOTUNE_CACHE)"))
        return cls(root=path, database=path / "tuning.sqlite")

    def create(self) -> CacheLocations:
        """Create the folders that are missing, for the owner's eyes only, and return self.

        Raises:
            CacheError: a folder cannot be created, or something else has its name.
        """
        for folder in (self.root, self.studies, self.programs):
            private_folder(folder)
        return self

    @property
    def studies(self) -> Path:
        """The folder of study journals."""
        return self.root / "studies"

    @property
    def programs(self) -> Path:
        """The folder of emitted sources and what is compiled from them."""
        return self.root / "programs"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # what cannot be looked at is said by whoever uses it
        return False


def _no_cache(path: Path, origin: str) -> str:
    """The error of a file that is not a cache."""
    remedy = "give the folder or the .sqlite file of one"
    if path.suffix == ".jsonl":
        remedy = f"records in such a file are stored in one by `autotune cache import {path.name}`"
    return f"a cache is a folder or a .sqlite file, and {path}{origin} is neither: {remedy}"


def private_folder(path: Path) -> Path:
    """Return `path`, created with its missing parents for the owner's eyes only.

    A folder that is already there keeps its permissions.

    Raises:
        CacheError: the folder cannot be created, or something else has its name.
    """
    if path.is_relative_to(NOWHERE):
        raise CacheError(_HOMELESS)
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                _make_private(folder)
    except OSError as error:
        raise CacheError(
            f"cannot create the cache folder {path} ({error.strerror or error}): "
            "give a writable folder with --cache or AUTOTUNE_CACHE"
        ) from error
    return path


_HOMELESS = (
    "nothing can be stored: this user has no home folder (no HOME, no account): give a folder "
    "with --cache or AUTOTUNE_CACHE"
)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=_PRIVATE)
    except FileExistsError:  # another process was faster
        if not folder.is_dir():
            raise
    else:
        folder.chmod(_PRIVATE)  # whatever the umask leaves of the mode


def check_trusted(folder: Path) -> None:
    """Refuse a folder of programs that somebody else may change.

    Raises:
        CacheError: it is no folder or a link to one, is not the user's nor root's, or its group
            or everybody may write it; the message says which.
        OSError: it cannot be looked at.
    """
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        who: str | None = "is a symbolic link, which may be pointed elsewhere"
    elif not stat.S_ISDIR(status.st_mode):
        who = "is not a folder"
    else:
        who = others_who_write(folder)
    if who is not None:
        raise CacheError(
            f"programs are run from {folder}, which {who}: make it a folder of your own with mode "
            "700, or give another one with --cache or AUTOTUNE_CACHE"
        )


def others_who_write(path: Path) -> str | None:
    """Who else may change a file or a folder, as in "which ..."; None where nobody may.

    Raises:
        OSError: it cannot be looked at.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {status.st_uid}), who may change it"
    if mode & 0o002:
        return f"everybody may write (mode {mode:o})"
    if mode & 0o020:
        return f"its group may write (gid {status.st_gid}, mode {mode:o})"
    return None


def can_write(folder: Path) -> bool:
    """Return whether this process may write a folder, or make it where it is missing."""
    if folder.is_relative_to(NOWHERE):
        return False
    place = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    # Whatever else is wrong with the place is told by those who write there.
    return not place.is_dir() or os.access(place, os.W_OK | os.X_OK)


def no_space(path: Path) -> str:
    """The message of a full disk."""
    return (
        f"No space left on device of {path.parent}, or in your quota: free some space, or give "
        "another folder with --cache or AUTOTUNE_CACHE"
    )
