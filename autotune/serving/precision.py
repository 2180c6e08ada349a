"""Whether libraries multiply float32 as they are asked to, or in shorter numbers.

Products of 16-bit numbers are summed in float32 by all; partial sums of a divided reduction are
rounded as PyTorch's own settings say.
"""

from __future__ import annotations

import os
from typing import Any

_EXACT = ("ieee", "none")
"""PyTorch's names for float32 as it is, and for a setting that leaves it to the one above."""


def torch_is_exact(torch: Any, device: str) -> bool:
    """Whether PyTorch multiplies float32 exactly on a kind of device.

    Args:
        torch: the package.
        device: "cuda" or "cpu".
    """
    backends = torch.backends
    products = backends.cuda.matmul if device == "cuda" else backends.mkldnn.matmul
    precision = getattr(products, "fp32_precision", None)
    if precision is None:  # before PyTorch 2.9, which refuses to be asked both ways
        return bool(torch.get_float32_matmul_precision() == "highest")
    if precision == "none":
        precision = backends.fp32_precision
    return precision in _EXACT


def cupy_is_exact() -> bool:
    """Whether CuPy multiplies float32 exactly."""
    return os.environ.get("CUPY_TF32", "") in ("", "0")
