"""What programs use: tuned kernels looked up, loaded and called."""

from autotune.core.session import forget
from autotune.runtime.loading import load
from autotune.runtime.multiplying import matmul

__all__ = ["forget", "load", "matmul"]
