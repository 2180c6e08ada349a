"""The kernels of ``support.cu``, which the evaluator itself runs."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from autotune.core.dtypes import ELEMENTS, WORDS
from autotune.families.gpu.launch import LaunchStep
from autotune.gpu.driver import driver

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from autotune.gpu.interface import Memory, Run
    from autotune.gpu.measure.memory import Placement
    from autotune.operations.references import Matrix

Allowed: TypeAlias = tuple[float, float, float]
"""Allowed error: times the scale, times what is expected, and without either."""

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8
_FINDINGS = 5
_VECTORS = 16  # bits of an unsigned short


class Support:
    """The kernels, loaded into the current context; they run on its default stream.

    Args:
        cubin: what `support_source` compiles to.
        dtype: the element type of results that it was compiled for.
        multiprocessor_count: of the device.
    """

    def __init__(self, cubin: bytes, dtype: str, multiprocessor_count: int) -> None:
        self._driver = driver()
        self._module = self._driver.load(cubin)
        self._kernels: dict[str, Run] = {}
        self._dtype = ELEMENTS[dtype].numpy
        self._blocks = multiprocessor_count * _BLOCKS_PER_MULTIPROCESSOR
        self._scratch = self._driver.allocate(8 * _FINDINGS)

    def fill(self, address: int, count: int, itemsize: int) -> None:
        """Set elements, of so many bytes each, to what guard zones hold."""
        poison = WORDS[itemsize].poison
        if itemsize == 1:  # by twos, as what follows is a gap
            count, itemsize, poison = -(-count // 2), 2, 257 * poison
        letter = WORDS[itemsize].letter
        self._run(f"fill_{itemsize}", f"Pq{letter}", address, count, poison)

    def inspect(self, base: int, placement: Placement) -> list[int]:
        """Look through a matrix and its guard zones.

        Returns:
            How many elements of the zones before it, after it and between its rows were written;
            how many of the matrix still hold what guard zones hold; a hash of the matrix.
        """
        start = base + placement.offset - placement.guard * placement.itemsize
        shape = (placement.rows, placement.columns, placement.stride)
        return self._inspect(start, placement.itemsize, placement.guard, shape)

    def hash(self, address: int, size: int, word: int = 8) -> int:
        """A hash of `size` bytes, of words of so many each."""
        count = -(-size // word)
        return self._inspect(address, word, 0, (1, count, count))[4]

    def largest_error(
        self, base: int, placement: Placement, expected: int, scale: int | None, allowed: Allowed
    ) -> float:
        """The largest error relative to what is allowed; NaN where C has one.

        Args:
            base: address of C's slab.
            placement: where C lies.
            expected: address of float64 values, dense.
            scale: address of others; None takes 1 everywhere.
            allowed: of an element: so many times its scale, and so many times what is expected
                of it, and so much more.
        """
        self._driver.clear(int(self._scratch), 2)
        self._run(
            "compare",
            "PqqqPPdddP",
            base + placement.offset,
            placement.stride,
            placement.rows,
            placement.columns,
            expected,
            scale or 0,
            *allowed,
            int(self._scratch),
        )
        return float(self._read(self._scratch, (1,), "float64")[0])

    def project(self, base: int, placement: Placement, signs: int) -> NDArray[np.float64]:
        """C times sixteen vectors of -1 and 1: rows x 16, in float64."""
        shape = (placement.rows, _VECTORS)
        image = self._driver.allocate(8 * placement.rows * _VECTORS)
        self._run(
            "project",
            "PqqqPP",
            base + placement.offset,
            placement.stride,
            placement.rows,
            placement.columns,
            signs,
            int(image),
        )
        return self._read(image, shape, "float64")

    def take(
        self,
        base: int,
        placement: Placement,
        rows: NDArray[np.int64] | None,
        columns: NDArray[np.int64] | None,
    ) -> Matrix:
        """Some rows and columns of C; None takes them all."""
        shape = (
            placement.rows if rows is None else len(rows),
            placement.columns if columns is None else len(columns),
        )
        taken = self._driver.allocate(shape[0] * shape[1] * placement.itemsize)
        lists = [
            None if chosen is None else upload(chosen.astype(np.int32))
            for chosen in (rows, columns)
        ]
        row_list, column_list = (0 if chosen is None else int(chosen) for chosen in lists)
        self._run(
            "take",
            "PqPqPqP",
            base + placement.offset,
            placement.stride,
            row_list,
            shape[0],
            column_list,
            shape[1],
            int(taken),
        )
        return self._read(taken, shape, self._dtype)

    def _inspect(
        self, start: int, itemsize: int, guard: int, shape: tuple[int, int, int]
    ) -> list[int]:
        """Findings of `inspect` in a matrix of rows, columns and stride behind a guard zone."""
        word = WORDS[itemsize]
        self._driver.clear(int(self._scratch), 2 * _FINDINGS)
        self._run(
            f"inspect_{itemsize}",
            f"Pqqqq{word.letter}P",
            start,
            guard,
            *shape,
            word.poison,
            int(self._scratch),
        )
        return [int(count) for count in self._read(self._scratch, (_FINDINGS,), "uint64")]

    def _run(self, kernel: str, kinds: str, *arguments: Any) -> None:
        if kernel not in self._kernels:
            step = LaunchStep(kernel, (self._blocks, 1, 1), (_THREADS, 1, 1))
            self._kernels[kernel] = self._module.runner([step])
        self._kernels[kernel](struct.pack(kinds, *arguments), None)

    def _read(self, allocation: Memory, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        values = np.empty(shape, dtype)
        # Of bits: drivers take what has Python's buffer protocol, and bfloat16 has not.
        bits = values.view(f"u{values.itemsize}")
        self._driver.download(bits, int(allocation))  # waits for the kernel
        return values


def upload(values: NDArray[Any]) -> Memory:
    """A copy of an array in device memory of its own."""
    values = np.ascontiguousarray(values)
    allocation = driver().allocate(values.nbytes)
    driver().upload(int(allocation), values)
    return allocation


def pack_signs(vectors: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Sixteen columns of -1 and 1 as bits: bit v of element j is set where vectors[j, v] is -1."""
    bits = np.uint16(1) << np.arange(_VECTORS, dtype=np.uint16)
    return np.asarray(((vectors < 0) * bits).sum(axis=1), np.uint16)
