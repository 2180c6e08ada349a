"""Compiled files of emitted modules, by Numba and Python: loaded only if written here.

They unpickle those files, so every one must have the digest that was noted when it was made.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
from typing import TYPE_CHECKING

from autotune.core.facts import FILE, Facts
from autotune.core.paths import check_trusted, private_folder
from autotune.core.reading import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LARGEST_PROGRAM = 64 << 20
"""Bytes that a program, and what is made of it, may have."""

_log = logging.getLogger(__name__)


class CompiledFiles:
    """The files in ``__pycache__`` that belong to one module.

    Args:
        path: the module.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.parent / "__pycache__"
        self._facts = Facts(path.parent / FILE)
        self._key = f"compiled {path.name}"
        self._known: Mapping[str, str] = {}

    @property
    def known(self) -> Mapping[str, str]:
        """Digests as they were noted, by name of the file."""
        try:
            noted = json.loads(self._facts.get(self._key).get(self._key, "{}"))
        except ValueError:
            return {}
        return noted if isinstance(noted, dict) else {}

    def made_by(self, version: str) -> bool:
        """Return whether a version of Numba has compiled all of it, as far as its indices say.

        What another process is compiling now has not been noted yet.
        """
        indices = [self._folder / name for name in self.known if name.endswith(".nbi")]
        try:
            # An index begins with the pickled text of its version.
            return bool(indices) and all(
                version.encode() in read_regular(path, LARGEST_PROGRAM)[:64] for path in indices
            )
        except OSError:
            return False

    def check(self) -> None:
        """Make the folder private, and remove the module's files if one is not as it was noted.

        Raises:
            CacheError: the folder is not the user's, or others may write it.
        """
        private_folder(self._folder)
        status = self._folder.lstat()
        if (
            status.st_uid == os.geteuid()
            and status.st_mode & 0o077
            and not self._folder.is_symlink()
        ):
            self._folder.chmod(0o700)  # Python or Numba made it: its files are looked at below
        check_trusted(self._folder)
        self._known = self.known
        found = self._digests()
        wrong = sorted(name for name, digest in found.items() if digest != self._known.get(name))
        if not wrong:
            return
        if any(name in self._known for name in wrong):
            _log.warning(
                "%s: %s was altered since it was compiled: compiled again", self._folder, wrong[0]
            )
        for name in found:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()

    def note(self) -> None:
        """Note the digests as they are now."""
        found = self._digests()
        if found != self._known:
            self._facts.put({self._key: json.dumps(found, sort_keys=True)})

    def adopt(self, other: CompiledFiles) -> None:
        """Take over what another place has of the same module, so far as it is as noted there."""
        known = other.known
        private_folder(self._folder)
        for name, content in other.contents():
            if hashlib.sha256(content).hexdigest() != known.get(name):
                return
            (self._folder / name).write_bytes(content)
        self.note()

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of every file; no content of a pipe, say, which nobody has noted."""
        with contextlib.suppress(FileNotFoundError):
            # Listed at once: whoever takes only some leaves no folder open.
            for path in sorted(self._folder.iterdir()):
                if path.name.startswith(f"{self._path.stem}."):
                    with contextlib.suppress(FileNotFoundError):
                        try:
                            content = read_regular(path, LARGEST_PROGRAM)
                        except OSError as error:
                            if error.errno not in (errno.EINVAL, errno.EFBIG):
                                raise
                            content = b""
                        yield path.name, content

    def _digests(self) -> dict[str, str]:
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.contents()}
