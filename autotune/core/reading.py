"""Reading files that others may have put there: regular ones only, and no more than is asked for.

A pipe in the place of a file would be waited for, a device read without end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read its bytes.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | _NONBLOCK | _CLOEXEC | _BINARY)
    try:
        check_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(mode: int, path: Path) -> None:
    """Refuse what is no regular file.

    Args:
        mode: as its status has it.
        path: where it is.

    Raises:
        OSError: it is a folder, a pipe or a device.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file.

    Args:
        path: the file.
        limit: bytes that it may have.

    Raises:
        OSError: as `open_regular`; also where it is larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # `read` makes room for all that may come; of a file that is too large nothing is read.
        content = b"" if size > limit else file.read(size + 1)
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content
