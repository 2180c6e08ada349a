"""Arrays between guard zones, in memory of their own that can be made read-only."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.operations.parts import strides_of

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


class GuardedArray:
    """An array with guard zones before and after it and, if padded, after its rows and matrices.

    Guards hold NaNs, so that reading them shows in the result and writing them shows in `damage`.

    Args:
        shape: of the array; the last dimension is contiguous.
        dtype: of its elements.
        padding: guard elements after every row, and after every matrix of several.
        shift: elements that it begins behind the place where large arrays do: kernels must not
            count on an alignment beyond an element's own.

    Attributes:
        array: the array. Without a shift its first element is `LINE_OFFSET` bytes after a page's
            start.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: str, padding: int = 0, *, shift: int = 0
    ) -> None:
        row = ELEMENTS[dtype]
        itemsize = row.itemsize
        self._poison = self._spoilt = row.word.poison
        self._exact = row.kind in ("integer", "boolean")
        units = -(-itemsize // 8)  # words of an element
        strides = strides_of(shape, padding)
        count = shape[0] * strides[0] * units
        guard = GUARD_BYTES * units // itemsize
        offset = LINE_OFFSET + shift * itemsize
        self._pages = _Pages(offset + (count + 2 * guard) * itemsize // units)
        self.words = self._pages.words(f"u{itemsize // units}", count + 2 * guard, offset)
        self._before = self.words[:guard]
        self._after = self.words[guard + count :]
        body = self.words[guard : guard + count]
        steps = [stride * itemsize for stride in strides]
        wide = ((*shape, units), [*steps, itemsize // units]) if units > 1 else (shape, steps)
        self._bits = np.lib.stride_tricks.as_strided(body, *wide)
        self._body = body
        self._between = np.empty(0, np.intp)
        if padding:
            inside = np.zeros(body.shape, bool)
            steps = [stride * units for stride in strides]
            wide = ((*shape, units), [*steps, 1]) if units > 1 else (shape, steps)
            np.lib.stride_tricks.as_strided(inside, *wide)[...] = True
            self._between = np.flatnonzero(~inside)
        self.array: Matrix = self._bits.view(row.numpy).reshape(shape)
        self.poison()

    def poison(self) -> None:
        """Fill guards and array with NaNs."""
        self.words.fill(self._poison)

    def spoil(self, place: tuple[int, ...]) -> None:
        """Put into one element what guards hold; of integers, what it does not hold now."""
        self._spoilt = ~self._bits[place] if self._exact else self._poison
        self._bits[place] = self._spoilt

    def spoilt(self, place: tuple[int, ...]) -> bool:
        """Return whether an element holds that."""
        return bool(np.all(self._bits[place] == self._spoilt))

    def seal(self) -> None:
        """From now on a write to it or its guards, by whomever, ends the process (SIGSEGV)."""
        self._pages.protect(read_only=True)

    @contextlib.contextmanager
    def unsealed(self) -> Iterator[Matrix]:
        """The array, to be written within a block; a sealed one is sealed again after it."""
        sealed = self._pages.read_only
        self._pages.protect(read_only=False)
        try:
            yield self.array
        finally:
            self._pages.protect(read_only=sealed)

    @property
    def bits(self) -> NDArray[np.unsignedinteger]:
        """The array as integers, of which equal ones are equal, NaN or not."""
        return self._bits

    def unwritten(self, expected: Matrix | None = None) -> int:
        """The number of elements that still hold what `poison` left.

        Args:
            expected: what is to be there; an integer may be what `poison` leaves.
        """
        left = self._bits == self._poison
        if self._exact and expected is not None:
            with np.errstate(all="ignore"):
                wanted = expected.astype(self.array.dtype)
            left &= wanted.view(self._bits.dtype) != self._poison
        return int(np.count_nonzero(left))

    def same_as(self, values: Matrix) -> bool:
        """Return whether the array holds exactly `values`."""
        return np.array_equal(self._bits, values.view(self._bits.dtype).reshape(self._bits.shape))

    def damage(self) -> str | None:
        """The guard zone that was written, or None."""
        zones = {
            "before the first row": self._before,
            "after the last row": self._after,
            "past the end of a row": self._body[self._between],
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

    def words(self, dtype: str, count: int, offset: int) -> NDArray[Any]:
        """The memory as integers, from an offset on."""
        return np.frombuffer(self._memory, dtype, count, offset)

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
