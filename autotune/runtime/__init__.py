"""What programs use: tuned kernels looked up, loaded and called."""

from autotune.runtime.loading import forget, load, matmul

__all__ = ["forget", "load", "matmul"]
