"""The use of tuned kernels in programs: looked up, loaded and called."""

from autotune.core.session import forget
from autotune.runtime.loading import load
from autotune.runtime.multiplying import matmul

__all__ = ["forget", "load", "matmul"]
