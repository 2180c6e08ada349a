"""Rows of codes packed into integers that sort as the rows do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Digit:
    """Where one column's code is kept: ``words[word] // weight % base``."""

    word: int
    weight: int
    base: int


class MixedRadix:
    """Packs a row of codes, code i below ``bases[i]``, into as few int64 words as hold it.

    The first column is the most significant digit, so words sort as rows of codes do.
    """

    def __init__(self, bases: Sequence[int]) -> None:
        digits: list[Digit] = []
        word, weight = 0, 1
        for base in reversed(bases):
            if weight * base > _INT64_MAX:
                word, weight = word + 1, 1
            digits.append(Digit(word, weight, base))
            weight *= base
        self.words = word + 1
        self.digits = tuple(
            Digit(word - digit.word, digit.weight, digit.base) for digit in reversed(digits)
        )

    def pack(self, codes: Sequence[int]) -> tuple[int, ...]:
        """The words of one row."""
        words = [0] * self.words
        for digit, code in zip(self.digits, codes, strict=True):
            words[digit.word] += digit.weight * code
        return tuple(words)

    def unpack(self, words: Sequence[NDArray[np.int64]]) -> NDArray[np.unsignedinteger]:
        """Codes of many rows, shape (rows, columns), in the smallest type that holds them."""
        dtype = np.min_scalar_type(max(digit.base for digit in self.digits) - 1)
        codes = np.empty((len(words[0]), len(self.digits)), dtype=dtype, order="F")
        for column, digit in enumerate(self.digits):
            codes[:, column] = words[digit.word] // digit.weight % digit.base
        return codes


def sort_rows(words: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """The same rows in ascending order."""
    if len(words) == 1:
        return [np.sort(words[0])]
    order = np.lexsort(tuple(reversed(words)))
    return [word[order] for word in words]


def find_row(words: Sequence[NDArray[np.int64]], row: Sequence[int]) -> int | None:
    """Position of `row` among sorted rows, or None."""
    low, high = 0, len(words[0])
    for word, value in zip(words, row, strict=True):
        part = word[low:high]
        low, high = (
            low + int(np.searchsorted(part, value, "left")),
            low + int(np.searchsorted(part, value, "right")),
        )
    return low if low < high else None
