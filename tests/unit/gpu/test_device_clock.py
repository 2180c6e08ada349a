"""Memory that turns read before a call, so that caches have it or have nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.arrays.device import DeviceArray
from autotune.gpu.arrays.clock import _whole


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "step"),
    [
        ((4, 64), (1, 1)),
        ((5, 7), (1, 1)),
        ((9, 32), (2, 1)),  # every other row
        ((9, 32), (-1, 1)),
        ((1, 1), (1, 1)),
        ((64, 3), (1, 5)),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_all_of_an_array_is_read_but_parts_of_vectors(
    shape: tuple[int, int], step: tuple[int, int], transposed: bool, dtype: str
) -> None:
    rows, columns = shape
    memory = np.zeros((2 * rows, 5 * columns + 3), dtype)
    array = memory[:: step[0], 1 :: step[1]][:rows, :columns]
    array = array.T if transposed else array
    itemsize = array.itemsize
    first, size = _whole(
        DeviceArray(
            address=array.ctypes.data,
            shape=array.shape,
            strides=tuple(each // itemsize for each in array.strides),
            dtype=dtype,
            device=0,
        )
    )
    low, high = np.lib.array_utils.byte_bounds(array)
    assert first % 16 == size % 16 == 0
    assert low <= first < low + 16
    assert size == max((high - first) // 16 * 16, 0)
