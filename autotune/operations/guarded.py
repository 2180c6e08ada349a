"""Matrices between guard zones, in memory of their own that can be made read-only."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.operations.references import Matrix

GUARD_BYTES = 4096
"""Size of the guard zone before and after every operand."""

LINE_OFFSET = 16
"""Bytes from the start of a cache line to the first element. The C library keeps so many before
an array for which it maps memory, hence NumPy's large ones lie there: vectors that lie in two
lines cost some kernels twice the time."""

_HUGE_BYTES = 1 << 22
"""NumPy asks for huge pages for arrays from this size on."""


class GuardedMatrix:
    """A row-major matrix with guard zones before and after it and, if padded, between its rows.

    Guards hold NaNs, so that reading them shows in the result and writing them shows in `damage`.

    Args:
        rows: of the matrix.
        columns: of the matrix.
        dtype: element type.
        padding: guard elements after every row.

    Attributes:
        array: the matrix. Its first element is `LINE_OFFSET` bytes after a page's start.
    """

    def __init__(self, rows: int, columns: int, dtype: str, padding: int = 0) -> None:
        row = DTYPES[dtype]
        itemsize = row.itemsize
        self._poison = row.word.poison
        guard = GUARD_BYTES // itemsize
        stride = columns + padding
        count = rows * stride
        self._pages = _Pages(LINE_OFFSET + (count + 2 * guard) * itemsize)
        self._words = self._pages.words(f"u{itemsize}", count + 2 * guard)
        self._before = self._words[:guard]
        self._after = self._words[guard + count :]
        body = self._words[guard : guard + count].reshape(rows, stride)
        self._between = body[:, columns:]
        self._bits = body[:, :columns]
        self.array: Matrix = self._bits.view(row.numpy)
        self.poison()

    def poison(self) -> None:
        """Fill guards and matrix with NaNs."""
        self._words.fill(self._poison)

    def seal(self) -> None:
        """From now on a write to it or its guards, by whomever, ends the process (SIGSEGV)."""
        self._pages.protect(read_only=True)

    @contextlib.contextmanager
    def unsealed(self) -> Iterator[Matrix]:
        """The matrix, to be written within a block; a sealed one is sealed again after it."""
        sealed = self._pages.read_only
        self._pages.protect(read_only=False)
        try:
            yield self.array
        finally:
            self._pages.protect(read_only=sealed)

    @property
    def bits(self) -> NDArray[np.unsignedinteger]:
        """The matrix as integers, of which equal ones are equal, NaN or not."""
        return self._bits

    @property
    def unwritten(self) -> int:
        """How many elements still hold what `poison` left."""
        return int(np.count_nonzero(self._bits == self._poison))

    def same_as(self, values: Matrix) -> bool:
        """Whether the matrix holds exactly `values`."""
        return np.array_equal(self._bits, values.view(self._bits.dtype))

    def damage(self) -> str | None:
        """Which guard zone was written, or None."""
        zones = {
            "before the first row": self._before,
            "after the last row": self._after,
            "past the end of a row": self._between,
        }
        for place, zone in zones.items():
            if not (zone == self._poison).all():
                return place
        return None


class _Pages:
    """Whole pages of memory: where an operand lies is then no matter of the C library's."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel that has none
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._size = size
        self.read_only = False

    def words(self, dtype: str, count: int) -> NDArray[Any]:
        """The memory as integers, from `LINE_OFFSET` on."""
        return np.frombuffer(self._memory, dtype, count, LINE_OFFSET)

    def protect(self, *, read_only: bool) -> None:
        """Let, or do not let, anybody write here."""
        if read_only == self.read_only:
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        readable, writable = 1, 2
        protection = readable if read_only else readable | writable
        library = ctypes.CDLL(None, use_errno=True)
        if library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(self._size), protection):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.read_only = read_only
