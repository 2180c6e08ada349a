"""What programs use: tuned kernels looked up, loaded and called."""

from autotune.runtime.loading import load
from autotune.runtime.multiplying import matmul
from autotune.runtime.remembered import forget

__all__ = ["forget", "load", "matmul"]
