"""What programs use: tuned kernels looked up, loaded and called."""

from autotune.runtime.loading import load
from autotune.runtime.multiplying import forget, matmul

__all__ = ["forget", "load", "matmul"]
