"""What programs use: tuned kernels looked up, loaded and called."""

from autotune.runtime.loading import Kernel, forget, load, matmul

__all__ = ["Kernel", "forget", "load", "matmul"]
