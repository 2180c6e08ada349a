"""Tensor maps: what hardware (TMA) is told of a matrix that it copies in boxes.

The driver writes them, on the host alone: no context is needed, and a capture does not notice.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.dtypes import DTYPES
from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.interface import MAP_ALIGNMENT, MAP_BYTES, DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.gpu.nvidia.driver.interface import Boxes

_ROUNDED = {"tf32": 11}  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_...
_NOT_INTERLEAVED = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
_WHOLE_LINES = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_ZEROS = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros stand beyond the matrix


def encoded(boxes: Boxes, address: int, leading: int) -> bytes:
    """The tensor map of a matrix.

    Args:
        boxes: how it is copied.
        address: of its first element.
        leading: elements from one row to the next.

    Raises:
        DriverError: the driver refuses it: the address or the rows are not whole 16 bytes
            (`autotune.families.gpu.launch.ROW_BYTES`), or there is no such box.
    """
    row = DTYPES[boxes.dtype]
    kind = _ROUNDED[boxes.rounded] if boxes.rounded else row.tensor_map
    raw = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    skipped = -ctypes.addressof(raw) % MAP_ALIGNMENT
    # Dimensions are told from the innermost one on, whose stride is that of an element.
    status = _encode_function()(
        ctypes.c_void_p(ctypes.addressof(raw) + skipped),
        kind,
        2,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(boxes.columns, boxes.rows),
        (ctypes.c_uint64 * 1)(leading * row.itemsize),
        (ctypes.c_uint32 * 2)(boxes.box[1], boxes.box[0]),
        (ctypes.c_uint32 * 2)(1, 1),
        _NOT_INTERLEAVED,
        _SWIZZLES[boxes.swizzle],
        _WHOLE_LINES,
        _ZEROS,
    )
    if status:
        name = load_driver().CUresult(status).name
        raise DriverError(f"{name}: cuTensorMapEncodeTiled failed for {boxes}")
    return raw.raw[skipped : skipped + MAP_BYTES]


@session.cached()
def _encode_function() -> Callable[..., int]:
    function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    return function
